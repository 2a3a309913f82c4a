"""The metadata of all tables. New databases are created from it."""

from __future__ import annotations

from guildhall.store import guild_tables, room_tables, tables

PARTS = (tables, room_tables, guild_tables)  # each puts its tables into it when it is imported
metadata = tables.metadata
