"""Bash tool under every kind of confinement."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.sandbox.jail import strongest_kind
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.shell import MAX_CHARS, shell_tools
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from guildhall.sandbox.jail import Kind
    from guildhall.tools.model import ToolResult

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")
Run = "Callable[..., ToolResult]"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def hall_home(tmp_path: Path) -> Path:
    folder = tmp_path / "hall-home"
    folder.mkdir()
    (folder / "hall.json").write_text("the user's token")
    return folder


@pytest.fixture
def bash(kind: Kind, work: Path, hall_home: Path) -> Callable[..., Coroutine[Any, Any, ToolResult]]:
    def call(command: str, *, network: bool = False, env: dict[str, str] | None = None, **more: Any) -> Any:
        view = View(cwd=work, folders=(Folder(path=work, is_writable=True),), hidden=(hall_home,))
        (tool,) = shell_tools(view, env or {}, network, kind=kind)
        return invoke(tool, {"command": command, **more})

    return call


def run(call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    return asyncio.run(call)


def test_a_command_runs_in_the_working_folder_and_changes_it(bash, work):
    result = run(bash("pwd; echo one > made.txt; mkdir d; mv made.txt d/; cat d/made.txt; echo oops >&2"))
    assert result.text == f"{work}\none\noops\n[exit code 0]"
    assert not result.is_error
    assert (work / "d" / "made.txt").read_text() == "one\n"


def test_a_nonzero_exit_code_is_an_error(bash):
    result = run(bash("echo before; exit 7"))
    assert result.is_error
    assert result.text == "before\n[exit code 7]"
    assert "[exit code 137]" in run(bash("kill -9 $$")).text


def test_standard_input_is_empty(bash):
    assert run(bash("cat; echo end")).text == "end\n[exit code 0]"


def test_a_command_gets_only_the_given_environment(bash, monkeypatch):
    monkeypatch.setenv("USER_SECRET", "hush")
    text = run(bash("env", env={"GIVEN": "yes", "GIT_DIR": "/elsewhere", "LD_PRELOAD": "/evil.so"})).text
    assert "GIVEN=yes" in text
    for absent in ("hush", "GIT_DIR", "LD_PRELOAD", "GUILDHALL_HOME"):
        assert absent not in text


def test_the_environment_is_not_visible_on_command_lines(bash):
    assert (
        "hush-hush"
        not in run(bash("cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '; true", env={"K": "hush-hush"})).text
    )


@pytest.mark.parametrize(
    "command",
    [
        "echo x > {outside}/made",
        "echo x >> {outside}/there",
        "truncate -s 0 {outside}/there",
        "rm {outside}/there",
        "mv {outside}/there here",
        "ln {outside}/there here",
        "chmod 777 {outside}/there",
        "ln -s {outside}/there link && echo x > link",
        "mkdir {outside}/new",
        "echo x > ../made",
        "echo x > /etc/made",
        "echo x > /usr/made",
        "mknod {outside}/device b 8 0",
    ],
)
def test_a_command_cannot_write_outside_of_its_folders(bash, command, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "there").write_text("kept")
    mode = (outside / "there").stat().st_mode
    result = run(bash(command.format(outside=outside)))
    assert result.is_error or command.endswith("../made")  # which is in a private /tmp with some kinds
    assert [entry.name for entry in outside.iterdir()] == ["there"]
    assert (outside / "there").read_text() == "kept"
    assert (outside / "there").stat().st_mode == mode
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "command",
    [
        "cat {home}/hall.json",
        "ls {home} | grep hall",
        "ln -s {home} h; cat h/hall.json",
        "cd {home} && cat hall.json",
        "cat ../hall-home/hall.json",
        "cat /proc/*/root{home}/hall.json",
        "cat /proc/*/cwd/hall.json",
        "tr '\\0' '\\n' < /proc/{pid}/environ | grep GUILDHALL_HOME",
    ],
)
def test_a_command_cannot_read_the_home(bash, hall_home, command, monkeypatch):
    monkeypatch.chdir(hall_home)
    result = run(bash(command.format(home=hall_home, pid=os.getpid())))
    assert result.is_error
    assert "token" not in result.text


def test_a_home_inside_a_writable_folder_stays_hidden(kind, work):
    home = work / "deep" / "home"
    home.mkdir(parents=True)
    (home / "hall.json").write_text("the user's token")
    (work / "key.pem").write_text("the user's token")
    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),), hidden=(home, work / "key.pem"))
    (tool,) = shell_tools(view, {}, False, kind=kind)
    for command in (
        "cat deep/home/hall.json",
        "mv deep moved",
        "rm -rf deep/home",
        "cat key.pem | grep .",
        "mv deep/home x",
    ):
        result = asyncio.run(invoke(tool, {"command": command}))
        assert result.is_error, command
        assert "token" not in result.text
    assert (home / "hall.json").read_text() == "the user's token"
    assert (work / "key.pem").read_text() == "the user's token"


def test_git_directories_are_read_only(kind, work):
    _git("init", "-q", str(work))
    nested = work / "sub" / "repository"
    nested.mkdir(parents=True)
    _git("init", "-q", str(nested))
    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),))
    (tool,) = shell_tools(view, {}, False, kind=kind)
    for command in (
        "echo x > .git/hooks/post-commit",
        "git config core.fsmonitor ./evil",
        "mv .git other",
        "rm -rf .git",
        "echo x >> sub/repository/.git/config",
    ):
        assert asyncio.run(invoke(tool, {"command": command})).is_error, command
    assert (work / ".git" / "HEAD").is_file()
    assert "evil" not in (work / ".git" / "config").read_text()
    result = asyncio.run(invoke(tool, {"command": "git -c safe.directory='*' status --short | head -3"}))
    assert not result.is_error


@pytest.mark.parametrize("network", [False, True])
def test_only_a_command_with_network_connects(bash, network):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run(bash(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached", network=network, timeout=5))
    assert ("reached" in result.text) is network
    assert result.is_error is not network


@pytest.mark.parametrize("network", [False, True])
def test_datagrams_need_network_and_local_sockets_are_never_reachable(bash, network, work):
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        listening.bind(str(work / "s"))
        listening.listen()
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        port = datagrams.getsockname()[1]
        result = run(bash(f"echo hello > /dev/udp/127.0.0.1/{port}; {_CONNECTS}", network=network))
        assert "connected" not in result.text
        if network:
            assert datagrams.recv(10) == b"hello\n"
        else:
            with pytest.raises(BlockingIOError):
                datagrams.recv(10)


_CONNECTS = """python3 -c '
import socket
for make in (lambda: socket.socket(socket.AF_UNIX), lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0]):
    try:
        make().connect("s")
        print("connected")
    except OSError as error:
        print(error)
'"""


@pytest.mark.parametrize(
    "command",
    [
        "sleep 300 &",
        "sleep 300 >/dev/null 2>&1 </dev/null &",
        "setsid sleep 300 >/dev/null 2>&1 &",
        "(setsid setsid nohup sleep 300 >/dev/null 2>&1 &) ; (trap '' TERM HUP; exec sleep 300) >/dev/null 2>&1 &",
    ],
)
def test_no_process_outlives_the_call(bash, command, work):
    with (work / "held").open("w+") as witness:
        started = time.monotonic()
        result = run(bash(f"exec 9<held; {command}\necho done"))
        assert time.monotonic() - started < 20
        assert result.text == "done\n[exit code 0]"
        _wait_until_closed(witness.name)


def test_the_time_limit_ends_all_processes(bash, work):
    (work / "held").touch()
    result = run(bash("exec 9<held; echo begun; setsid sleep 300 & sleep 300", timeout=0.5))
    assert result.is_error
    assert result.text == "begun\n[killed: the command took longer than the timeout of 0.5 s]"
    _wait_until_closed(str(work / "held"))


def test_cancelling_the_call_ends_all_processes(bash, work):
    async def cancel_call() -> None:
        task = asyncio.ensure_future(bash("exec 9<held; setsid sleep 300 & touch begun; sleep 300"))
        await _wait_for_file(work / "begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    (work / "held").touch()
    asyncio.run(cancel_call())
    _wait_until_closed(str(work / "held"))


def test_output_is_cut_in_the_middle(bash):
    result = run(bash("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last"))
    assert result.text.startswith("first\nxxx")
    assert result.text.endswith("xxx\nlast\n[exit code 0]")
    assert "left out ...]" in result.text
    assert len(result.text) < MAX_CHARS + 200


def test_output_over_the_limit_names_the_number_of_missing_characters(bash):
    text = run(bash(f"head -c {MAX_CHARS + 5} /dev/zero | tr '\\0' x")).text
    assert "[... 5 characters left out ...]" in text


def test_output_that_is_not_utf_8_is_replaced(bash):
    assert "\ufffd" in run(bash("printf '\\377\\376\\n'")).text


def test_memory_and_file_size_are_limited(kind, work):
    from guildhall.sandbox.jail import Confinement
    from guildhall.tools.builtin.shell import _Shell

    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),))
    shell = _Shell(Confinement(view=view, memory_bytes=200_000_000, file_bytes=1_000_000), kind)
    assert "MemoryError" in asyncio.run(shell.run("python3 -c 'x = bytearray(10**9)'")).text
    assert asyncio.run(shell.run("head -c 9000000 /dev/zero > big")).is_error
    assert (work / "big").stat().st_size <= 1_000_000


@pytest.mark.parametrize(
    "arguments", [{}, {"command": ""}, {"command": "ls", "timeout": 0}, {"command": "a\0b"}, {"cmd": "ls"}]
)
def test_invalid_arguments_give_an_error_result(work, arguments):
    (tool,) = shell_tools(View(cwd=work), {}, False)
    assert asyncio.run(invoke(tool, arguments)).is_error


def test_the_tool_declares_its_capabilities(work):
    (plain,) = shell_tools(View(cwd=work), {}, False)
    (online,) = shell_tools(View(cwd=work), {}, True)
    assert (plain.name, plain.runs_in, plain.repeatable) == ("Bash", "hall", False)
    assert plain.capabilities == {"proc.exec"}
    assert online.capabilities == {"proc.exec", "net"}
    assert "no network" in plain.description
    assert strongest_kind() is not None


def _git(*arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], check=True, env=env, capture_output=True)


async def _wait_for_file(path: Path) -> None:
    async with asyncio.timeout(5):
        while not path.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


def _wait_until_closed(path: str) -> None:
    """Wait until no other process has the file open."""
    deadline = time.monotonic() + 5
    while holders := _find_holders(path):
        assert time.monotonic() < deadline, holders
        time.sleep(0.01)


def _find_holders(path: str) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            links = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        found += [process.name for link in links if link == path]
    return found
