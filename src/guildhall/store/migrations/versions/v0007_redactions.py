"""What may be told of a text that had secrets in it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "redactions",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("text", sa.LargeBinary, nullable=False),
    )
