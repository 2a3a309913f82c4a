"""Every runtime passes the conformance checks, except those that the catalog exempts it from."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.model import Outcome
from guildhall.runtimes.pydantic import PydanticRuntime
from tests.clis import claude_program, codex_program, opencode_program
from tests.conformance.bench import Bench
from tests.conformance.runtime_checks import OWN_CHECKS, RUNTIME_CHECKS, checks_of
from tests.conftest import ROOT, Guild
from tests.kill.scene import DEEP

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, HttpDoors
    from tests.conformance.runtime_checks import Check

PROGRAMS: dict[str, Callable[[], Path] | None] = {
    "pydantic": None,
    "claude": claude_program,
    "codex": codex_program,
    "opencode": opencode_program,
}
# OpenCode takes seconds of computing to start: the usual suite has these, HYPOTHESIS_PROFILE=deep has all. That a tool
# is called and the model is told what it gave is seen in the first of them too.
COSTLY = ("opencode",)
LEAST = (
    "an_approval_is_answered_in_another_hall",
    "a_stop_ends_it_for_good",
    "a_conversation_is_shown_to_the_model_whole",
)
ALL = [
    (runtime, check)
    for runtime in PROGRAMS
    for check in checks_of(runtime)
    if DEEP or runtime not in COSTLY or check.__name__ in LEAST
]


@pytest.mark.req("AW-22", "WKR-14")
@pytest.mark.parametrize(("runtime", "check"), ALL, ids=[f"{runtime}-{check.__name__}" for runtime, check in ALL])
def test_a_runtime_does_what_every_runtime_does(runtime: str, check: Check, tmp_path: Path) -> None:
    find = PROGRAMS[runtime]
    program = {RUNTIMES[runtime].variable: str(find())} if find else {}
    asyncio.run(check(Bench(tmp_path, runtime, {**Guild.environment(), **program})))


def test_what_is_not_asked_is_a_check_and_goes_with_a_gap() -> None:
    names = {check.__name__ for check in RUNTIME_CHECKS}
    assert set(LEAST) <= names
    assert len(names) == len(RUNTIME_CHECKS) == len(OWN_CHECKS) + 1
    for row in RUNTIMES.values():
        assert set(row.exempt_checks) <= names, row.name
        assert row.gaps or not row.exempt_checks, row.name
    assert checks_of("pydantic") == checks_of("claude") == RUNTIME_CHECKS
    assert checks_of("cursor") == ()


# The checks themselves: a runtime that conforms passes, one that does not fails


class Own(PydanticRuntime):
    """A runtime that conforms."""


class Careless:
    """A runtime that answers without asking the model."""

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        return Outcome(output="All done.", messages=[])


def test_a_runtime_that_conforms_passes(tmp_path: Path) -> None:
    for number, check in enumerate(OWN_CHECKS[2:5]):
        asyncio.run(check(Bench(tmp_path / str(number), "pydantic", {}, own=Own())))


def test_a_runtime_that_does_not_conform_fails_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"what it used up: expected \(1, 1000, 100\), found \(0, 0, 0\)"):
        asyncio.run(OWN_CHECKS[0](Bench(tmp_path / "0", "pydantic", {}, own=Careless())))
    for number, check in enumerate(OWN_CHECKS[1:8]):
        with pytest.raises(AssertionError):
            asyncio.run(check(Bench(tmp_path / f"{number}-more", "pydantic", {}, own=Careless())))


def test_the_page_for_contributors_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(?:tests|src|scripts)/[\w/.]+\w", page)
    assert len(named) > 6
    assert [path for path in named if not (ROOT / path).exists()] == []
