"""Purposes: stored with the request, read back as the same type, and a column for SQL."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import pytest

from guildhall.core.errors import UsageError
from guildhall.hall.client.codec import decode, encode
from guildhall.runs.model import RunRequest, request_from_record
from guildhall.runs.purpose import (
    PLAIN,
    CallPurpose,
    CommissionPurpose,
    Contract,
    JobPurpose,
    MeetingPurpose,
    Purpose,
    RunKind,
    WorkflowPurpose,
)
from tests.cli.places import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

CONTRACT = Contract(artifacts=("report.md",), schema={"type": "object"})
PURPOSES: list[Purpose] = [
    PLAIN,
    CallPurpose(worker="helper", input_data={"path": "a.md"}, attachments=("a.md",)),
    JobPurpose(id="j-1", description="A report", has_memory=True, contract=CONTRACT),
    CommissionPurpose(id="c-1", attempt=2, title="A report", contract=CONTRACT),
    CommissionPurpose(id="c-1", attempt=2, title="A report", contract=None),
    MeetingPurpose(id="m-1", session=2, last_message=7),
    WorkflowPurpose(tag="main", params={"path": "a.md"}, mode="start"),
]


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_purpose_is_read_from_the_record_as_it_was_stored(purpose: Purpose) -> None:
    request = RunRequest(worker="scribe", input="go", purpose=purpose)
    assert request_from_record(json.loads(json.dumps(asdict(request)))) == request


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_purpose_travels_to_the_hall_and_back(purpose: Purpose) -> None:
    request = RunRequest(worker="scribe", input="go", purpose=purpose)
    assert decode(RunRequest, json.loads(json.dumps(encode(request)))) == request


def test_every_kind_has_a_purpose() -> None:
    assert {purpose.kind for purpose in PURPOSES} == set(get_args(RunKind))


@pytest.mark.parametrize(
    "purpose", [{"kind": "job"}, {"kind": "king"}, {"id": "j-1"}, ["job"], {"kind": "job", "id": 1}]
)
def test_an_invalid_purpose_is_refused(purpose: Any) -> None:
    with pytest.raises(UsageError, match="purpose"):
        decode(RunRequest, {"worker": "scribe", "input": "go", "purpose": purpose})


def test_the_kind_of_a_run_is_a_column_and_in_its_json(guild: Guild, home: Home, project: Path) -> None:
    make_project(project)
    run = guild("run", "scribe", "hello", "--output", "json").json["run"]
    with closing(sqlite3.connect(home.database)) as connection:
        assert connection.execute("SELECT kind FROM runs WHERE id=?", [run]).fetchone() == ("plain",)
    assert guild("show", run, "--json").json["kind"] == "plain"
