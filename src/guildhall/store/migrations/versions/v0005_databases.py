"""The databases of workflows that keep their state apart."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "databases",
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("added_at", sa.Text, nullable=False),
    )
