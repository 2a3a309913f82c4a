"""The schema as a whole. The migrations make the same tables; a test compares the two."""

from __future__ import annotations

from guildhall.store import guild_tables, room_tables, tables

PARTS = (tables, room_tables, guild_tables)  # each puts its tables into it when it is imported
metadata = tables.metadata
