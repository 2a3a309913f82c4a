"""The room and the workflow: channel, inboxes, documents, proposals, resources; instances, agents, schedules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runs", sa.Column("workflow", sa.Text))
    op.add_column("runs", sa.Column("agent", sa.Text))
    op.add_column("runs", sa.Column("crashes", sa.Integer, nullable=False, server_default="0"))
    op.create_index("runs_by_workflow", "runs", ["workflow"])
    op.add_column("asks", sa.Column("workflow", sa.Text))
    _room()
    _channel()
    _documents()
    _proposals()
    _log()
    _workflow()
    _agents()


def _room() -> None:
    op.create_table(
        "rooms",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("workflow", sa.Text, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("closed_at", sa.Text),
        sa.Column("documents", sa.Text, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("roles", sa.JSON, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
    )
    op.create_index(
        "rooms_current", "rooms", ["workflow", "tag"], unique=True, sqlite_where=sa.text("closed_at IS NULL")
    )
    op.create_table(
        "seats",
        sa.Column("room", sa.Text, sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("task", sa.Text),
        sa.Column("state", sa.Text),
        sa.Column("at", sa.Text, nullable=False),
    )


def _channel() -> None:
    op.create_table(
        "messages",
        sa.Column("room", sa.Text, sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("mentions", sa.JSON, nullable=False),
        sa.Column("resource", sa.Text),
        sa.Column("hops", sa.Integer, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("at", sa.Text, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("room", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("message", sa.Integer, primary_key=True),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
    )
    op.create_index(
        "deliveries_unread", "deliveries", ["room", "agent", "message"], sqlite_where=sa.text("status = 'unread'")
    )


def _documents() -> None:
    op.create_table(
        "documents",
        sa.Column("room", sa.Text, sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
    )
    op.create_table(
        "document_log",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("room", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("at", sa.Text, nullable=False),
    )
    op.create_index("document_log_by_path", "document_log", ["room", "path"])
    op.create_index("document_log_by_call", "document_log", ["room", "run", "key"])
    op.create_table(
        "resources",
        sa.Column("room", sa.Text, sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("at", sa.Text, nullable=False),
    )


def _proposals() -> None:
    op.create_table(
        "proposals",
        sa.Column("room", sa.Text, sa.ForeignKey("rooms.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("options", sa.JSON, nullable=False),
        sa.Column("resolution", sa.Text, nullable=False),
        sa.Column("binding", sa.Boolean, nullable=False),
        sa.Column("quorum", sa.Integer, nullable=False),
        sa.Column("tie_break", sa.Text, nullable=False),
        sa.Column("guards", sa.JSON, nullable=False),
        sa.Column("eligible", sa.JSON, nullable=False),
        sa.Column("creator", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("hops", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
        sa.Column("ended_at", sa.Text),
        sa.Column("archived", sa.Boolean, nullable=False),
    )
    op.create_index("proposals_open", "proposals", ["room"], sqlite_where=sa.text("status = 'open'"))
    op.create_table(
        "votes",
        sa.Column("room", sa.Text, primary_key=True),
        sa.Column("proposal", sa.Integer, primary_key=True),
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("choice", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("run", sa.Text),
        sa.Column("at", sa.Text, nullable=False),
    )


def _log() -> None:
    op.create_table(
        "room_log",
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("room", sa.Text, nullable=False),
        sa.Column("op", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("key", sa.Text),
        sa.Column("arguments", sa.JSON, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("room_log_by_call", "room_log", ["room", "run", "key"], unique=True)
    shown = sa.text("op IN ('inbox_shown', 'inbox_read')")
    op.create_index("room_log_shown", "room_log", ["room", "run"], sqlite_where=shown)


def _workflow() -> None:
    op.create_table(
        "workflows",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("room", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("path", sa.Text),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("frame", sa.JSON, nullable=False),
        sa.Column("budget", sa.Float),
        sa.Column("owner", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
    )
    op.create_index("workflows_by_name", "workflows", ["name", "tag"])
    op.create_index("workflows_by_status", "workflows", ["status"])


def _agents() -> None:
    op.create_table(
        "agents",
        sa.Column("workflow", sa.Text, sa.ForeignKey("workflows.id"), primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("due_at", sa.Text),
        sa.Column("definition", sa.JSON, nullable=False),
    )
    op.create_table(
        "schedules",
        sa.Column("room", sa.Text, primary_key=True),
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("every", sa.Float),
        sa.Column("cron", sa.Text),
        sa.Column("prompt", sa.Text),
        sa.Column("due_at", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
    )
    op.create_index("schedules_by_time", "schedules", ["due_at"])
