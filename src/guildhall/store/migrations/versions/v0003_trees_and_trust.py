"""Runs that belong to a call of another run, and the files of projects that a person trusts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("parent_call", sa.Text))
    op.add_column("runs", sa.Column("ordinal", sa.Integer, nullable=False, server_default="0"))
    op.create_index("runs_by_call", "runs", ["parent", "parent_call"], unique=True)
    op.create_table(
        "trust",
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("trusted_at", sa.Text, nullable=False),
    )
