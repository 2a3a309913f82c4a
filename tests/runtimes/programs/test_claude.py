"""The driver of Claude Code: its command line and its output. The real program without its tools."""

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

HOME = Path("/its/home")


async def do_nothing() -> None:
    return None


def door_access(*servers: str) -> DoorAccess:
    return DoorAccess(
        token="s3cret", servers=servers, has_calls=lambda: False, wait_for_calls=do_nothing, close=lambda: None
    )


def launch(model: str = "", **fields: Any) -> Launch:
    assignment = Assignment(**{"system_prompt": "Be ${X}.", "first_message": "Go.", "tools": (), **fields})
    return Claude().launch(assignment, door_access("tools", "room"), "http://127.0.0.1:7420", HOME, model)


def option(launched: Launch, name: str) -> str:
    return launched.argv[launched.argv.index(name) + 1]


def first_content(launched: Launch) -> list[dict[str, Any]]:
    assert launched.stdin is not None
    return json.loads(launched.stdin)["message"]["content"]


def test_claude_has_only_the_tools_settings_and_servers_of_the_run() -> None:
    launched = launch()
    assert (option(launched, "--tools"), option(launched, "--setting-sources")) == ("", "")
    assert {"--print", "--strict-mcp-config", "--disable-slash-commands", "--bare"} <= set(launched.argv)
    assert option(launched, "--permission-mode") == "bypassPermissions"
    servers = json.loads(launched.files["mcp.json"])["mcpServers"]
    assert {name: server["url"] for name, server in servers.items()} == {
        "tools": "http://127.0.0.1:7420/mcp/tools/",
        "room": "http://127.0.0.1:7420/mcp/room/",
    }
    assert launched.files["prompt.md"] == "Be ${X}."
    assert option(launched, "--system-prompt-file") == f"{HOME}/prompt.md"


def test_the_token_is_only_in_the_environment() -> None:
    launched = launch()
    assert "s3cret" not in str((launched.argv, launched.files, launched.stdin))
    secret = {name for name, value in launched.env.items() if value == "s3cret"}
    assert secret == {"GUILDHALL_TOKEN", "ANTHROPIC_API_KEY"}  # also with a login, which stays behind the door


def test_the_model_is_the_given_one_or_a_known_one() -> None:
    assert option(launch(model="claude-opus-4-5"), "--model") == "claude-opus-4-5"
    assert option(launch(), "--model").startswith("claude-")


def test_attachments_follow_the_first_message_in_their_media_type() -> None:
    files = (
        Attachment(name="a.txt", media_type="text/plain", data=b"one\ntwo"),
        Attachment(name="b.png", media_type="image/png", data=b"\x89PNG"),
        Attachment(name="c.pdf", media_type="application/pdf", data=b"%PDF"),
    )
    blocks = first_content(launch(attachments=files))
    assert [block["type"] for block in blocks] == ["text", "text", "text", "text", "image", "text", "document"]
    assert blocks[0]["text"] == "Go."
    assert "one\ntwo" in blocks[2]["text"]
    source = blocks[6]["source"]
    assert (source["media_type"], base64.b64decode(source["data"])) == ("application/pdf", b"%PDF")
    assert first_content(launch()) == [{"type": "text", "text": "Go."}]


@pytest.mark.parametrize("status", ["failed", "pending", "needs-auth", "disabled"])
def test_an_unreached_server_ends_the_run(status: str) -> None:
    servers = [{"name": "tools", "status": status}, {"name": "room", "status": "connected"}]
    end = Claude().read({"type": "system", "subtype": "init", "mcp_servers": servers})
    assert end is not None
    assert isinstance(end.error, RuntimeToolless)
    assert f"tools ({status})" in end.error.message
    assert "room" not in end.error.message
    assert Claude().read({"type": "system", "subtype": "init", "mcp_servers": servers[1:]}) is None


def test_the_end_is_parsed_by_its_error_flag_and_not_by_its_subtype() -> None:
    end = Claude().read({"type": "result", "subtype": "success", "is_error": True, "result": "API Error: 400 no"})
    assert end is not None
    assert isinstance(end.error, RuntimeFailed)
    assert "API Error: 400 no" in end.error.message
    for more in ({"errors": ["a", "b"]}, {"terminal_reason": "max_turns"}, {"subtype": "error_during_execution"}):
        end = Claude().read({"type": "result", "is_error": True, **more})
        assert end is not None
        assert end.error is not None
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
def test_other_lines_are_ignored(line: dict[str, Any]) -> None:
    assert Claude().read(line) is None


def test_tool_names_match_those_of_claude() -> None:
    assert Claude().tool_name("tools", "memory_read") == "mcp__tools__memory_read"
    assert Claude().tool_name("notes.v2-dispatch", "a.b c") == "mcp__notes_v2-dispatch__a_b_c"


# The real program


class ToolDoors:
    def register(self, hooks: ProgramHooks) -> DoorAccess:
        return door_access("tools")


async def serve_nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request with 404."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def test_the_real_program_without_its_tools_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def listen(door: socket.socket) -> Listener:
        listener = Listener(listening=door)
        await listener.listen(serve_nothing)
        return listener

    programs = Programs({"PATH": os.environ["PATH"], "GUILDHALL_CLAUDE": str(claude_program())})
    runtime = ProgramRuntime(Claude, programs, listen)
    assignment = Assignment(system_prompt="Be.", first_message="Go.", tools=())

    async def main() -> None:
        async with asyncio.timeout(30):
            await runtime.execute(assignment, ToolDoors())  # type: ignore[arg-type]

    with pytest.raises(RuntimeToolless, match=r"is not connected to the run's tools: tools \(failed\)"):
        asyncio.run(main())
