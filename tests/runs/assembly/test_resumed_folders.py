"""A resumed run has no folder and no permission that its worker no longer has, in any kind of tool."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, journal, put_script, put_worker

if TYPE_CHECKING:
    from tests.conftest import Guild

TOY = Path(__file__).parents[2] / "tools" / "toy_server.py"
TOOLBOX = '''
from pathlib import Path

from guildhall import Toolbox, tool


@tool(capabilities={"fs.write"})
def save(path: str) -> str:
    """Write a file."""
    Path(path).write_text("x")
    return "saved"


toolbox = Toolbox("pen", save)
'''
BASH = {"call": "Bash", "with": {"command": "echo x > out/written"}}
SAVE = {"call": "save", "with": {"path": "out/written"}}
WRITE = {"call": "Write", "with": {"file_path": "out/written", "content": "x"}}
SANDBOX = {"call": "sandbox_write_text", "with": {"sandbox": "out", "path": "written", "content": "x"}}


def write_worker(project: Path, mode: str | None, rules: dict[str, Any], **fields: Any) -> None:
    sandboxes = {"kept": {"path": "./kept", "mode": "rw"}}
    if mode is not None:
        sandboxes["out"] = {"path": "./out", "mode": mode}
    put_worker(project, sandboxes=sandboxes, tool_rules=rules, **fields)


@pytest.mark.parametrize("mode", ["ro", None])
@pytest.mark.parametrize(
    ("tool", "call", "fields"),
    [
        ("Bash", BASH, {"tools": ["Bash"]}),
        ("Write", WRITE, {"tools": ["Write"]}),
        ("save", SAVE, {"toolboxes": ["pen"]}),
        ("sandbox_write_text", SANDBOX, {}),
    ],
)
def test_a_resumed_run_cannot_write_where_its_worker_may_not_write_now(
    guild: Guild, project: Path, mode: str | None, tool: str, call: dict[str, Any], fields: dict[str, Any]
) -> None:
    for folder in ("out", "kept", "toolboxes"):
        (project / folder).mkdir()
    (project / "toolboxes" / "pen.py").write_text(TOOLBOX)
    rules = {tool: {"approval_required": True}}
    write_worker(project, "rw", rules, **fields)
    put_script(project, call, DONE)
    assert guild("trust", "--yes").code == 0
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4, ran
    write_worker(project, mode, rules, **fields)
    answered = guild("answer", ran.json["asks"][0]["ask"], "yes")
    assert answered.code == 0, answered
    assert not (project / "out" / "written").exists()


def test_a_server_of_a_resumed_run_does_not_see_a_folder_that_was_removed(guild: Guild, project: Path) -> None:
    for folder in ("servers", "kept"):
        (project / folder).mkdir()
    out = project.parent / "out"
    out.mkdir()
    (out / "secret.txt").write_text("secret")
    shutil.copy(TOY, project / "servers" / "toy.py")
    server = {"command": [sys.executable, "servers/toy.py", "well"]}
    rules = {"toy_echo": {"approval_required": True}, "net": {"allowed": False}}

    def write(*, with_out: bool) -> None:
        sandboxes = {"kept": {"path": "./kept", "mode": "rw"}, **({"out": {"path": str(out)}} if with_out else {})}
        put_worker(project, sandboxes=sandboxes, tool_rules=rules, mcp_servers={"toy": server})

    write(with_out=True)
    look = {"call": "toy_look", "with": {"text": str(out / "secret.txt")}}
    put_script(project, look, {"call": "toy_echo", "with": {"text": "a"}}, look, DONE)
    assert guild("trust", "--yes").code == 0
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4, ran
    write(with_out=False)
    assert guild("trust", "--yes").code == 0
    assert guild("answer", ran.json["asks"][0]["ask"], "yes").code == 0
    entries = journal(guild, ran.json["run"])
    results = [entry["data"]["result"]["content"][0]["text"] for entry in entries if entry["kind"] == "tool_ended"]
    seen = [json.loads(text)["seen"][str(out / "secret.txt")] for text in (results[0], results[-1])]
    assert seen == [True, False]
