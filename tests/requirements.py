"""Record which tests prove which requirements, and print a table.

tests/requirements.yaml contains the requirements. A test that proves one has the mark `@pytest.mark.req("DO-4")`. While
tests run, the Recorder writes the outcomes of the marked tests to `.requirements.json`. `python -m tests.requirements`
combines both and prints a table. A mark with an unknown id, or more than three ids on a test, fails that test and this
command. Only a passed test proves a requirement.
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

import guildhall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[1]
RECORD = ".requirements.json"
MAX_IDS = 3
_PROPERTY = "requirements"
_COMMANDS = frozenset({"guild", "guild_hall"})  # fixtures: the real command, without and with a hall process
_OVER_HTTP = {"tests.members.member_servers": {"connect_member", "serve_member"}}  # by module
# Requirements that are proved in part, with the proved part.
PARTLY_PROVED: dict[str, str] = {
    "AW-22": "Cursor with a stand-in only",
    "X-15": "all but trust and missing keys, which are reported where they occur",
}


@functools.cache
def load_requirements() -> Mapping[str, str]:
    """Return the text of each requirement by its id, in the order of the file."""
    from ruamel.yaml import YAML

    groups: Any = YAML(typ="safe").load(Path(__file__).with_name("requirements.yaml"))
    return {name: text for group in groups.values() for name, text in group.items()}


# While the tests run


def ids_of(item: pytest.Item) -> list[str]:
    """Return the ids in the marks of a test."""
    return sorted({str(name) for mark in item.iter_markers("req") for name in mark.args})


def find_problems(item: pytest.Item) -> list[str]:
    """Return the errors in the marks of a test."""
    ids = ids_of(item)
    found = [
        f"@req names {name}, which is not in tests/requirements.yaml" for name in ids if name not in load_requirements()
    ]
    if len(ids) > MAX_IDS:
        found.append(f"@req names {len(ids)} ids; a test proves at most {MAX_IDS}")
    if any(mark.kwargs or not mark.args for mark in item.iter_markers("req")):
        found.append('@req takes ids and nothing else: @pytest.mark.req("DO-4")')
    return found


def attach_ids(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the ids of a test to its report, which also returns from other processes."""
    if ids := ids_of(item):
        report.user_properties.append((_PROPERTY, ids))


class Recorder:
    """A pytest plug-in that stores the outcome of every marked test, and keeps earlier outcomes."""

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
    """Return the stored outcomes, or nothing if the file cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["tests"]
    except (OSError, ValueError, KeyError):
        return {}


# Report


@dataclass
class Proof:
    """A marked test function with all its cases."""

    test: str
    outside: bool  # through the command, the public API or the wire
    cases: list[str] = field(default_factory=list[str])

    def outcome(self, record: Mapping[str, Mapping[str, Any]]) -> str:
        """Return `passed` if every case passed, else the outcome of the first other case."""
        outcomes = [record.get(case, {}).get("outcome", "not run") for case in self.cases]
        return next((outcome for outcome in outcomes if outcome != "passed"), "passed")


class Collector:
    """A pytest plug-in that collects the marked tests and the errors in their marks."""

    def __init__(self) -> None:
        self.proofs: dict[str, dict[str, Proof]] = {}
        self.problems: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(f"{report.nodeid} cannot be collected")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.problems.extend(f"{item.nodeid}: {problem}" for problem in find_problems(item))
            test = item.nodeid.partition("[")[0]
            for name in ids_of(item):
                proof = self.proofs.setdefault(name, {}).setdefault(test, Proof(test, _is_outside(item)))
                proof.cases.append(item.nodeid)


def _is_outside(item: pytest.Item) -> bool:
    """Return True if a test uses the command, a member over HTTP, or a public name of the library.

    Fixtures and helpers of its file count too. An import alone does not.
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    used, public = _used_names(item.path)
    pending, seen = [item.name.partition("[")[0], *fixtures], set[str]()
    while pending:
        if (name := pending.pop()) not in seen:
            seen.add(name)
            pending += used.get(name, ())
    return bool(_COMMANDS & fixtures or public & seen)


@functools.cache
def _used_names(path: Path) -> tuple[Mapping[str, set[str]], set[str]]:
    """Return the names that each definition of a file uses, and its imported names that reach the program outside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    outside = {"guildhall": set(dir(guildhall)), **_OVER_HTTP}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in outside]
    public = {
        name.asname or name.name for node in imports for name in node.names if name.name in outside[node.module or ""]
    }
    definitions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return {one.name: {node.id for node in ast.walk(one) if isinstance(node, ast.Name)} for one in definitions}, public


def collect(arguments: Iterable[str] = ("tests",)) -> Collector:
    """Collect the marked tests without running them."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments], plugins=[collector])
    return collector


def format_table(collector: Collector, record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each requirement with its proofs, and then the totals."""
    lines: list[str] = []
    counts = {"proved": 0, "in part": 0, "inside only": 0, "not yet": 0}
    for name, text in load_requirements().items():
        proofs = list(collector.proofs.get(name, {}).values())
        status = _status(proofs, record)
        if status == "proved" and name in PARTLY_PROVED:
            status, text = "in part", PARTLY_PROVED[name]
        counts[status] += 1
        lines.append(f"{name:9} {status:12} {text[:90] if status == 'in part' or not proofs else ''}".rstrip())
        lines.extend(f"{'':9} {proof.outcome(record):12} {proof.test}" for proof in proofs)
    return [*lines, "", ", ".join(f"{count} {status}" for status, count in counts.items())]


def _status(proofs: list[Proof], record: Mapping[str, Mapping[str, Any]]) -> str:
    passed = [proof for proof in proofs if proof.outcome(record) == "passed"]
    if passed:
        return "proved" if any(proof.outside for proof in passed) else "inside only"
    return "not yet"


def describe_age(root: Path, collector: Collector, record: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a note if results are missing or older than the code, or None."""
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
    print("\n".join(format_table(collector, record)))
    if note := describe_age(ROOT, collector, record):
        print(note)
    for problem in collector.problems:
        print(problem, file=sys.stderr)
    return 1 if collector.problems else 0


if __name__ == "__main__":
    sys.exit(main())
