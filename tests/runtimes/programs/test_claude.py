"""How Claude Code is started and understood; and the real one, at doors that are not as they should be."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import RuntimeFailed, RuntimeToolless
from guildhall.rpc.listener import Listener
from guildhall.runtimes.discovery import Programs
from guildhall.runtimes.model import Assignment, Attachment, DoorAccess
from guildhall.runtimes.programs.claude import Claude
from guildhall.runtimes.programs.runtime import ProgramRuntime
from tests.clis import claude_program

if TYPE_CHECKING:
    import socket

    from guildhall.runtimes.model import ProgramHooks
    from guildhall.runtimes.programs.process import Launch

HOME = Path("/its/place")


async def nothing() -> None:
    return None


def entry(*servers: str) -> DoorAccess:
    return DoorAccess(
        token="s3cret", servers=servers, has_calls=lambda: False, wait_for_calls=nothing, close=lambda: None
    )


def launch(model: str = "", **fields: Any) -> Launch:
    assignment = Assignment(**{"system_prompt": "Be ${X}.", "first_message": "Go.", "tools": (), **fields})
    return Claude().launch(assignment, entry("tools", "room"), "http://127.0.0.1:7420", HOME, model)


def option(how: Launch, name: str) -> str:
    return how.argv[how.argv.index(name) + 1]


def first(how: Launch) -> list[dict[str, Any]]:
    assert how.stdin is not None
    return json.loads(how.stdin)["message"]["content"]


def test_it_has_no_tools_no_settings_and_no_servers_but_ours() -> None:
    how = launch()
    assert (option(how, "--tools"), option(how, "--setting-sources")) == ("", "")
    assert {"--print", "--strict-mcp-config", "--disable-slash-commands", "--bare"} <= set(how.argv)
    assert option(how, "--permission-mode") == "bypassPermissions"
    servers = json.loads(how.files["mcp.json"])["mcpServers"]
    assert {name: server["url"] for name, server in servers.items()} == {
        "tools": "http://127.0.0.1:7420/mcp/tools/",
        "room": "http://127.0.0.1:7420/mcp/room/",
    }
    assert how.files["prompt.md"] == "Be ${X}."
    assert option(how, "--system-prompt-file") == f"{HOME}/prompt.md"


def test_the_token_is_in_its_environment_and_nowhere_else() -> None:
    how = launch()
    assert "s3cret" not in str((how.argv, how.files, how.stdin))
    secret = {name for name, value in how.env.items() if value == "s3cret"}
    assert secret == {"GUILDHALL_TOKEN", "ANTHROPIC_API_KEY"}  # with a login too: that is behind the door


def test_it_is_told_the_model_or_one_that_it_knows() -> None:
    assert option(launch(model="claude-opus-4-5"), "--model") == "claude-opus-4-5"
    assert option(launch(), "--model").startswith("claude-")


def test_files_come_after_the_first_message_each_as_what_it_is() -> None:
    files = (
        Attachment(name="a.txt", media_type="text/plain", data=b"one\ntwo"),
        Attachment(name="b.png", media_type="image/png", data=b"\x89PNG"),
        Attachment(name="c.pdf", media_type="application/pdf", data=b"%PDF"),
    )
    blocks = first(launch(attachments=files))
    assert [block["type"] for block in blocks] == ["text", "text", "text", "text", "image", "text", "document"]
    assert blocks[0]["text"] == "Go."
    assert "one\ntwo" in blocks[2]["text"]
    source = blocks[6]["source"]
    assert (source["media_type"], base64.b64decode(source["data"])) == ("application/pdf", b"%PDF")
    assert first(launch()) == [{"type": "text", "text": "Go."}]


@pytest.mark.parametrize("status", ["failed", "pending", "needs-auth", "disabled"])
def test_servers_that_it_did_not_reach_end_the_run(status: str) -> None:
    servers = [{"name": "tools", "status": status}, {"name": "room", "status": "connected"}]
    said = Claude().read({"type": "system", "subtype": "init", "mcp_servers": servers})
    assert said is not None
    assert isinstance(said.error, RuntimeToolless)
    assert f"tools ({status})" in said.error.message
    assert "room" not in said.error.message
    assert Claude().read({"type": "system", "subtype": "init", "mcp_servers": servers[1:]}) is None


def test_its_end_is_read_by_whether_it_is_an_error_not_by_its_name() -> None:
    said = Claude().read({"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 400 no"})
    assert said is not None
    assert isinstance(said.error, RuntimeFailed)
    assert "API Error: 400 no" in said.error.message
    for more in ({"errors": ["a", "b"]}, {"terminal_reason": "max_turns"}, {"subtype": "error_during_execution"}):
        said = Claude().read({"type": "result", "is_error": True, **more})
        assert said is not None
        assert said.error is not None
    done = Claude().read({"type": "result", "subtype": "success", "is_error": False, "result": "hello"})
    assert done is not None
    assert (done.error, done.text) == (None, None)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"type": 1},
        {"type": "system", "subtype": "init"},
        {"type": "system", "subtype": "init", "mcp_servers": None},
        {"type": "system", "subtype": "init", "mcp_servers": [None, 1, {}, {"status": {}}]},
        {"type": "assistant", "message": {"content": "result"}},
    ],
)
def test_other_lines_mean_nothing(line: dict[str, Any]) -> None:
    assert Claude().read(line) is None


def test_names_are_as_it_makes_them() -> None:
    assert Claude().tool_name("tools", "memory_read") == "mcp__tools__memory_read"
    assert Claude().tool_name("notes.v2-dispatch", "a.b c") == "mcp__notes_v2-dispatch__a_b_c"


# The real one


class Doors:
    def register(self, hooks: ProgramHooks) -> DoorAccess:
        return entry("tools")


async def closed(scope: Any, receive: Any, send: Any) -> None:
    """An application that serves nothing."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_the_real_one_without_its_tools_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def listen(door: socket.socket) -> Listener:
        listener = Listener(listening=door)
        await listener.listen(closed)
        return listener

    programs = Programs({"PATH": os.environ["PATH"], "GUILDHALL_CLAUDE": str(claude_program())})
    runtime = ProgramRuntime(Claude, programs, listen)
    assignment = Assignment(system_prompt="Be.", first_message="Go.", tools=())

    async def main() -> None:
        async with asyncio.timeout(30):
            await runtime.execute(assignment, Doors())  # type: ignore[arg-type]

    with pytest.raises(RuntimeToolless, match=r"did not reach the run's tools: tools \(failed\)"):
        asyncio.run(main())
