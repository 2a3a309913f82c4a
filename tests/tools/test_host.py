"""Tool host: a confined Python process that executes handlers, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox.view import Folder, View
from guildhall.tools.host.main import Host, built_in, load_toolbox, load_tools
from guildhall.tools.host.process import ToolHost
from guildhall.tools.host.protocol import HostSpec, to_frame
from guildhall.tools.model import Blob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.sandbox.jail import Kind

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")

TOOLBOX = '''
import asyncio, ctypes, os, socket, sys, time
from pathlib import Path
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob

@tool(repeatable=True)
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    print("adding", a, b)
    return a + b

@tool
async def later(seconds: float) -> str:
    """Wait, then return."""
    await asyncio.sleep(seconds)
    return "later"

@tool
def block(seconds: float, note: str = "") -> str:
    """Block the thread."""
    if note:
        Path(note).touch()
    time.sleep(seconds)
    return "woke"

@tool
async def block_badly(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)
    return "woke"

@tool
def leave(code: int) -> str:
    """Exit the process."""
    print("about to leave", file=sys.stderr)
    os._exit(code)

@tool
def crash() -> str:
    """Read an invalid address."""
    return str(ctypes.string_at(0))

@tool
def fail() -> str:
    """Raise an error."""
    raise ValueError("not today")

@tool
def grow(megabytes: int) -> int:
    """Allocate memory."""
    return len(bytearray(megabytes * 1_000_000))

@tool
def picture() -> Blob:
    """Return bytes."""
    return Blob(b"\\x89PNG", "image/png")

@tool
def huge() -> str:
    """Return more than a frame can hold."""
    return "x" * 70_000_000

@tool
def listing(path: str) -> list[str]:
    """List a folder."""
    return sorted(entry.name for entry in Path(path).iterdir())

@tool
def write(path: str) -> str:
    """Write a file."""
    Path(path).write_text("written")
    return "ok"

@tool
def connect(port: int) -> str:
    """Connect to loopback."""
    socket.create_connection(("127.0.0.1", port), 2).close()
    return "connected"

@tool
def modules() -> list[str]:
    """List the imported modules."""
    return sorted(name for name in sys.modules if "." not in name)

@tool
def environment() -> dict[str, str]:
    """Return the environment."""
    return dict(os.environ)

@tool
def scribble(data: str) -> str:
    """Write into every open descriptor."""
    for fd in range(3, 64):
        try:
            os.write(fd, bytes.fromhex(data))
        except OSError:
            pass
    time.sleep(20)
'''


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def toolbox(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "toolboxes" / "mine.py"
    path.parent.mkdir(parents=True)
    path.write_text(TOOLBOX)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.md").write_text("hello")
    return folder


@pytest.fixture
def spec(tmp_path: Path, toolbox: Path, work: Path) -> HostSpec:
    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),), hidden=(tmp_path / "home",))
    return HostSpec(view=view, toolboxes=(("mine", toolbox),))


def with_host(spec: HostSpec, use: Callable[[ToolHost], Awaitable[Any]], **more: Any) -> Any:
    """Start a host, pass it to `use`, close it and return the result of `use`."""

    async def main() -> Any:
        host = ToolHost(spec, **more)
        try:
            return await use(host)
        finally:
            await host.close()

    return asyncio.run(main())


def call_tool(spec: HostSpec, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
    return with_host(spec, lambda host: host.call(tool, arguments or {}), **more)


def change_spec(spec: HostSpec, **fields: Any) -> HostSpec:
    data = {**spec.as_dict(), **fields}
    return HostSpec.from_dict(json.loads(json.dumps(data)))


def test_the_spec_survives_json(spec):
    assert HostSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_a_host_describes_the_tools_of_toolbox_files(spec, kind):
    tools = {tool["name"]: tool for tool in with_host(spec, lambda host: host.describe(), kind=kind)}
    assert tools["add"]["description"] == "Adds two numbers."
    assert tools["add"]["repeatable"] is True
    assert tools["add"]["toolbox"] == "mine"
    assert tools["add"]["input_schema"]["required"] == ["a", "b"]
    assert tools["leave"]["capabilities"] == []


def test_a_host_executes_calls(spec, kind):
    async def use(host: ToolHost) -> None:
        assert (await host.call("add", {"a": 2, "b": 3})).text == "5"
        assert (await host.call("later", {"seconds": 0})).text == "later"
        assert (await host.call("picture", {})).content == (Blob(b"\x89PNG", "image/png"),)
        wrong = await host.call("add", {"a": "x"})
        assert wrong.is_error
        assert "b: this argument is required" in wrong.text
        assert (await host.call("ad", {})).text == "Unknown tool 'ad'. Did you mean 'add'?"
        assert (await host.call("fail", {})).text == "ValueError: not today"
        assert "too large" in (await host.call("huge", {})).text
        assert host._child is not None
        assert b"adding 2 3" in host._child._output

    with_host(spec, use, kind=kind)


def test_a_blocking_handler_does_not_block_other_calls(spec):
    async def use(host: ToolHost) -> None:
        await host.describe()
        blocked = [asyncio.ensure_future(host.call(name, {"seconds": 100})) for name in ("block", "block_badly")]
        results = await asyncio.gather(*(host.call("add", {"a": n, "b": 1}) for n in range(20)))
        assert [result.text for result in results] == [str(n + 1) for n in range(20)]
        assert not any(task.done() for task in blocked)
        await host.close()
        for task in blocked:
            assert (await task).text == "The tool host was closed."

    with_host(spec, use)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("leave", {"code": 7}, "exited with code 7"),
        ("leave", {"code": 0}, "exited with code 0"),
        ("crash", {}, "was killed by SIGSEGV"),
    ],
)
def test_a_crash_gives_an_error_result_and_the_next_call_a_new_host(spec, kind, tool, arguments, message):
    async def use(host: ToolHost) -> None:
        await host.describe()
        other = asyncio.ensure_future(host.call("block", {"seconds": 100}))
        await asyncio.sleep(0)
        result = await host.call(tool, arguments)
        assert result.is_error
        assert message in result.text
        assert (await other).is_error
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"

    with_host(spec, use, kind=kind)


def test_a_crash_error_contains_the_last_output(spec):
    assert "about to leave" in call_tool(spec, "leave", {"code": 1}).text


def test_a_killed_host_gives_an_error_result_and_is_replaced(spec):
    async def use(host: ToolHost) -> None:
        await host.describe()
        waiting = asyncio.ensure_future(host.call("block", {"seconds": 100}))
        await asyncio.sleep(0.05)
        assert host._child is not None
        host._child._confined.process.send_signal(signal.SIGKILL)
        assert "was killed by SIGKILL" in (await waiting).text
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"

    with_host(spec, use)


def test_memory_is_limited(spec, kind):
    limited = change_spec(spec, memory_bytes=300_000_000)
    assert call_tool(limited, "grow", {"megabytes": 1}, kind=kind).text == "1000000"
    result = call_tool(limited, "grow", {"megabytes": 2_000}, kind=kind)
    assert result.is_error
    assert "MemoryError" in result.text


def test_a_call_beyond_its_time_limit_kills_the_host(spec, kind):
    async def use(host: ToolHost) -> None:
        await host.describe()
        other = asyncio.ensure_future(host.call("later", {"seconds": 100}))
        await asyncio.sleep(0)  # the other call keeps the default timeout
        host._call_timeout_s = 0.2
        result = await host.call("block", {"seconds": 100})
        assert result.text == "block took longer than 0.2 s and was killed."
        assert "was killed, because block took longer" in (await other).text
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"

    with_host(spec, use, kind=kind)


def test_cancelling_a_call_kills_the_host(spec, kind, work):
    writing = change_spec(spec, capabilities=["fs.write"])

    async def use(host: ToolHost) -> None:
        task = asyncio.ensure_future(host.call("block", {"seconds": 100, "note": str(work / "begun")}))
        async with asyncio.timeout(5):
            while not (work / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert host._child is not None
        process = host._child._confined.process
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert process.returncode is not None
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"

    with_host(writing, use, kind=kind)


def test_a_closed_host_refuses_calls(spec):
    async def use(host: ToolHost) -> None:
        await host.close()
        await host.close()
        assert "the run has ended" in (await host.call("add", {})).text
        with pytest.raises(ToolUnavailable, match="the run has ended"):
            await host.describe()

    with_host(spec, use)
    with_host(spec, lambda host: asyncio.sleep(0))


# Confinement


def test_a_host_without_capabilities_reads_no_folder(spec, kind, work, tmp_path):
    async def use(host: ToolHost) -> None:
        for path in (work, tmp_path / "home", tmp_path / "home" / "toolboxes", Path.home()):
            assert (await host.call("listing", {"path": str(path)})).is_error, path

    with_host(spec, use, kind=kind)


def test_fs_read_allows_reading_only(spec, kind, work, tmp_path):
    async def use(host: ToolHost) -> None:
        assert (await host.call("listing", {"path": str(work)})).text == '["note.md"]'
        assert (await host.call("write", {"path": str(work / "new")})).is_error
        assert (await host.call("listing", {"path": str(tmp_path / "home")})).is_error

    with_host(change_spec(spec, capabilities=["fs.read"]), use, kind=kind)
    assert not (work / "new").exists()


def test_fs_write_allows_writing_in_writable_folders_only(spec, kind, work):
    import guildhall

    own = [Path(guildhall.__file__).parent, Path(sys.prefix), Path(sys.base_prefix)]

    async def use(host: ToolHost) -> None:
        assert (await host.call("write", {"path": str(work / "new")})).text == "ok"
        for folder in own:
            assert (await host.call("write", {"path": str(folder / "evil.py")})).is_error

    writing = change_spec(spec, capabilities=["fs.write"])
    with_host(writing, use, kind=kind)
    assert (work / "new").read_text() == "written"
    assert not any((folder / "evil.py").exists() for folder in own)
    view = {**spec.as_dict()["view"]}
    view["folders"] = [{**view["folders"][0], "is_writable": False}]
    assert call_tool(change_spec(writing, view=view), "write", {"path": str(work / "more")}, kind=kind).is_error


@pytest.mark.parametrize("capabilities", [[], ["net"]])
def test_only_hosts_with_net_have_network_access(spec, kind, capabilities):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = call_tool(change_spec(spec, capabilities=capabilities), "connect", {"port": port}, kind=kind)
    assert result.is_error is not bool(capabilities)


def test_a_host_gets_only_the_declared_environment(spec, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-hush")
    found = json.loads(call_tool(change_spec(spec, env={"GIVEN": "yes"}), "environment").text)
    assert found["GIVEN"] == "yes"
    assert "ANTHROPIC_API_KEY" not in found
    assert "GUILDHALL_HOME" not in found


def test_a_host_imports_only_needed_modules(spec):
    found = set(json.loads(call_tool(spec, "modules").text))
    assert not found & {"pydantic_ai", "sqlalchemy", "httpx2", "jsonschema", "starlette", "ruamel", "jinja2"}


def test_a_host_executes_the_named_built_in_tools(spec, work, kind):
    builtin = change_spec(spec, builtin=["Read", "Write", "Grep"], toolboxes=[], capabilities=["fs.read", "fs.write"])

    async def use(host: ToolHost) -> None:
        assert await host.describe() == []
        assert "hello" in (await host.call("Read", {"file_path": "note.md"})).text
        assert "note.md" in (await host.call("Grep", {"pattern": "hel+o"})).text
        assert not (await host.call("Write", {"file_path": "made.md", "content": "new"})).is_error
        assert (work / "made.md").read_text() == "new"
        assert (await host.call("Edit", {})).is_error

    with_host(builtin, use, kind=kind)


def test_a_host_executes_sandbox_and_web_tools(spec, work):
    view = {**spec.as_dict()["view"]}
    view["folders"] = [{**view["folders"][0], "name": "notes"}]
    both = change_spec(
        spec, view=view, builtin=["sandbox_list", "WebFetch"], toolboxes=[], capabilities=["fs.read", "fs.write", "net"]
    )

    async def use(host: ToolHost) -> None:
        assert "note.md" in (await host.call("sandbox_list", {"sandbox": "notes"})).text
        assert "not a public address" in (await host.call("WebFetch", {"url": "http://127.0.0.1:8080/"})).text

    with_host(both, use)


# Invalid toolbox files


INVALID_FILES = pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("import os\nimport not_there_at_all\n", 2, "ModuleNotFoundError"),
        ("x = 1\ndef broken(:\n", 2, "SyntaxError"),
        ("\n\n1 / 0\n", 3, "ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", 2, "SystemExit"),
        ("from guildhall.tools.definition import tool\n@tool\ndef f(x): 'Doc.'\n", 2, "has no type"),
        ("def deep():\n    open('/not/there')\ndeep()\n", 2, "cannot load the toolbox"),
        ("x = 1\n", None, "defines no tools"),
        ("x = '\0'\n", None, "cannot load the toolbox"),
    ],
)


@INVALID_FILES
def test_an_invalid_toolbox_file_is_reported_with_its_line(spec, toolbox, source, line, message):
    toolbox.write_text(source)
    with pytest.raises(ToolUnavailable) as raised:
        with_host(spec, lambda host: host.describe())
    assert raised.value.where == (f"{toolbox}:{line}" if line else str(toolbox))
    assert message in str(raised.value)
    assert message in call_tool(spec, "add").text


def test_a_file_that_exits_while_loading_is_reported_with_its_output(spec, toolbox):
    toolbox.write_text("import os\nprint('bye')\nos._exit(0)\n")
    with pytest.raises(ToolUnavailable, match="exited before it was ready\nbye"):
        with_host(spec, lambda host: host.describe())


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"#" * 2_000_001])
def test_an_unreadable_file_is_reported_with_its_path(spec, toolbox, content):
    toolbox.unlink() if content is None else toolbox.write_bytes(content)
    with pytest.raises(ToolUnavailable) as raised:
        with_host(spec, lambda host: host.describe())
    assert raised.value.where == str(toolbox)


def test_a_restarted_host_runs_the_same_source(spec, toolbox):
    async def use(host: ToolHost) -> None:
        await host.describe()
        toolbox.write_text(TOOLBOX.replace("a + b", "a * b"))
        await host.call("leave", {"code": 1})
        assert (await host.call("add", {"a": 3, "b": 4})).text == "7"

    with_host(spec, use)


def test_a_toolbox_object_selects_tools_and_names_are_unique(tmp_path, spec, toolbox):
    source = textwrap.dedent('''
        from guildhall.tools.definition import tool
        from guildhall.tools.model import Toolbox
        @tool
        def one() -> str:
            """One."""
        @tool
        def two() -> str:
            """Two."""
        again = two
    ''')
    assert [tool.name for tool in load_toolbox("t", "t.py", f"{source}toolbox = Toolbox('t', one)\n").tools] == ["one"]
    assert [tool.name for tool in load_toolbox("t", "t.py", source).tools] == ["one", "two"]
    second = tmp_path / "second.py"
    second.write_text(TOOLBOX)
    twice = change_spec(spec, toolboxes=[["mine", str(toolbox)], ["second", str(second)]])
    with pytest.raises(ToolUnavailable, match="two tools are named 'add'"):
        with_host(twice, lambda host: host.describe())
    with pytest.raises(ToolUnavailable, match="unknown built-in tool 'Raed'"):
        with_host(change_spec(spec, builtin=["Raed", "Read"]), lambda host: host.describe())


# Hostile hosts


@pytest.mark.parametrize(
    "data",
    [
        b"garbage that is no length and no JSON",
        struct.pack("!I", 0xFFFFFFFF),
        struct.pack("!I", 4) + b"null",
        struct.pack("!I", 2) + b"{}",
        struct.pack("!I", 14) + b'{"id":[1,2,3]}',
        to_frame({"id": 1, "result": {"content": [{"type": "blob", "data": "!", "media_type": 1}], "is_error": False}}),
        to_frame({"id": 1, "result": {"content": [], "is_error": 0}}),
        to_frame({"id": 1, "result": {"content": 7, "is_error": False}}),
        to_frame({"id": 1, "result": {"content": [], "is_error": False, "file_before": {}}}),
        to_frame({"id": 1, "result": "x"}),
        struct.pack("!I", 100_000) + b"[" * 100_000,
    ],
)
def test_forged_answers_of_a_handler_harm_only_its_host(spec, data):
    async def use(host: ToolHost) -> None:
        result = await host.call("scribble", {"data": data.hex()})
        assert result.is_error
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"

    with_host(spec, use)


GOOD = {"name": "t", "toolbox": "m", "description": "d", "input_schema": {}, "capabilities": [], "repeatable": False}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"tools": "x"},
        {"tools": ["x"]},
        {"tools": [{**GOOD, "capabilities": ["everything"]}]},
        {"tools": [{**GOOD, "capabilities": [[]]}]},
        {"tools": [{**GOOD, "name": "../x"}]},
        {"tools": [{**GOOD, "input_schema": None}]},
        {"error": "x"},
        {"error": {"message": 1}},
        {"error": {"message": "forged", "hint": 1, "where": []}},
    ],
)
def test_a_forged_description_of_a_file_is_rejected(spec, toolbox, answer):
    data = to_frame(answer).hex()
    toolbox.write_text(f"""
import os
for fd in range(3, 64):
    try:
        os.write(fd, bytes.fromhex({data!r}))
    except OSError:
        pass
""")
    with pytest.raises(ToolUnavailable):
        with_host(spec, lambda host: host.describe())


def test_a_tool_with_an_unknown_capability_is_rejected(spec, toolbox):
    toolbox.write_text("""
from guildhall.tools.model import Tool
mine = Tool(name="mine", description="d", input_schema={}, handler=print, capabilities=frozenset({"everything"}))
""")
    with pytest.raises(ToolUnavailable, match="with these capabilities only"):
        with_host(spec, lambda host: host.describe())


def test_answers_with_an_unknown_id_are_ignored(spec):
    forged = to_frame({"id": 999, "result": {"content": [], "is_error": False}})

    async def use(host: ToolHost) -> None:
        task = asyncio.ensure_future(host.call("scribble", {"data": forged.hex()}))
        await asyncio.sleep(0.05)
        assert (await host.call("add", {"a": 1, "b": 1})).text == "2"
        assert not task.done()
        await host.close()
        await task

    with_host(spec, use)


# Crash of the hall


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_hall_leaves_no_host_behind(spec, kind, work):
    program = f"""
import asyncio, json, sys
from guildhall.tools.host.process import ToolHost
from guildhall.tools.host.protocol import HostSpec
async def main():
    host = ToolHost(HostSpec.from_dict(json.loads(sys.stdin.read())), kind={kind!r})
    await host.describe()
    asyncio.ensure_future(host.call("block", {{"seconds": 300, "note": "begun"}}))
    await asyncio.sleep(300)
asyncio.run(main())
"""
    writing = change_spec(spec, capabilities=["fs.write"])
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    parent.stdin.write(json.dumps(writing.as_dict()))
    parent.stdin.close()
    _wait_until(lambda: (work / "begun").exists())
    children = _descendants(parent.pid)
    assert children
    parent.kill()
    parent.wait()
    _wait_until(lambda: not any(_is_alive(child) for child in children))


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _descendants(root: int) -> list[int]:
    parents = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# The code of the host, executed in this process: coverage does not measure the confined process


def test_the_host_loop_answers_until_the_hall_disconnects(spec):
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Host(theirs).serve)
    thread.start()
    ours.settimeout(5)
    ours.sendall(to_frame({"spec": spec.as_dict(), "sources": {"mine": TOOLBOX}}))
    assert "add" in [tool["name"] for tool in _receive_answer(ours)["tools"]]
    ours.sendall(to_frame({"id": 1, "tool": "add", "arguments": {"a": 1, "b": 2}}))
    assert _receive_answer(ours) == {"id": 1, "result": {"content": [{"type": "text", "text": "3"}], "is_error": False}}
    ours.sendall(to_frame({"id": 2, "tool": "nothing", "arguments": {}}))
    assert _receive_answer(ours)["result"]["is_error"] is True
    ours.sendall(to_frame({"id": 3, "tool": "huge", "arguments": {}}))
    assert "too large" in _receive_answer(ours)["result"]["content"][0]["text"]
    ours.close()
    thread.join(5)
    assert not thread.is_alive()
    theirs.close()


def test_the_host_loop_ends_without_a_hall(spec):
    for sent in (b"", struct.pack("!I", 10) + b"half"):
        ours, theirs = socket.socketpair()
        ours.sendall(sent)
        ours.close()
        Host(theirs).serve()
        theirs.close()


@INVALID_FILES
def test_loading_an_invalid_toolbox_names_file_and_line(source, line, message):
    with pytest.raises(ToolUnavailable) as raised:
        load_toolbox("wrong", "wrong.py", source)
    assert raised.value.where == (f"wrong.py:{line}" if line else "wrong.py")
    assert message in str(raised.value)


def test_the_host_creates_only_the_named_built_in_tools(spec):
    wanted = ["Glob", "Read", "WebFetch"]
    assert list(built_in(wanted, spec.view)) == wanted
    assert {toolbox for toolbox, _ in load_tools(change_spec(spec, builtin=wanted), {"mine": TOOLBOX})} == {"mine"}
    assert list(built_in(["sandbox_list"], spec.view)) == ["sandbox_list"]
    ours, theirs = socket.socketpair()
    twice = change_spec(spec, toolboxes=[["mine", "a.py"], ["other", "b.py"]])
    ours.sendall(to_frame({"spec": twice.as_dict(), "sources": {"mine": TOOLBOX, "other": TOOLBOX}}))
    Host(theirs).serve()
    assert "two tools are named 'add'" in _receive_answer(ours)["error"]["message"]
    ours.close()
    theirs.close()


@pytest.mark.parametrize("arguments", [{}, {"file_path": 1}, {"nothing": ""}, {"file_path": ["a"], "content": None}])
def test_a_host_survives_invalid_arguments_of_built_in_tools(spec, arguments):
    """Normally the hall rejects such arguments before it calls the host."""
    builtin = change_spec(spec, builtin=["Read", "Write"], toolboxes=[], capabilities=["fs.read", "fs.write"])

    async def use(host: ToolHost) -> None:
        assert (await host.call("Write", arguments)).is_error
        assert "hello" in (await host.call("Read", {"file_path": "note.md"})).text

    with_host(builtin, use)


def test_the_host_loop_reports_an_unknown_built_in_tool(spec):
    ours, theirs = socket.socketpair()
    ours.sendall(to_frame({"spec": change_spec(spec, builtin=["Nothing"]).as_dict(), "sources": {"mine": TOOLBOX}}))
    Host(theirs).serve()
    assert _receive_answer(ours)["error"]["code"] == "tool_unavailable"
    ours.close()
    theirs.close()


def _receive_answer(connection: socket.socket) -> Any:
    (size,) = struct.unpack("!I", _receive_exactly(connection, 4))
    return json.loads(_receive_exactly(connection, size))


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def test_restarts_leak_no_file_descriptors(spec):
    async def use(host: ToolHost) -> None:
        for _ in range(3):
            await host.call("leave", {"code": 1})

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with_host(spec, use)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
