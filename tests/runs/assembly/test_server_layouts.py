"""MCP servers where people install them: npm packages and virtual environments, outside of and in the project."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runs.assembly.test_servers import NO_NET, TOY, call, tool_results
from tests.runs.places import DONE, journal, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Guild

SERVER = """#!/usr/bin/env node
const greet = require("greeting");
const reply = (id, result) => process.stdout.write(JSON.stringify({jsonrpc: "2.0", id, result}) + "\\n");
const echo = {name: "echo", description: "Echo.", inputSchema: {type: "object", properties: {text: {type: "string"}}}};
require("readline").createInterface({input: process.stdin}).on("line", (line) => {
  const {id, method, params} = JSON.parse(line);
  if (method === "initialize") {
    const serverInfo = {name: "toy", version: "1"};
    reply(id, {protocolVersion: params.protocolVersion, capabilities: {tools: {}}, serverInfo});
  }
  if (method === "tools/list") reply(id, {tools: [echo]});
  if (method === "tools/call") reply(id, {content: [{type: "text", text: greet(params.arguments.text)}]});
});
"""


def install_npm_packages(folder: Path) -> Path:
    """Write the packages srv and greeting as npm installs them, and return node_modules."""
    modules = folder / "node_modules"
    (modules / "srv" / "dist").mkdir(parents=True)
    (modules / "greeting").mkdir()
    (modules / ".bin").mkdir()
    (modules / "greeting" / "index.js").write_text('module.exports = (text) => "well: " + text;\n')
    (modules / "srv" / "package.json").write_text('{"name": "srv"}')
    (modules / "srv" / "dist" / "index.js").write_text(SERVER)
    (modules / "srv" / "dist" / "index.js").chmod(0o755)
    (modules / ".bin" / "srv").symlink_to("../srv/dist/index.js")
    return modules


def npm_file(project: Path, elsewhere: Path) -> list[str]:
    return ["node", str(install_npm_packages(elsewhere) / "srv" / "dist" / "index.js")]


def npm_link(project: Path, elsewhere: Path) -> list[str]:
    return [str(install_npm_packages(elsewhere) / ".bin" / "srv")]


def npm_project(project: Path, elsewhere: Path) -> list[str]:
    """Return the command of a server that was cloned and built."""
    modules = install_npm_packages(elsewhere)
    shutil.move(modules / "srv" / "dist", elsewhere / "dist")
    (elsewhere / "package.json").write_text('{"name": "srv"}')
    return ["node", str(elsewhere / "dist" / "index.js")]


def create_environment(folder: Path) -> Path:
    """Create a virtual environment with the module greeting, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "greeting.py").write_text("")
    return folder / "bin" / "python"


def environment_outside(project: Path, elsewhere: Path) -> list[str]:
    shutil.copy(TOY, elsewhere / "server.py")
    return [str(create_environment(elsewhere / "venv")), str(elsewhere / "server.py"), "well"]


def environment_in_project(project: Path, elsewhere: Path) -> list[str]:
    create_environment(project / ".venv")
    (project / "server.py").write_text(f"import greeting\n{TOY.read_text()}")
    return [".venv/bin/python", "server.py", "well"]


@pytest.mark.parametrize("install", [npm_file, npm_link, npm_project, environment_outside, environment_in_project])
def test_a_server_runs_from_the_place_where_it_is_installed(
    guild: Guild, project: Path, tmp_path: Path, install: Callable[[Path, Path], list[str]]
) -> None:
    elsewhere = tmp_path / "elsewhere" / "tools"
    elsewhere.mkdir(parents=True)
    command = install(project, elsewhere)
    put_worker(project, sandboxes=None, tool_rules=NO_NET, mcp_servers={"toy": {"command": command}})
    put_script(project, call("echo", text="a"), DONE)
    trusted = guild("trust", "--yes")
    assert trusted.code == 0, trusted
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran
    assert tool_results(journal(guild, ran.json["run"])) == ["well: a"]


def test_a_link_to_an_interpreter_is_trusted_with_its_target(guild: Guild, project: Path) -> None:
    command = environment_in_project(project, project)
    put_worker(project, sandboxes=None, tool_rules=NO_NET, mcp_servers={"toy": {"command": command}})
    put_script(project, DONE)
    link = project / ".venv" / "bin" / "python"
    assert f".venv/bin/python -> {link.resolve()}" in guild("trust", "--yes").out
    assert guild("run", "scribe", "go").code == 0
    link.unlink()
    link.symlink_to("/bin/sh")
    changed = guild("run", "scribe", "go")
    assert changed.code == 4, changed
    assert f".venv/bin/python -> {Path('/bin/sh').resolve()} (changed since you trusted it)" in changed.err


def test_code_that_cannot_be_trusted_fails_the_command(guild: Guild, project: Path, tmp_path: Path) -> None:
    shutil.copy(TOY, tmp_path / "elsewhere.py")
    (project / "server.py").symlink_to(tmp_path / "elsewhere.py")
    server = {"command": [sys.executable, "server.py"]}
    put_worker(project, sandboxes=None, tool_rules=NO_NET, mcp_servers={"toy": server})
    trusted = guild("trust")
    assert (trusted.code, "outside of the project" in trusted.err) == (1, True)
    assert trusted.out == f"Nothing else in {project} would be executed.\n"


def test_a_failed_server_shows_the_error_before_a_long_trace(guild: Guild, project: Path) -> None:
    (project / "server.js").write_text('require("no-such-package");\n')
    put_worker(project, sandboxes=None, tool_rules=NO_NET, mcp_servers={"toy": {"command": ["node", "server.js"]}})
    put_script(project, DONE)
    guild("trust", "--yes")
    ran = guild("run", "scribe", "go")
    assert ran.code == 1
    assert "its last output: Error: Cannot find module 'no-such-package' | ... | " in ran.err
