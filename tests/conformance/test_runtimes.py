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
from tests.kill.harness import DEEP

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
# OpenCode needs seconds of CPU time to start. The normal suite runs these checks, HYPOTHESIS_PROFILE=deep runs all. The
# first of them calls a tool as well.
SLOW_RUNTIMES = ("opencode",)
MINIMAL_CHECKS = (
    "an_approval_is_answered_in_another_hall",
    "a_stop_cancels_the_run",
    "the_model_gets_the_whole_conversation",
)
CASES = [
    (runtime, check)
    for runtime in PROGRAMS
    for check in checks_of(runtime)
    if DEEP or runtime not in SLOW_RUNTIMES or check.__name__ in MINIMAL_CHECKS
]


@pytest.mark.req("AW-22", "WKR-14")
@pytest.mark.parametrize(("runtime", "check"), CASES, ids=[f"{runtime}-{check.__name__}" for runtime, check in CASES])
def test_a_runtime_passes_a_check(runtime: str, check: Check, tmp_path: Path) -> None:
    find = PROGRAMS[runtime]
    program = {RUNTIMES[runtime].variable: str(find())} if find else {}
    asyncio.run(check(Bench(tmp_path, runtime, {**Guild.environment(), **program})))


def test_an_exempt_check_exists_and_belongs_to_a_gap() -> None:
    names = {check.__name__ for check in RUNTIME_CHECKS}
    assert set(MINIMAL_CHECKS) <= names
    assert len(names) == len(RUNTIME_CHECKS) == len(OWN_CHECKS) + 1
    for row in RUNTIMES.values():
        assert set(row.exempt_checks) <= names, row.name
        assert row.gaps or not row.exempt_checks, row.name
    assert checks_of("pydantic") == checks_of("claude") == RUNTIME_CHECKS
    assert checks_of("cursor") == ()


# The checks themselves


class ConformingRuntime(PydanticRuntime):
    """A runtime that conforms."""


class CarelessRuntime:
    """A runtime that answers without calling the model."""

    async def execute(self, assignment: Assignment, doors: HttpDoors) -> Outcome:
        return Outcome(output="All done.", messages=[])


def test_a_conforming_runtime_passes(tmp_path: Path) -> None:
    for number, check in enumerate(OWN_CHECKS[2:5]):
        asyncio.run(check(Bench(tmp_path / str(number), "pydantic", {}, own=ConformingRuntime())))


def test_a_nonconforming_runtime_fails_with_the_expected_value(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"usage: expected \(1, 1000, 100\), found \(0, 0, 0\)"):
        asyncio.run(OWN_CHECKS[0](Bench(tmp_path / "0", "pydantic", {}, own=CarelessRuntime())))
    for number, check in enumerate(OWN_CHECKS[1:8]):
        with pytest.raises(AssertionError):
            asyncio.run(check(Bench(tmp_path / f"{number}-more", "pydantic", {}, own=CarelessRuntime())))


def test_the_page_for_contributors_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(?:tests|src|scripts)/[\w/.]+\w", page)
    assert len(named) > 6
    assert [path for path in named if not (ROOT / path).exists()] == []
