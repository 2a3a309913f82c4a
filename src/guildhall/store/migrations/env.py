"""What Alembic runs to bring a database up to date: on the connection it was handed, each step in a transaction."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,  # SQLite can; Alembic only does it when told
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
