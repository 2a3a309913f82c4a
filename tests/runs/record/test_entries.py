"""Journal entries: one payload type for each kind, the same in the database, for clients and in the docs."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import InvalidFile, UsageError
from guildhall.hall.client.codec import decode, encode
from guildhall.runs.record.entries import PAYLOADS, Entry, Paused, Payload, Unjudged
from tests.cli.places import make_project

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild

PAGE = (Path(__file__).parents[3] / "docs" / "journal.md").read_text()


def test_every_kind_has_a_payload_type_with_a_docstring() -> None:
    assert all(payload.__doc__ for payload in PAYLOADS.values())


def test_the_docs_name_every_kind_and_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE[PAGE.index("## The kinds") :], flags=re.M))
    assert set(rows) == set(PAYLOADS)
    for kind, payload in PAYLOADS.items():
        missing = [one.name for one in fields(payload) if f"`{one.name}`" not in rows[kind]]
        assert missing == [], kind


def read_records(home: Home) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(home.database)) as connection:
        rows = connection.execute("SELECT run, seq, kind, key, at, data FROM journal ORDER BY seq").fetchall()
    names = ("run", "seq", "kind", "key", "at")
    return [{**dict(zip(names, row, strict=False)), "data": json.loads(row[-1])} for row in rows]


def test_a_recorded_run_reads_back_as_it_was_stored(guild: Guild, home: Home, project: Path) -> None:
    make_project(project)
    run = guild("run", "scribe", "hello", "--output", "json").json["run"]
    records = read_records(home)
    kinds = [record["kind"] for record in records]
    assert kinds[:4] == ["assembled", "model_asked", "model_answered", "tool_started"]
    entries = [Entry.from_dict(record) for record in records]
    assert [json.loads(json.dumps(entry.as_dict())) for entry in entries] == records
    assert [decode(Entry[Payload], json.loads(json.dumps(encode(entry)))) for entry in entries] == entries
    printed = guild("log", run, "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in printed] == kinds


def test_a_paused_entry_with_an_unjudged_result_reads_back() -> None:
    data = Paused(status="paused", pause="user", reason="by the user", unjudged=Unjudged(status="completed", output=1))
    entry: Entry[Payload] = Entry(run="r-1", seq=1, key=None, data=data, at="now")
    assert Entry.from_dict(json.loads(json.dumps(entry.as_dict()))) == entry


@pytest.mark.parametrize(
    ("kind", "data"), [("king", {}), ("said", {}), ("said", {"words": "x", "loud": True}), ("said", ["words"])]
)
def test_a_damaged_entry_raises_an_error_that_names_it(kind: str, data: Any) -> None:
    record = {"run": "r-1", "seq": 7, "kind": kind, "key": None, "data": data, "at": "now"}
    with pytest.raises(InvalidFile, match=r"entry 7 .* of r-1"):
        Entry.from_dict(record)
    with pytest.raises(UsageError, match="entry 7"):
        decode(Entry[Payload], record)
    with pytest.raises(UsageError, match="invalid journal entry 7"):
        decode(Entry[Payload], {name: value for name, value in record.items() if name != "data"})
