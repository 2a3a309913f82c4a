"""Journal entries for tests that do not assemble a run."""

from __future__ import annotations

from typing import Any

from guildhall.runs.record.entries import Assembly


def assembly(**fields: Any) -> Assembly:
    """Return entry 0 of a run of the worker `w`, with these fields."""
    known: dict[str, Any] = {
        "system_prompt": "Work.",
        "first_message": "go",
        "attachments": [],
        "tools": [],
        "output_schema": None,
        "hash": "",
        "memory": "",
        "repeatable": [],
        "above": [],
        "given": {},
        "servers": {},
        "worker": {"scope": "project", "definition": {"name": "w", "sandboxes": {}}},
        "model": "test:model",
        "mode": "ask",
        "bounds": {},
    }
    return Assembly(**{**known, **fields})
