"""Commissions, meetings and their timelines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "commissions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("prompt", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("hold", sa.JSON),
        sa.Column("conflict", sa.JSON, nullable=False),
        sa.Column("dependencies", sa.JSON, nullable=False),
        sa.Column("artifacts", sa.JSON, nullable=False),
        sa.Column("linked", sa.JSON, nullable=False),
        sa.Column("limits", sa.JSON, nullable=False),
        sa.Column("checks", sa.JSON, nullable=False),
        sa.Column("reviewer", sa.Text),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("made_by", sa.Text),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("branch", sa.Text),
        sa.Column("summary", sa.Text),
        sa.Column("result", sa.JSON),
        sa.Column("submitted_at", sa.Text),
        sa.Column("submitted_commit", sa.Text),
        sa.Column("checkout_lost_at", sa.Text),
        sa.Column("loss_reported_by", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Text, nullable=False),
    )
    op.create_table(
        "meetings",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("project", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("made_by", sa.Text),
        sa.Column("ask", sa.Text),
        sa.Column("deferred_to", sa.Text),
        sa.Column("linked", sa.JSON, nullable=False),
        sa.Column("sittings", sa.Integer, nullable=False),
        sa.Column("run", sa.Text),
        sa.Column("branch", sa.Text),
        sa.Column("summary", sa.Text),
        sa.Column("notes", sa.Text),
        sa.Column("created_at", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Text, nullable=False),
    )
    op.create_table(
        "meeting_words",
        sa.Column("meeting", sa.Text, sa.ForeignKey("meetings.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("words", sa.Text, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
    )
    op.create_table(
        "timeline",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("activity", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("commissions_by_project", "commissions", ["project", "status"])
    op.create_index("meetings_by_project", "meetings", ["project", "status"])
    op.create_index("timeline_by_activity", "timeline", ["activity", "id"])
