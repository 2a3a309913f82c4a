"""What every test stands on: a home of its own, a clean environment, no way out to the network, the real command.

Nothing here stands in for a part of the product. `guild` runs the installed command as a person would.
"""

from __future__ import annotations

import gc
import json
import os
import re
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import hypothesis
import pytest

import tests.blocked.sitecustomize  # noqa: F401 - importing it is what closes the network
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE, find_hall, find_hall_pid, stop
from tests import requirements
from tests.warm import Started, Warm

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from guildhall.hall.client.discovery import Address
    from tests.children import Place

ROOT = Path(__file__).parents[1]
BLOCKED = Path(__file__).parent / "blocked"
REQUIRE_ALL = "GUILDHALL_REQUIRE_ALL"

# What could reach a test from the person who runs it: keys, proxies, settings of git, of Python and of our own.
_SURPRISING = re.compile(
    r"(?i)^(GIT_|GUILDHALL_|PYTHON|XDG_|OTEL_|LOGFIRE_|ANTHROPIC_|OPENAI_|AZURE_|AWS_|GOOGLE_|GEMINI_|MISTRAL_|GROQ_|OLLAMA_"
    r"|CLAUDE|CODEX|CURSOR_|HF_|CO_API|TAVILY_|BRAVE_)|_(API_KEY|TOKEN|SECRET|BASE_URL)$|^(https?|all|no|ftp)_proxy$"
    r"|^(COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR.*|PAGER|EDITOR|VISUAL)$"
)
_KEPT = {REQUIRE_ALL, "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
# What a command started by a test gets; the rest of its environment is named by the test.
_PASSED_ON = re.compile(r"^(PATH|LANG|LC_\w+|TZ|TMPDIR|HOME|COVERAGE_\w+|PYTHONPYCACHEPREFIX)$")

for _name in [name for name in os.environ if _SURPRISING.search(name) and name not in _KEPT]:
    del os.environ[_name]
_REQUIRED = bool(os.environ.get(REQUIRE_ALL))

# Enough to find what is wrong within the time that the whole suite may take; HYPOTHESIS_PROFILE=deep looks further.
hypothesis.settings.register_profile("suite", max_examples=25, deadline=None)
hypothesis.settings.register_profile("deep", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def bare(**more: str) -> dict[str, str]:
    """The environment for a pytest inside a test: nothing is measured there, and no plug-in is loaded unasked."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return {**passed, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}


# Fixtures


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, _numbers: Iterator[int]) -> Path:
    """As pytest's own, which would look at the folders of all tests before to find a number that is free."""
    name = re.sub(r"\W", "_", request.node.name)[:25]  # the path of a socket in it may have 100 characters or so
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a person's folder and a home of its own, beside tmp_path so that they are in nobody's listing.

    What it does in its own process starts no hall: who means that has `guild_hall`."""
    person = tmp_path.with_name(f"{tmp_path.name}-person")
    person.mkdir()
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.setenv(HOME_VARIABLE, str(person / ".guild-hall"))
    monkeypatch.setenv(EMBEDDED_VARIABLE, "1")
    monkeypatch.delenv(REQUIRE_ALL, raising=False)


@pytest.fixture
def home() -> Home:
    """The home that the test's commands use; its folder does not exist yet."""
    return Home(Path(os.environ[HOME_VARIABLE]))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the person's, and the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Guild:
    """The real `guild` command, in a process of its own with a clean environment.

    It is a fork of a process that has imported everything (tests/warm.py); `installed`, it is the command as a person
    starts it.
    """

    def __init__(self, warm: Warm, scratch: Path, *, measured: bool) -> None:
        """`measured`: what its commands execute counts for the coverage, for which they take twice the time."""
        self._warm = warm
        self._scratch = scratch
        self._measured = measured
        self._started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        *arguments: str | Path,
        input: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 60,
    ) -> Ran:
        """Runs it to its end."""
        files = [self._scratch / name for name in ("input", "output", "errors")]
        for file, text in zip(files, (input, "", ""), strict=True):
            file.write_text(text, encoding="utf-8", errors="surrogateescape")
        words = [str(argument) for argument in arguments]
        place = str(cwd or Path.cwd())
        code = self._warm.run(words, env=self._surrounded(env), cwd=place, files=files, timeout=timeout)
        out, err = (file.read_bytes().decode("utf-8") for file in files[1:])
        if code is None:
            raise AssertionError(f"guild {arguments} did not end within {timeout} s\n{out}\n{err}")
        return Ran(code, out, err)

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        installed: bool = False,
    ) -> subprocess.Popen[str]:
        """Starts it, for a test that kills it or talks to it; it has its own process group and ends with the test."""
        words = [str(argument) for argument in arguments]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = self.begin(words, env=self._surrounded(env), cwd=cwd, installed=installed, **pipes)
        self._started.append(process)
        return process

    def begin(self, words: Sequence[str], *, installed: bool = False, **options: Any) -> subprocess.Popen[str]:
        """The command as a process that is the caller's to end. `options`: of subprocess.Popen."""
        if not installed:
            return Started(self._warm, words, **options)
        command = [str(Path(sys.executable).with_name("guild")), *words]
        return subprocess.Popen(command, text=True, encoding="utf-8", start_new_session=True, **options)

    def _surrounded(self, env: Mapping[str, str] | None) -> dict[str, str]:
        passed = {n: v for n, v in self.environment().items() if self._measured or not n.startswith("COVERAGE_")}
        return {**passed, **(env or {})}

    @staticmethod
    def environment() -> dict[str, str]:
        """What the command gets where the test names nothing. It is the hall itself, and no process is left behind."""
        passed = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
        home = os.environ.get(HOME_VARIABLE, "")
        return {**passed, HOME_VARIABLE: home, EMBEDDED_VARIABLE: "1", "PYTHONPATH": str(BLOCKED)}

    def end(self) -> None:
        for process in self._started:
            self._kill(process)
            process.wait(5)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None and not stream.closed:
                    stream.close()

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def warm() -> Generator[Warm]:
    """One for each process that runs tests."""
    process = Warm({**Guild.environment(), "PYTHONPATH": os.pathsep.join([str(BLOCKED), str(ROOT)])})
    yield process
    process.close()


@pytest.fixture
def guild(warm: Warm, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Guild]:
    """Runs the real command: `guild("ls", "--json").out`. What it executes is measured in every fourth test."""
    scratch = tmp_path.with_name(f"{tmp_path.name}-streams")
    scratch.mkdir()
    command = Guild(warm, scratch, measured=crc32(request.node.nodeid.encode()) % 4 == 0)
    yield command
    command.end()


class GuildWithHall(Guild):
    """The command as people have it: the hall is a process of its own, started by whichever command needs it first."""

    def environment(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().environment(), EMBEDDED_VARIABLE: "0"}

    def hall(self) -> Address:
        """The live one."""
        address = find_hall(Home(Path(os.environ[HOME_VARIABLE])))
        assert address is not None, "no hall is running"
        return address

    def kill_hall(self) -> Address:
        """As a power cut would end it; returns when it is gone."""
        address = self.hall()
        watched = os.pidfd_open(address.pid)
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        assert select.select([watched], [], [], 10)[0]
        os.close(watched)
        return address

    def end(self) -> None:
        super().end()
        if (pid := find_hall_pid(Home(Path(os.environ[HOME_VARIABLE])))) is not None:
            stop(pid)


@pytest.fixture
def guild_hall(warm: Warm, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[GuildWithHall]:
    """The same with a hall in a process of its own, which ends with the test."""
    scratch = tmp_path.with_name(f"{tmp_path.name}-streams")
    scratch.mkdir()
    command = GuildWithHall(warm, scratch, measured=crc32(request.node.nodeid.encode()) % 4 == 0)
    yield command
    command.end()


@pytest.fixture(scope="session")
def place() -> Generator[Place]:
    """A warm parent, one for each process that runs tests, and the event loop that it belongs to."""
    from tests.children import Place

    place = Place()
    yield place
    place.close()


# A skipped test is a failed one where all are required


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _require(report)
    requirements.note(item, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _require(report)
    return report


def _require(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _REQUIRED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE_ALL} is set, so this may not be skipped. {reason}"


# Requirements: which marked tests passed


def pytest_runtest_setup(item: pytest.Item) -> None:
    for problem in requirements.problems(item):
        pytest.fail(problem, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing of what is collected is ever garbage: it is not looked for there, neither meanwhile nor afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist only the controller sees every report
        config.pluginmanager.register(requirements.Recorder(ROOT), "requirements-recorder")
