"""Short ids: a unique prefix stands for an id, and `last` for the newest run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from guildhall.cli.short_ids import ShortId, expand, is_kind, read_id
from guildhall.core.errors import NotFound, UsageError
from guildhall.hall.client.transport import run_without_event_loop
from tests.cli.places import ASKING, WORKER, make_project

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.hall.client.interface import HallClient
    from tests.conftest import Guild

RUNS = ("r-7k2m9x4qpw", "r-7k3m9x4qpw", "r-9abcdefghj")


class ListingClient:
    """A client whose hall has these runs, newest first, and nothing else."""

    def __init__(self, *runs: str) -> None:
        self.runs = self.asks = self.commissions = self.meetings = self
        self._runs = runs

    async def list(self, **_: bool) -> list[Any]:
        return [SimpleNamespace(id=run) for run in self._runs]


def expand_among(text: str, *runs: str) -> str:
    return run_without_event_loop(expand(ShortId(text), cast("HallClient", ListingClient(*runs))))


@pytest.mark.parametrize(
    ("text", "is_short"),
    [
        ("last", True),
        ("r-7", True),
        ("r-7k2m9x4qp", True),
        ("t-7k2", True),
        ("r-7k2m9x4qpw", False),
        ("r-", False),
        ("r-7K2", False),
        ("x-7k2", False),
        ("r-7k2\n", False),
        ("reviewer", False),
        ("@review:pr-1", False),
        ("ant/j-1", False),
        ("", False),
    ],
)
def test_prefixes_of_ids_and_last_are_short_ids(text: str, is_short: bool) -> None:
    assert isinstance(read_id(text), ShortId) is is_short
    assert read_id(text) == text


def test_the_kind_of_a_short_id_is_its_first_letter() -> None:
    assert is_kind(read_id("t-7k"), "t")
    assert is_kind("t-7k2m9x4qpw", "c", "t")
    assert not is_kind("t-7k", "t"), "a text that was not read as an id"
    assert not is_kind(read_id("last"), "r")


def test_a_unique_prefix_is_expanded() -> None:
    assert expand_among("r-9", *RUNS) == "r-9abcdefghj"
    assert expand_among("r-7k3", *RUNS) == "r-7k3m9x4qpw"


def test_an_ambiguous_prefix_is_an_error_that_lists_the_candidates() -> None:
    with pytest.raises(UsageError, match=r"ambiguous id r-7k: r-7k2m9x4qpw, r-7k3m9x4qpw"):
        expand_among("r-7k", *RUNS)


def test_an_unknown_prefix_is_left_to_the_command() -> None:
    assert expand_among("r-2", *RUNS) == "r-2"


def test_last_is_the_newest_run() -> None:
    assert expand_among("last", *RUNS) == RUNS[0]
    with pytest.raises(NotFound, match="no runs yet"):
        expand_among("last")


def test_commands_accept_short_ids(guild: Guild, project: Path) -> None:
    make_project(project)
    run = guild("run", "scribe", "go", "--json").json["run"]
    for words in (["show", run[:6]], ["show", "last"], ["log", run[:6]], ["wait", "last"], ["replay", run[:5]]):
        assert guild(*words).code == 0, words
    assert guild("show", "last", "--json").json["run"] == run
    assert guild("cost", "last").code == 0
    unknown = "r-3" if run.startswith("r-2") else "r-2"
    nothing = guild("show", unknown)
    assert (nothing.code, f"unknown id or target '{unknown}'" in nothing.err) == (3, True)


def test_json_can_stand_before_the_command(guild: Guild, project: Path) -> None:
    make_project(project)
    ran = guild("--json", "run", "scribe", "go").json
    assert ran["status"] == "completed"
    assert guild("--json", "show", ran["run"]).json["run"] == ran["run"]
    assert guild("--json", "ls", "jobs").json == {"jobs": []}
    assert guild("--json", "nonsense").json["error"]["code"] == "usage"


def test_the_only_open_ask_needs_no_id(guild: Guild, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING)
    assert "there are no open asks" in guild("answer", "yes").err
    run = guild("run", "scribe", "go", "--json").json
    assert len(run["asks"]) == 1
    assert [one["ask"] for one in guild("ls", "asks", "--json").json["asks"]] == [run["asks"][0]["ask"]]
    assert guild("answer", "yes", "--json").json["status"] == "completed"


def test_an_answer_needs_an_id_if_several_asks_are_open(guild: Guild, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING)
    asks = [guild("run", "scribe", "go", "--json").json["asks"][0]["ask"] for _ in range(2)]
    refused = guild("answer", "yes")
    assert (refused.code, all(ask in refused.err for ask in asks)) == (2, True)
    assert guild("approve", asks[0][:7]).code == 0
    assert guild("deny").code == 0
