"""Requirements: marks are checked, outcomes are kept, and the table shows which requirements are proved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import requirements
from tests.conftest import inner_pytest_environment
from tests.requirements import Collector, Proof, describe_age, format_table, read_record

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "requirements.yaml"

CONFTEST = """
import pytest
from pathlib import Path
from tests import requirements

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    report = yield
    requirements.attach_ids(item, report)
    return report

def pytest_runtest_setup(item):
    for problem in requirements.find_problems(item):
        pytest.fail(problem, pytrace=False)

def pytest_configure(config):
    config.addinivalue_line("markers", "req(id): x")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(requirements.Recorder(Path(__file__).parent))
"""

TESTS = """
import pytest

@pytest.mark.req("DO-1", "DO-2")
def test_passes(): pass

@pytest.mark.req("DO-3")
def test_fails(): assert False

@pytest.mark.req("DO-3")
@pytest.mark.skip(reason="x")
def test_is_skipped(): pass

@pytest.mark.req("DO-4")
@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail(): assert False

@pytest.fixture
def breaks_afterwards():
    yield
    raise ValueError

@pytest.mark.req("DO-5")
def test_breaks_afterwards(breaks_afterwards): pass

@pytest.mark.req("DO-6")
@pytest.mark.parametrize("n", [1, 2])
def test_has_cases(n): assert n == 1

@pytest.mark.req("DO-6", "NO-1")
def test_names_an_unknown_id(): pass

@pytest.mark.req("DO-1", "DO-2", "DO-3", "DO-4")
def test_names_too_many(): pass

@pytest.mark.req
def test_names_none(): pass

def test_is_not_marked(): pass
"""


def run_tests(folder: Path, *arguments: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder, *arguments, folder],
        cwd=folder,
        env=inner_pytest_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2"]])
def test_only_a_passed_test_proves_a_requirement(tmp_path: Path, workers: list[str]):
    shown = run_tests(tmp_path, *workers)
    outcomes = {
        name.rpartition("::")[2]: kept["outcome"] for name, kept in read_record(tmp_path / ".requirements.json").items()
    }
    assert outcomes == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "skipped",
        "test_is_expected_to_fail": "xfailed",
        "test_breaks_afterwards": "failed",
        "test_has_cases[1]": "passed",
        "test_has_cases[2]": "failed",
        "test_names_an_unknown_id": "failed",
        "test_names_too_many": "failed",
    }
    assert "NO-1, which is not in" in shown
    assert "names 4 ids; a test proves at most 3" in shown
    assert "@req takes ids and nothing else" in shown


def test_a_partial_run_keeps_the_outcomes_of_other_tests(tmp_path: Path):
    run_tests(tmp_path)
    before = read_record(tmp_path / ".requirements.json")
    run_tests(tmp_path, "-k", "test_passes")
    after = read_record(tmp_path / ".requirements.json")
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == ["test_it.py::test_passes"]


def test_an_unreadable_record_is_empty(tmp_path: Path):
    assert read_record(tmp_path / "none") == {}
    (tmp_path / "broken").write_text("{")
    assert read_record(tmp_path / "broken") == {}
    (tmp_path / "other").write_text("{}")
    assert read_record(tmp_path / "other") == {}


def make_collector(*, outside: bool = True) -> Collector:
    collector = Collector()
    collector.proofs = {"DO-1": {"t.py::a": Proof("t.py::a", outside, ["t.py::a[1]", "t.py::a[2]"])}}
    return collector


def find_line(lines: list[str], name: str) -> str:
    return next(text for text in lines if text.startswith(f"{name} "))


def test_the_table_says_proved_inside_only_or_not_yet():
    passed = {"t.py::a[1]": {"outcome": "passed"}, "t.py::a[2]": {"outcome": "passed"}}
    assert "proved" in find_line(format_table(make_collector(), passed), "DO-1")
    assert "inside only" in find_line(format_table(make_collector(outside=False), passed), "DO-1")
    assert "not yet" in find_line(format_table(make_collector(), passed), "X-12")
    for other in ({"t.py::a[1]": {"outcome": "passed"}}, {**passed, "t.py::a[2]": {"outcome": "skipped"}}, {}):
        assert "not yet" in find_line(format_table(make_collector(), other), "DO-1")


def test_missing_and_outdated_results_are_reported(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "x.py").touch()
    now = time.time()
    os.utime(tmp_path / "src" / "x.py", (now, now))
    assert "No results" in (describe_age(tmp_path, make_collector(), {}) or "")
    assert "older than the code" in (describe_age(tmp_path, make_collector(), {"t.py::a[1]": {"at": now - 10}}) or "")
    assert describe_age(tmp_path, make_collector(), {"t.py::a[1]": {"at": now + 10}}) is None


def test_the_marks_of_a_file_are_collected_without_running_it():
    collector = requirements.collect(["tests/test_requirements.py"])
    assert collector.problems == []


OUTSIDE_TESTS = """
import pytest
from guildhall import Worker, __version__
from tests.members.member_servers import connect_member, make_member

@pytest.fixture
def guild(): ...

def run_worker(): return Worker.load("x")

@pytest.mark.req("DO-1")
def test_library(): run_worker()

@pytest.mark.req("DO-2")
def test_http(): connect_member("")

@pytest.mark.req("DO-3")
def test_command(guild): ...

@pytest.mark.req("DO-4")
def test_import_only(): make_member(__version__)
"""


def test_only_a_used_door_counts_as_outside(tmp_path: Path):
    (tmp_path / "test_doors.py").write_text(OUTSIDE_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = req(id): x\n")
    proofs = requirements.collect(["-c", str(tmp_path / "pytest.ini"), str(tmp_path / "test_doors.py")]).proofs
    outside = {name: [proof.outside for proof in tests.values()] for name, tests in proofs.items()}
    assert outside == {"DO-1": [True], "DO-2": [True], "DO-3": [True], "DO-4": [False]}


def test_the_requirements_are_equal_to_the_shared_file():
    copy = (ROOT / "tests" / "requirements.yaml").read_bytes()
    assert not SHARED.exists() or copy == SHARED.read_bytes()
    assert len(requirements.load_requirements()) > 100
    assert json.dumps(dict(requirements.load_requirements()))
