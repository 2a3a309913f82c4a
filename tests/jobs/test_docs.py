"""The page about jobs names every file, tool, field and status, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from guildhall.jobs import directory, model
from guildhall.jobs.assignee_tools import TOOLS, job_tools
from guildhall.jobs.model import JobStatus
from guildhall.runs.purpose import Contract

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()


def rows(heading: str) -> list[str]:
    """Return the first columns of the tables below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`|]*)` \|", section, re.M)


def test_every_tool_has_its_arguments() -> None:
    for tool in job_tools(Contract(), has_memory=True):
        told = re.search(rf"^\| `{tool.name}` \|([^|]*)\|", PAGE, re.M)
        assert told, tool.name
        needed = tool.input_schema.get("required", [])
        known = {name + ("" if name in needed else "?") for name in tool.input_schema["properties"]}
        assert {name + mark for name, mark in re.findall(r"`(\w+)`(\??)", told[1])} == known, tool.name


def test_every_tool_file_and_field_is_named() -> None:
    assert rows("The worker in a job") == list(TOOLS)
    files = {
        "task.md",
        "config.json",
        directory.META,
        directory.SUMMARY,
        directory.QUESTIONS,
        directory.DECISIONS,
        directory.RESULT,
    }
    assert set(rows("The directory")) == {*files, f"{directory.ARTIFACTS}/"}
    assert rows("The dispatch") == list(model._HALL_FIELDS)
    for status in get_args(JobStatus):
        assert status in PAGE
    assert f"{model.MAX_DESCRIPTION_CHARS:,} characters" in PAGE
    assert f"{model.MAX_TASK_BYTES:,} bytes" in PAGE
