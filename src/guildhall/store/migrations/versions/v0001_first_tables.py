"""The first tables: runs, their journal, asks, locks of workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _runs()
    op.create_table(
        "journal",
        sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
    )
    _asks()
    op.create_table(
        "locks",
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("locked_at", sa.Text, nullable=False),
        sa.Column("wished", sa.Boolean, nullable=False),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("parent", sa.Text),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("error", sa.JSON),
        sa.Column("output", sa.JSON),
        sa.Column("owner", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.Integer, nullable=False),
        sa.Column("output_tokens", sa.Integer, nullable=False),
        sa.Column("cost_usd", sa.Float),
        sa.Column("running_seconds", sa.Float, nullable=False),
    )
    op.create_index("runs_by_creation", "runs", ["created_at"])
    op.create_index("runs_by_root", "runs", ["root"])


def _asks() -> None:
    op.create_table(
        "asks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("question", sa.JSON, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("answer", sa.JSON),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("expires_at", sa.Text),
        sa.Column("closed_at", sa.Text),
    )
    op.create_index("asks_by_status", "asks", ["status"])
    op.create_index("asks_by_call", "asks", ["run", "key"])
