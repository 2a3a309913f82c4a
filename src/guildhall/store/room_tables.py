"""The tables of rooms, and of the workflows whose agents share them."""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKey, Index, Integer, Table, Text, text

from guildhall.store.tables import metadata

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
    Column("roles", JSON, nullable=False),  # who was elected to what
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
    Column("mentions", JSON, nullable=False),  # whom it reaches, as parsed when it was written
    Column("resource", Text),  # the whole text, where the content is only its beginning
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
Index(
    "deliveries_unread",
    deliveries.c.room,
    deliveries.c.agent,
    deliveries.c.message,
    sqlite_where=text("status = 'unread'"),
)

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
    Column("before", Text),  # digest of what was there; NULL: nothing
    Column("digest", Text, nullable=False),  # of what is to be there
    Column("content", Text),  # NULL: a look at what is on record already
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
    Column("key", Text),  # the call of the run: the same one again has the recorded result and no second effect
    Column("arguments", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Column("at", Text, nullable=False),
    sqlite_autoincrement=True,
)
Index("room_log_by_call", room_log.c.room, room_log.c.run, room_log.c.key, unique=True)
Index(
    "room_log_shown",
    room_log.c.room,
    room_log.c.run,
    sqlite_where=text("op IN ('inbox_shown', 'inbox_read')"),
)

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
    Column("due_at", Text),  # when it is tried again
    Column("definition", JSON, nullable=False),
)

schedules = Table(
    "schedules",
    metadata,
    Column("room", Text, primary_key=True),
    Column("agent", Text, primary_key=True),  # "": all of them
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
    Column("path", Text, primary_key=True),  # of workflows that keep their state apart; in the home's own database
    Column("added_at", Text, nullable=False),
)
