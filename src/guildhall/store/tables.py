"""Tables: declares every table and index of the database.

`store.schema` creates the database. The `records.py` of each package has its queries.
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
    Column("pause", Text),  # cause of a pause or wait: user, shutdown, cut_off, fork, ask, message
    Column("reason", Text),  # explanation of the status for the user
    Column("request", JSON, nullable=False),  # worker, input, frame, bounds
    Column("error", JSON),
    Column("output", JSON),
    Column("owner", Text),  # boot id of the hall that executes the run; another boot id means interrupted
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("turns", Integer, nullable=False, default=0),
    Column("input_tokens", Integer, nullable=False, default=0),
    Column("output_tokens", Integer, nullable=False, default=0),
    Column("cache_read_tokens", Integer, nullable=False, default=0),  # part of the input tokens
    Column("cache_write_tokens", Integer, nullable=False, default=0),
    Column("cost_usd", Float),  # NULL if the model has no price
    Column("running_seconds", Float, nullable=False, default=0.0),
    Column("parent_call", Text),  # tool call of the parent that started the run
    Column(
        "ordinal", Integer, nullable=False, default=0, server_default="0"
    ),  # index among the runs of the worker below one root run
    Column("workflow", Text),  # id of the workflow of the agent
    Column("agent", Text),
    Column(
        "crashes", Integer, nullable=False, default=0, server_default="0"
    ),  # number of crashes of the hall during the run
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
    Column("key", Text),  # key of the model or tool call: m3, m3/<tool call id>
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
    Column("key", Text, nullable=False),  # key of the call that waits for the answer
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
    Column("path", Text, primary_key=True),  # path of the worker file
    Column("digest", Text, nullable=False),  # digest of the locked text
    Column("locked_at", Text, nullable=False),
    Column("requested", Boolean, nullable=False, default=False),  # True if the file has `locked: true`
)

trust = Table(
    "trust",
    metadata,
    Column("path", Text, primary_key=True),  # path of a file that may be executed
    Column("digest", Text, nullable=False),  # digest of the trusted content
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
    Column("digest", Text),  # digest of the content; NULL if the entry was removed
    Column("content", Text),
)
Index("memory_log_by_entry", memory_log.c.place, memory_log.c.key)

rooms = Table(
    "rooms",
    metadata,
    Column("id", Text, primary_key=True),
    Column("project", Text, nullable=False),  # root of the project of the workflow
    Column("workflow", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("created_at", Text, nullable=False),
    Column("closed_at", Text),  # NULL for the current room of a project, workflow and tag
    Column("documents", Text, nullable=False),  # "file:/folder" or "sqlite"
    Column("owner", Text),  # agent that may write documents; NULL if all agents may
    Column("roles", JSON, nullable=False),  # the elected agent of each role
    Column("settings", JSON, nullable=False),
)
Index(
    "rooms_current",
    rooms.c.project,
    rooms.c.workflow,
    rooms.c.tag,
    unique=True,
    sqlite_where=text("closed_at IS NULL"),
)

seats = Table(
    "seats",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("agent", Text, primary_key=True),
    Column("ordinal", Integer, nullable=False),  # position in the workflow file
    Column("task", Text),
    Column("state", Text),
    Column("at", Text, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("room", Text, ForeignKey("rooms.id"), primary_key=True),
    Column("id", Integer, primary_key=True),  # numbered in each room: 1, 2, 3
    Column("kind", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("mentions", JSON, nullable=False),  # the recipients, parsed when the message was sent
    Column("resource", Text),  # the full text, if the content is shortened
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
    Column("before", Text),  # digest of the old content; NULL if the document is new
    Column("digest", Text, nullable=False),  # digest of the new content
    Column("content", Text),  # NULL if an earlier row has the content
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
    Column("number", Integer, primary_key=True),  # numbered in each room: p-1, p-2
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
    Column("archived", Boolean, nullable=False),  # True if decisions.md has the result
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
    Column("key", Text),  # key of the tool call; repeating the call returns the recorded result
    Column("arguments", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("at", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("room_log_by_call", room_log.c.room, room_log.c.run, room_log.c.key, unique=True)
Index("room_log_shown", room_log.c.room, room_log.c.run, sqlite_where=text("op IN ('inbox_shown', 'inbox_read')"))

workflows = Table(
    "workflows",
    metadata,
    Column("id", Text, primary_key=True),
    Column("room", Text, nullable=False),
    Column("project", Text, nullable=False),  # root of the project; name and tag are unique in it
    Column("name", Text, nullable=False),
    Column("tag", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("mode", Text, nullable=False),  # run, start
    Column("status", Text, nullable=False),
    Column("reason", Text),
    Column("path", Text),
    Column("source", Text, nullable=False),  # text of the workflow file at the start
    Column("definition", JSON, nullable=False),
    Column("frame", JSON, nullable=False),
    Column("budget", Float),
    Column("owner", Text),  # boot id of the hall that executes the workflow
    Column("created_at", Text, nullable=False),
    Column("ended_at", Text),
)
Index("workflows_by_name", workflows.c.name, workflows.c.tag, workflows.c.project)
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
    Column("agent", Text, primary_key=True),  # "" for all agents
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
    Column("path", Text, primary_key=True),  # path of the database of a workflow, recorded in the database of the home
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
    Column("reason", Text),  # explanation of the last transition for the user
    Column("hold", JSON),  # obstacle to the next step: kind, message, where, hint
    Column("conflict", JSON, nullable=False),  # files of an unresolved merge conflict
    Column("dependencies", JSON, nullable=False),  # paths that must exist before the start
    Column("artifacts", JSON, nullable=False),  # paths that must exist at the end
    Column("linked", JSON, nullable=False),  # paths that the worker should read
    Column("limits", JSON, nullable=False),  # max_turns, max_budget_usd and model, if set
    Column("checks", JSON, nullable=False),  # commands that must succeed at the end
    Column("reviewer", Text),  # worker that must approve
    Column("by", Text, nullable=False),  # person, manager, artifact
    Column("made_by", Text),  # run and tool call that created the commission
    Column("attempt", Integer, nullable=False),  # counted from 1; 0 if never dispatched
    # The next columns belong to the current attempt.
    Column("run", Text),
    Column("branch", Text),
    Column("summary", Text),  # progress report of the worker
    Column("result", JSON),
    Column("submitted_at", Text),  # NULL until a result was accepted
    Column("submitted_commit", Text),  # commit of the accepted result
    Column("diffstat", JSON),  # files, insertions and deletions of the merged work
    Column("checkout_lost_at", Text),  # when the checkout was found missing
    Column("loss_reported_by", Text),  # tool call whose result reported the loss to the worker
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
    Column("reason", Text),  # explanation of the last event for the user
    Column("by", Text, nullable=False),  # person, worker, manager, hall, artifact
    Column("made_by", Text),  # run that requested the meeting
    Column("ask", Text),  # ask that requested the meeting
    Column("deferred_to", Text),  # earliest time
    Column("linked", JSON, nullable=False),
    Column("max_turns", Integer),  # this limit and the next two were given for the meeting
    Column("max_tokens", Integer),
    Column("budget", Float),
    Column("session_count", Integer, nullable=False),  # more than 1 after a renewal
    Column("run", Text),  # run of the last session
    Column("branch", Text),
    Column("summary", Text),
    Column("notes", Text),  # path of the notes that were written at the end
    Column("closing", JSON),  # options of the requested end: summarise, leave_work; NULL if not requested
    Column("cleaned_up_at", Text),  # when the checkout, branch and transcript were removed
    Column("created_at", Text, nullable=False),
    Column("changed_at", Text, nullable=False),
)
Index("meetings_by_project", meetings.c.project, meetings.c.status)

meeting_messages = Table(
    "meeting_messages",
    metadata,
    Column("meeting", Text, ForeignKey("meetings.id"), primary_key=True),
    Column("number", Integer, primary_key=True),  # number of the user message, from 1
    Column("run", Text, nullable=False),  # run that receives the message
    Column("text", Text, nullable=False),
    Column("at", Text, nullable=False),
)

timeline = Table(
    "timeline",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("activity", Text, nullable=False),  # a commission or a meeting
    Column("kind", Text, nullable=False),  # an event, or a note
    Column("before", Text),  # status before the event; NULL for a creation or a note
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
