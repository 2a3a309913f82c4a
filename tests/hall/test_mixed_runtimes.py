"""A workflow with three runtimes: pydantic-ai, Claude Code and Codex."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.clis import claude_program, codex_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

_TEAM = """\
name: desk
agents:
  ann: {runtime: pydantic, system_prompt: You are Ann.}
  bob: {backend: claude, system_prompt: You are Bob.}
  cy:
    backend: codex
    system_prompt: You are Cy.
    tools: [Write]
    tool_rules:
      fs.write: {approval_required: true}
context: {documentOwner: ann}
kickoff: "@ann have the notes written."
"""


def send(words: str) -> dict[str, Any]:
    return {"call": "channel_send", "with": {"message": words}}


_ANSWERS = {
    "ann": [
        [{"expect_system": "^You are Ann", **send("@bob what should stand there?")}, {"say": "Asked."}],
        [send("The notes are written."), {"say": "Told."}],
    ],
    "bob": [[{"expect_system": "^You are Bob", **send("@cy please write: hello")}, {"say": "Passed on."}]],
    "cy": [
        [
            {"call": "Write", "with": {"file_path": "notes.txt", "content": "hello"}},
            send("@ann it is written"),
            {"say": "Written."},
        ]
    ],
}


@pytest.mark.req("AW-22")
@pytest.mark.timeout(120)
def test_agents_of_three_runtimes_work_in_one_room(guild: Guild, project: Path) -> None:
    (project / "desk.yaml").write_text(_TEAM)
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    (project / "answers.yaml").write_text(json.dumps({"workers": _ANSWERS}))
    env = {"GUILDHALL_CLAUDE": str(claude_program()), "GUILDHALL_CODEX": str(codex_program())}
    ran = guild("run", "desk.yaml", env=env, timeout=60)
    assert ran.code == 4, ran.err
    assert not (project / "notes.txt").exists()
    ask = json.loads(guild("ls", "--json", env=env).out)["needs_you"]["asks"][0]
    answered = guild("answer", ask["ask"], "yes", env=env, timeout=60)
    assert answered.code == 0, answered.err
    assert (project / "notes.txt").read_text() == "hello"
    assert "cy to ann: @ann it is written" in answered.err
    assert "ann: The notes are written." in answered.err
    root = json.loads(guild("show", ask["run"], "--json", env=env).out)["root"]
    replayed = guild("replay", root, env=env, timeout=60)
    assert replayed.code == 0, replayed
    assert "Replay matches the recording" in replayed.out
