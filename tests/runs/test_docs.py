"""Documentation of runs: the reference tables list exactly what the code defines."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import guildhall
from guildhall.core.events import EventType
from guildhall.hall.python_api import RunResult, Worker
from guildhall.runs.model import AskKind, AskStatus, Bounds
from guildhall.runs.record.entries import PAYLOADS
from guildhall.workers.definition import AttachmentPolicy, Sandbox

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(name: str, heading: str) -> set[str]:
    """Return the names in the first column of the table under a heading."""
    section = page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return {word for line in re.findall(r"^\| (`[^|]*`) \|", section, re.M) for word in re.findall(r"`(\w+)`", line)}


def test_the_docs_list_every_journal_entry() -> None:
    assert rows("journal.md", "The kinds") == set(PAYLOADS)


def test_the_docs_list_the_kinds_and_states_of_asks() -> None:
    assert rows("asks.md", "The kinds") == set(get_args(AskKind))
    assert rows("asks.md", "States") == set(get_args(AskStatus))


@pytest.mark.parametrize("limit", [field.name for field in fields(Bounds)])
def test_the_docs_list_each_limit(limit: str) -> None:
    assert f"| `{limit}` |" in page("limits.md")


def test_the_docs_list_the_names_of_the_library() -> None:
    text = page("python.md")
    for name in guildhall.__all__:
        assert f"| `{name}` |" in text
    assert rows("python.md", "Events") == set(get_args(EventType))
    for field in fields(RunResult):
        assert f"`{field.name}`" in text
    for name, member in inspect.getmembers(Worker, callable):
        if not name.startswith("_"):
            assert f"orker.{name}(" in text, name
            for option in inspect.signature(member).parameters.values():
                if option.kind is option.KEYWORD_ONLY:
                    assert f"`{option.name}`" in text or f"{option.name}=" in text, f"{name}: {option.name}"


def test_the_docs_list_the_attachment_types() -> None:
    from guildhall.runs.assembly.attachments import MAX_TOTAL_BYTES, MEDIA_TYPES

    section = page("attachments.md").partition("\n## What can be attached\n")[2].partition("\n## ")[0]
    named = {
        suffix for line in section.splitlines() if line.startswith("|") for suffix in re.findall(r"`(\.\w+)`", line)
    }
    assert named == set(MEDIA_TYPES)
    assert f"{MAX_TOTAL_BYTES:,}" in page("attachments.md")
    for part in (AttachmentPolicy, Sandbox):
        for field in part.model_fields:
            if "suffixes" in field or "max" in field:
                assert f"`{field}`" in page("attachments.md") or field == "text_suffixes"


def test_the_docs_quote_the_tool_results_exactly() -> None:
    from guildhall.tools import gate

    source = inspect.getsource(gate)
    for quoted in ("The user denied this call.", "Approval timed out; the call was not made.", "Not permitted:"):
        assert quoted in source
        assert quoted in page("asks.md")
