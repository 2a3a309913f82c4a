"""Fixtures for all tests: a private home, a clean environment, no network, the real command.

Nothing here replaces a part of the product. `guild` runs the installed command like a user.
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
from tests.warm import StartedCommand, WarmProcess

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from guildhall.hall.client.discovery import Address
    from tests.run_processes import ForkServerLoop

ROOT = Path(__file__).parents[1]
BLOCKED = Path(__file__).parent / "blocked"
REQUIRE_ALL = "GUILDHALL_REQUIRE_ALL"

# Variables of the developer that must not reach a test: keys, proxies, and settings of git, Python and Guildhall.
_REMOVED_VARIABLES = re.compile(
    r"(?i)^(GIT_|GUILDHALL_|PYTHON|XDG_|OTEL_|LOGFIRE_|ANTHROPIC_|OPENAI_|AZURE_|AWS_|GOOGLE_|GEMINI_|MISTRAL_|GROQ_|OLLAMA_"
    r"|CLAUDE|CODEX|CURSOR_|HF_|CO_API|TAVILY_|BRAVE_)|_(API_KEY|TOKEN|SECRET|BASE_URL)$|^(https?|all|no|ftp)_proxy$"
    r"|^(COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR.*|PAGER|EDITOR|VISUAL)$"
)
_KEPT_VARIABLES = {REQUIRE_ALL, "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
# Variables that commands inherit. The test sets all others.
_INHERITED_VARIABLES = re.compile(r"^(PATH|LANG|LC_\w+|TZ|TMPDIR|HOME|COVERAGE_\w+|PYTHONPYCACHEPREFIX)$")

for _name in [name for name in os.environ if _REMOVED_VARIABLES.search(name) and name not in _KEPT_VARIABLES]:
    del os.environ[_name]
_IS_ALL_REQUIRED = bool(os.environ.get(REQUIRE_ALL))

# `suite` keeps the whole suite fast. HYPOTHESIS_PROFILE=deep tries more examples.
hypothesis.settings.register_profile("suite", max_examples=25, deadline=None)
hypothesis.settings.register_profile("deep", max_examples=1000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def inner_pytest_environment(**more: str) -> dict[str, str]:
    """Return the environment for a pytest inside a test, without coverage and without automatic plug-ins."""
    passed = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return {**passed, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}


# Fixtures


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, _numbers: Iterator[int]) -> Path:
    """Replace the fixture of pytest, which scans the folders of all earlier tests for a free number."""
    name = re.sub(r"\W", "_", request.node.name)[:25]  # the path of a socket can have about 100 characters
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def _private_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a private home directory and a private home, beside tmp_path so that listings of it stay empty.

    Code in the test process starts no hall; tests that need one use `guild_hall`.
    """
    person = tmp_path.with_name(f"{tmp_path.name}-person")
    person.mkdir()
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.setenv(HOME_VARIABLE, str(person / ".guild-hall"))
    monkeypatch.setenv(EMBEDDED_VARIABLE, "1")
    monkeypatch.delenv(REQUIRE_ALL, raising=False)


@pytest.fixture
def home() -> Home:
    """Return the home of the commands of the test. Its folder does not exist yet."""
    return Home(Path(os.environ[HOME_VARIABLE]))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty folder, and make it the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Guild:
    """The real `guild` command, in a separate process with a clean environment.

    The process is forked from one that has imported everything (tests/warm.py). With `installed`, the installed command
    is started.
    """

    def __init__(self, warm: WarmProcess, scratch: Path, *, measured: bool) -> None:
        """With `measured`, the coverage of the commands is measured, which doubles their time."""
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
    ) -> CommandResult:
        """Run a command to its end."""
        files = [self._scratch / name for name in ("input", "output", "errors")]
        for file, text in zip(files, (input, "", ""), strict=True):
            file.write_text(text, encoding="utf-8", errors="surrogateescape")
        words = [str(argument) for argument in arguments]
        folder = str(cwd or Path.cwd())
        code = self._warm.run(words, env=self._environment_with(env), cwd=folder, files=files, timeout=timeout)
        out, err = (file.read_bytes().decode("utf-8") for file in files[1:])
        if code is None:
            raise AssertionError(f"guild {arguments} did not end within {timeout} s\n{out}\n{err}")
        return CommandResult(code, out, err)

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        installed: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a command in its own process group. It ends with the test."""
        words = [str(argument) for argument in arguments]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = self.begin(words, env=self._environment_with(env), cwd=cwd, installed=installed, **pipes)
        self._started.append(process)
        return process

    def begin(self, words: Sequence[str], *, installed: bool = False, **options: Any) -> subprocess.Popen[str]:
        """Start a command that the caller must end. `options` are passed to subprocess.Popen."""
        if not installed:
            return StartedCommand(self._warm, words, **options)
        command = [str(Path(sys.executable).with_name("guild")), *words]
        return subprocess.Popen(command, text=True, encoding="utf-8", start_new_session=True, **options)

    def _environment_with(self, env: Mapping[str, str] | None) -> dict[str, str]:
        passed = {n: v for n, v in self.environment().items() if self._measured or not n.startswith("COVERAGE_")}
        return {**passed, **(env or {})}

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the default environment of a command, in which it runs the hall itself and leaves no process."""
        passed = {name: value for name, value in os.environ.items() if _INHERITED_VARIABLES.match(name)}
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
def warm() -> Generator[WarmProcess]:
    """Start a process to fork commands from, once for each test process."""
    process = WarmProcess({**Guild.environment(), "PYTHONPATH": os.pathsep.join([str(BLOCKED), str(ROOT)])})
    yield process
    process.close()


@pytest.fixture
def guild(warm: WarmProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Guild]:
    """Run the real command: `guild("ls", "--json").out`. Coverage is measured in every fourth test."""
    scratch = tmp_path.with_name(f"{tmp_path.name}-streams")
    scratch.mkdir()
    command = Guild(warm, scratch, measured=crc32(request.node.nodeid.encode()) % 4 == 0)
    yield command
    command.end()


class GuildWithHall(Guild):
    """The command as users have it: the first command that needs a hall starts its process."""

    def environment(self) -> dict[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {**super().environment(), EMBEDDED_VARIABLE: "0"}

    def hall(self) -> Address:
        """Return the address of the running hall."""
        address = find_hall(Home(Path(os.environ[HOME_VARIABLE])))
        assert address is not None, "no hall is running"
        return address

    def kill_hall(self) -> Address:
        """Kill the hall process, wait for its end, and return its address."""
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
def guild_hall(warm: WarmProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Generator[GuildWithHall]:
    """Run the real command with a hall process, which ends with the test."""
    scratch = tmp_path.with_name(f"{tmp_path.name}-streams")
    scratch.mkdir()
    command = GuildWithHall(warm, scratch, measured=crc32(request.node.nodeid.encode()) % 4 == 0)
    yield command
    command.end()


@pytest.fixture(scope="session")
def fork_loop() -> Generator[ForkServerLoop]:
    """Start a fork server and its event loop, once for each test process."""
    from tests.run_processes import ForkServerLoop

    fork_loop = ForkServerLoop()
    yield fork_loop
    fork_loop.close()


# With GUILDHALL_REQUIRE_ALL, a skipped test fails


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _require(report)
    requirements.attach_ids(item, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        _require(report)
    return report


def _require(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _IS_ALL_REQUIRED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE_ALL} is set, so this may not be skipped. {reason}"


# Requirements


def pytest_runtest_setup(item: pytest.Item) -> None:
    for problem in requirements.find_problems(item):
        pytest.fail(problem, pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Exclude the collected tests from garbage collection, because they live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist only the controller sees every report
        config.pluginmanager.register(requirements.Recorder(ROOT), "requirements-recorder")
