"""The tables of the guild: commissions, meetings, the timeline of both, and what may be told of them."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from guildhall.store.tables import metadata

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
    Column("linked", JSON, nullable=False),  # paths that the worker is told to read
    Column("limits", JSON, nullable=False),  # max_turns, max_budget_usd, model; only those that are set
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
    Column("made_by", Text),  # the run that has asked for it
    Column("ask", Text),  # by which it was asked for
    Column("deferred_to", Text),  # not before this moment
    Column("linked", JSON, nullable=False),
    Column("sittings", Integer, nullable=False),  # how many runs it has had: a renewed session is a new one
    Column("run", Text),  # the last of them
    Column("branch", Text),
    Column("summary", Text),
    Column("notes", Text),  # the path of what was written down when it closed
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
    Column("number", Integer, primary_key=True),  # 1, 2, 3 ... what the person has said
    Column("run", Text, nullable=False),  # that hears it
    Column("words", Text, nullable=False),
    Column("at", Text, nullable=False),
)

timeline = Table(
    "timeline",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("activity", Text, nullable=False),  # a commission or a meeting
    Column("kind", Text, nullable=False),  # an event, or a note
    Column("before", Text),  # NULL: it came into being, or nothing but a note
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
    Column("digest", Text, primary_key=True),  # SHA-256 of a text that has secrets in it
    Column("text", LargeBinary, nullable=False),  # the same without them
)
