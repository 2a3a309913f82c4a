"""The record of memory: who changed which entry, in which run, and what it said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "memory_log",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("worker", sa.Text),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("digest", sa.Text),
        sa.Column("content", sa.Text),
    )
    op.create_index("memory_log_by_entry", "memory_log", ["place", "key"])
