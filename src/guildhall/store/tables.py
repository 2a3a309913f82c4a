"""The tables that every hall has: runs with their journals and asks, and what is known of workers.

Others are in room_tables.py and guild_tables.py, all of them in schema.py.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("root", Text, nullable=False),  # the run at the top of the tree
    Column("parent", Text),
    Column("worker", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),  # what the run is for: plain, call, job, commission, meeting, workflow
    Column("status", Text, nullable=False),
    Column("pause", Text),  # why it is parked or waits: user, shutdown, interrupted, fork, ask, message
    Column("reason", Text),  # why it waits, failed or was parked, for people
    Column("request", JSON, nullable=False),  # what was asked for: worker, input, frame, bounds
    Column("error", JSON),
    Column("output", JSON),
    Column("owner", Text),  # the boot id of the hall that runs it; another one means lost
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
    Column("crashes", Integer, nullable=False, default=0, server_default="0"),  # times that its hall died under it
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
    Column("subject", Text, nullable=False),  # fingerprint of exactly what is asked
    Column("question", JSON, nullable=False),  # what the person is shown
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
    Column("digest", Text, nullable=False),  # its content when a person trusted it
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
