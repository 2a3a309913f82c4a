"""Requirements are data: which one is proved by which test.

tests/requirements.yaml has them; a test that proves one carries `@pytest.mark.req("DO-4")`. While tests run, the
Recorder notes which of the marked ones passed, in `.requirements.json`. `python -m tests.requirements` puts both
together and prints a table. A mark with an unknown id, or more than three ids on a test, fails that test and this
command. Only a test that passed proves anything.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[1]
RECORD = ".requirements.json"
MOST_IDS = 3
_PROPERTY = "requirements"
_OUTSIDE = ("guildhall", "tests.members.small")  # the public API; members, spoken to over HTTP
# What the tests prove of a requirement that is larger than what there is. An id leaves when the rest is there too.
IN_PART: dict[str, str] = {
    "AW-22": "Cursor by a stand-in only",
    "X-15": "all but trust and missing keys, which are told where they are met",
}


@functools.cache
def known() -> Mapping[str, str]:
    """Every id with its text, in the order of the file."""
    from ruamel.yaml import YAML

    groups: Any = YAML(typ="safe").load(Path(__file__).with_name("requirements.yaml"))
    return {name: text for group in groups.values() for name, text in group.items()}


# While the tests run


def ids_of(item: pytest.Item) -> list[str]:
    """The ids that a test says it proves."""
    return sorted({str(name) for mark in item.iter_markers("req") for name in mark.args})


def problems(item: pytest.Item) -> list[str]:
    """What is wrong with the marks of a test."""
    ids = ids_of(item)
    found = [f"@req names {name}, which is not in tests/requirements.yaml" for name in ids if name not in known()]
    if len(ids) > MOST_IDS:
        found.append(f"@req names {len(ids)} ids; a test proves at most {MOST_IDS}")
    if any(mark.kwargs or not mark.args for mark in item.iter_markers("req")):
        found.append('@req takes ids and nothing else: @pytest.mark.req("DO-4")')
    return found


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """Puts the ids of a test on its report, so that they come back from another process too."""
    if ids := ids_of(item):
        report.user_properties.append((_PROPERTY, ids))


class Recorder:
    """A pytest plug-in: keeps the outcome of every marked test that ran, beside those of earlier runs."""

    def __init__(self, root: Path) -> None:
        self._path = root / RECORD
        self._at = time.time()
        self._outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if _PROPERTY not in dict(report.user_properties):
            return
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if outcome != "passed" or (report.when == "call" and report.nodeid not in self._outcomes):
            self._outcomes[report.nodeid] = outcome

    def pytest_sessionfinish(self) -> None:
        if not self._outcomes:
            return
        tests = read_record(self._path)
        tests.update({name: {"outcome": outcome, "at": self._at} for name, outcome in self._outcomes.items()})
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"tests": dict(sorted(tests.items()))}, indent=1), encoding="utf-8")
        draft.replace(self._path)


def read_record(path: Path) -> dict[str, dict[str, Any]]:
    """What was noted so far; nothing where there is no readable record."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["tests"]
    except (OSError, ValueError, KeyError):
        return {}


# Afterwards


@dataclass
class Proof:
    """A marked test function with all its cases."""

    test: str
    outside: bool  # through the command, the public API or the wire
    cases: list[str] = field(default_factory=list[str])

    def outcome(self, record: Mapping[str, Mapping[str, Any]]) -> str:
        """`passed` if every case did; else what happened to the first that did not."""
        outcomes = [record.get(case, {}).get("outcome", "not run") for case in self.cases]
        return next((outcome for outcome in outcomes if outcome != "passed"), "passed")


class Collector:
    """A pytest plug-in: the marked tests that there are, and what is wrong with their marks."""

    def __init__(self) -> None:
        self.proofs: dict[str, dict[str, Proof]] = {}
        self.problems: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} cannot be collected")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.problems.extend(f"{item.nodeid}: {problem}" for problem in problems(item))
            test = item.nodeid.partition("[")[0]
            for name in ids_of(item):
                proof = self.proofs.setdefault(name, {}).setdefault(test, Proof(test, _is_outside(item)))
                proof.cases.append(item.nodeid)


def _is_outside(item: pytest.Item) -> bool:
    commands = {"guild", "guild_hall"}  # the same command, the second with the hall as a process of its own
    return bool(commands & set(getattr(item, "fixturenames", ()))) or _imports_the_library(item.path)


@functools.cache
def _imports_the_library(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ImportFrom) and node.module in _OUTSIDE for node in tree.body)


def collect(arguments: Iterable[str] = ("tests",)) -> Collector:
    """The marked tests, without running any."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments], plugins=[collector])
    return collector


def table(collector: Collector, record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each requirement, with its proofs; then how many there are of each kind."""
    lines: list[str] = []
    counts = {"proved": 0, "in part": 0, "inside only": 0, "not yet": 0}
    for name, text in known().items():
        proofs = list(collector.proofs.get(name, {}).values())
        standing = _standing(proofs, record)
        if standing == "proved" and name in IN_PART:
            standing, text = "in part", IN_PART[name]
        counts[standing] += 1
        lines.append(f"{name:9} {standing:12} {text[:90] if standing == 'in part' or not proofs else ''}".rstrip())
        lines.extend(f"{'':9} {proof.outcome(record):12} {proof.test}" for proof in proofs)
    return [*lines, "", ", ".join(f"{count} {standing}" for standing, count in counts.items())]


def _standing(proofs: list[Proof], record: Mapping[str, Mapping[str, Any]]) -> str:
    passed = [proof for proof in proofs if proof.outcome(record) == "passed"]
    if passed:
        return "proved" if any(proof.outside for proof in passed) else "inside only"
    return "not yet"


def age(root: Path, collector: Collector, record: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What must be said about the results: there are none, or the code has changed since."""
    cases = {case for proofs in collector.proofs.values() for proof in proofs.values() for case in proof.cases}
    times = [record[case]["at"] for case in cases if case in record]
    if not times:
        return "No results: run `make test` first. The marks were checked."
    newest = max(path.stat().st_mtime for folder in ("src", "tests") for path in (root / folder).rglob("*.py"))
    if newest > min(times):
        return "Some results are older than the code: run `make test` again."
    return None


def main() -> int:
    collector = collect()
    record = read_record(ROOT / RECORD)
    print("\n".join(table(collector, record)))
    if said := age(ROOT, collector, record):
        print(said)
    for problem in collector.problems:
        print(problem, file=sys.stderr)
    return 1 if collector.problems else 0


if __name__ == "__main__":
    sys.exit(main())
