"""Tables: declare every table and index of the database.

The tables are for runs with their journals and asks, workers (locks, trust, memory), rooms, workflows, and projects
(commissions, meetings, redactions). Does not create the database (see `store.schema`) or query it (see the
`records.py` of each package).
"""

from __future__ import annotations

from sqlalchemy import BLOB, JSON, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text, text

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("root", Text, nullable=False),  # the root run
    Column("parent", Text),
    Column("worker", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),  # plain, call, job, commission, meeting, workflow
    Column("status", Text, nullable=False),
    Column("pause", Text),  # why it is paused or waits: user, shutdown, cut_off, fork, ask, message
    Column("reason", Text),  # why it waits, failed or was paused, for people
    Column("request", JSON, nullable=False),  # worker, input, frame, bounds
    Column("error", JSON),
    Column("output", JSON),
    Column("owner", Text),  # the boot id of the hall that runs it; another boot id means interrupted
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("turns", Integer, nullable=False, default=0),
    Column("input_tokens", Integer, nullable=False, default=0),
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("cost_usd", Float),  # NULL: the model has no price
    Column("running_seconds", Float, nullable=False, default=0.0),
    Column("parent_call", Text),  # the call of the parent that made it
    Column("ordinal", Integer, nullable=False, default=0, server_default="0"),  # which run of its worker in the tree
    Column("workflow", Text),  # the instance whose agent it is
    Column("agent", Text),
    Column("crashes", Integer, nullable=False, default=0, server_default="0"),  # of the hall while it was running
)
Index("runs_by_creation", runs.c.created_at)
Index("runs_by_root", runs.c.root)
Index("runs_by_call", runs.c.parent, runs.c.parent_call, unique=True)
Index("runs_by_workflow", runs.c.workflow)

journal = Table(
    "journal",
    metadata,
    Column("run", Text, ForeignKey("runs.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("key", Text),  # the call it belongs to: m3, m3/<tool call id>
    Column("data", JSON, nullable=False),
    Column("at", Text, nullable=False),
)

asks = Table(
    "asks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run", Text, ForeignKey("runs.id"), nullable=False),
    Column("root", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),  # the call of the run that waits for it
    Column("subject", Text, nullable=False),  # fingerprint of the question and its facts
    Column("question", JSON, nullable=False),  # title, body and choices
    Column("status", Text, nullable=False),
    Column("answer", JSON),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("closed_at", Text),
    Column("workflow", Text),
)
Index("asks_by_status", asks.c.status)
Index("asks_by_call", asks.c.run, asks.c.key)

locks = Table(
    "locks",
    metadata,
    Column("path", Text, primary_key=True),  # of the worker's file
    Column("digest", Text, nullable=False),  # its text when it was locked
    Column("locked_at", Text, nullable=False),
    Column("wished", Boolean, nullable=False, default=False),  # by `locked: true` in the file
)

trust = Table(
    "trust",
    metadata,
    Column("path", Text, primary_key=True),  # of a file of a project that may be executed
    Column("digest", Text, nullable=False),  # of its content when the user trusted it
    Column("trusted_at", Text, nullable=False),
)

memory_log = Table(
    "memory_log",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("place", Text, nullable=False),  # MemoryFolder.name
    Column("scope", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("run", Text),  # no reference: the log outlives the run
    Column("worker", Text),
    Column("by", Text, nullable=False),
    Column("at", Text, nullable=False),
    Column("digest", Text),  # of the content; NULL: the change removed the entry
    Column("content", Text),
)
Index("memory_log_by_entry", memory_log.c.place, memory_log.c.key)

rooms = Table(
    "rooms",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workflow", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("closed_at", Text),  # NULL: the current one of its workflow and tag
    Column("documents", Text, nullable=False),  # "file:/folder" or "sqlite"
    Column("owner", Text),  # of the documents; NULL: everyone writes
    Column("roles", JSON, nullable=False),  # the elected agent of each role
    Column("settings", JSON, nullable=False),
)
Index("rooms_current", rooms.c.workflow, rooms.c.tag, unique=True, sqlite_where=text("closed_at IS NULL"))

seats = Table(
    "seats",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),  # its place in the workflow's file
    Column("task", Text),
    Column("state", Text),
    Column("at", Text, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("id", Integer, primary_key=True),  # 1, 2, 3 ... in its room
    Column("kind", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("mentions", JSON, nullable=False),  # the recipients, parsed when the message was sent
    Column("resource", Text),  # the full text, if the content is only its beginning
    Column("hops", Integer, nullable=False),
    Column("run", Text),
    Column("key", Text),
    Column("at", Text, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("room", Text, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("message", Integer, primary_key=True),
    Column("priority", Integer, nullable=False),
    Column("status", Text, nullable=False),  # unread, held, done, dead
)
_UNREAD = text("status = 'unread'")
Index("deliveries_unread", deliveries.c.room, deliveries.c.agent, deliveries.c.message, sqlite_where=_UNREAD)

documents = Table(
    "documents",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", Text, nullable=False),
    Column("at", Text, nullable=False),
)

document_log = Table(
    "document_log",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("room", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("before", Text),  # digest of the content before; NULL: no file
    Column("digest", Text, nullable=False),  # of the new content
    Column("content", Text),  # NULL: the log has it already
    Column("status", Text, nullable=False),  # intended, done, dropped
    Column("by", Text, nullable=False),
    Column("run", Text),
    Column("key", Text),
    Column("at", Text, nullable=False),
)
Index("document_log_by_path", document_log.c.room, document_log.c.path)
Index("document_log_by_call", document_log.c.room, document_log.c.run, document_log.c.key)

proposals = Table(
    "proposals",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("number", Integer, primary_key=True),  # p-1, p-2 ... in its room
    Column("type", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("options", JSON, nullable=False),
    Column("resolution", Text, nullable=False),
    Column("binding", Boolean, nullable=False),
    Column("quorum", Integer, nullable=False),
    Column("tie_break", Text, nullable=False),
    Column("guards", JSON, nullable=False),
    Column("eligible", JSON, nullable=False),
    Column("creator", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("result", Text),
    Column("reason", Text),
    Column("hops", Integer, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("expires_at", Text),
    Column("ended_at", Text),
    Column("archived", Boolean, nullable=False),  # in decisions.md
)
Index("proposals_open", proposals.c.room, sqlite_where=text("status = 'open'"))

votes = Table(
    "votes",
    metadata,
    Column("room", Text, primary_key=True),
    Column("proposal", Integer, primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("choice", Text, nullable=False),
    Column("reason", Text),
    Column("run", Text),
    Column("at", Text, nullable=False),
)

resources = Table(
    "resources",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("id", Text, primary_key=True),  # a hash of the content
    Column("content", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("run", Text),
    Column("at", Text, nullable=False),
)

room_log = Table(
    "room_log",
    metadata,
    Column("place", Integer, primary_key=True),
    Column("room", Text, nullable=False),
    Column("op", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("run", Text),
    Column("key", Text),  # the call of the run; repeating it returns the recorded result
    Column("arguments", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("at", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("room_log_by_call", room_log.c.room, room_log.c.run, room_log.c.key, unique=True)
Index("room_log_shown", room_log.c.room, room_log.c.run, sqlite_where=text("op IN ('inbox_shown', 'inbox_read')"))

# The workflow

workflows = Table(
    "workflows",
    metadata,
    Column("id", Text, primary_key=True),
    Column("room", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("mode", Text, nullable=False),  # run, start
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("path", Text),
    Column("source", Text, nullable=False),  # the YAML as it was at the start
    Column("definition", JSON, nullable=False),
    Column("frame", JSON, nullable=False),
    Column("budget", Float),
    Column("owner", Text),  # the boot id of the hall that has it
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
Index("workflows_by_name", workflows.c.name, workflows.c.tag)
Index("workflows_by_status", workflows.c.status)

agents = Table(
    "agents",
    metadata,
    Column("workflow", Text, ForeignKey("workflows.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("run", Text),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Text),  # time of the next attempt
    Column("definition", JSON, nullable=False),
)

schedules = Table(
    "schedules",
    metadata,
    Column("room", Text, primary_key=True),
    Column("agent", Text, primary_key=True),  # "": all agents
    Column("every", Float),  # seconds
    Column("cron", Text),
    Column("prompt", Text),
    Column("due_at", Text),
    Column("created_at", Text, nullable=False),
)
Index("schedules_by_time", schedules.c.due_at)

databases = Table(
    "databases",
    metadata,
    Column("path", Text, primary_key=True),  # of a workflow with its own database; recorded in the database of the home
    Column("added_at", Text, nullable=False),
)

commissions = Table(
    "commissions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),  # of the last transition, for people; nothing depends on its wording
    Column("hold", JSON),  # why it cannot continue: kind, message, where, hint
    Column("conflict", JSON, nullable=False),  # files of an unresolved merge conflict
    Column("dependencies", JSON, nullable=False),  # paths that must exist before it starts
    Column("artifacts", JSON, nullable=False),  # paths that must exist when it ends
    Column("linked", JSON, nullable=False),  # paths that the worker should read
    Column("limits", JSON, nullable=False),  # max_turns, max_budget_usd and model, if set
    Column("checks", JSON, nullable=False),  # commands that must succeed at the end
    Column("reviewer", Text),  # a worker that must approve
    Column("by", Text, nullable=False),  # person, manager, artifact
    Column("made_by", Text),  # the run and the tool call that created it
    Column("attempt", Integer, nullable=False),  # counted from 1; 0 if never dispatched
    # of the current attempt
    Column("run", Text),
    Column("branch", Text),
    Column("summary", Text),  # progress, in the worker's words
    Column("result", JSON),
    Column("submitted_at", Text),  # NULL until a result was accepted
    Column("submitted_commit", Text),  # the commit that fulfilled the contract then
    Column("checkout_lost_at", Text),  # when the checkout was found missing
    Column("loss_reported_by", Text),  # the tool call whose result tells the worker so
    Column("created_at", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)
Index("commissions_by_project", commissions.c.project, commissions.c.status)

meetings = Table(
    "meetings",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("topic", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text),  # of the last event, for people; nothing depends on its wording
    Column("by", Text, nullable=False),  # person, worker, manager, hall, artifact
    Column("made_by", Text),  # the run that requested it
    Column("ask", Text),  # that requested it
    Column("deferred_to", Text),  # not before this moment
    Column("linked", JSON, nullable=False),
    Column("session_count", Integer, nullable=False),  # more than 1 after a renewal
    Column("run", Text),  # the last of them
    Column("branch", Text),
    Column("summary", Text),
    Column("notes", Text),  # the path of the notes that were written when it closed
    Column("closing", JSON),  # how the user wants to close it: summarise, leave_work; NULL: not at all
    Column("cleaned_up_at", Text),  # when checkout, branch and transcript of a closed meeting were removed
    Column("created_at", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)
Index("meetings_by_project", meetings.c.project, meetings.c.status)

meeting_words = Table(
    "meeting_words",
    metadata,
    Column("meeting", Text, ForeignKey("meetings.id"), primary_key=True),
    Column("number", Integer, primary_key=True),  # of the user's message, from 1
    Column("run", Text, nullable=False),  # that receives it
    Column("words", Text, nullable=False),
    Column("at", Text, nullable=False),
)

timeline = Table(
    "timeline",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("activity", Text, nullable=False),  # a commission or a meeting
    Column("kind", Text, nullable=False),  # an event, or a note
    Column("before", Text),  # the status before; NULL: a creation or a note
    Column("after", Text),
    Column("reason", Text, nullable=False),
    Column("data", JSON, nullable=False),
    Column("at", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("timeline_by_activity", timeline.c.activity, timeline.c.id)

redactions = Table(
    "redactions",
    metadata,
    Column("digest", Text, primary_key=True),  # SHA-256 of a text with secrets
    Column("text", BLOB, nullable=False),  # the redacted text
)
