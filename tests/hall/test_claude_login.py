"""Claude Code with the login of the user: the hall adds it to requests, and the program never has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program
from tests.hall.runtime_project import RuntimeProject

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

MODEL = "anthropic:claude-sonnet-4-5"


@pytest.mark.req("X-14")
def test_the_hall_adds_the_login_and_keeps_the_system_lines_of_claude_code(guild: Guild, project: Path) -> None:
    runtime_project = RuntimeProject(guild, project, "claude", claude_program())
    call = {"say": "I look.", "call": "sandbox_list", "with": {"path": "notes"}}
    runtime_project.write_worker([call, {"say": "Seen."}], model=MODEL)
    with ScriptedServer(project / "script.yaml") as server:
        runtime_project.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "CLAUDE_CODE_OAUTH_TOKEN": "script-bob"}
        ran = runtime_project.run()
        assert (ran.code, ran.out) == (0, "Seen.\n"), ran.err
        asked = [exchange for exchange in server.requests if exchange.answered]
    assert [exchange.key for exchange in asked] == ["script-bob"] * 2
    for exchange in asked:
        lines = [block["text"] for block in (exchange.body or {})["system"]]
        assert lines[-1] == "You are Bob."
        assert len(lines) == 3
        assert "script-bob" not in json.dumps(exchange.body)


@pytest.mark.req("X-14")
def test_an_expired_login_is_reported_before_the_first_model_call(guild: Guild, project: Path, tmp_path: Path) -> None:
    runtime_project = RuntimeProject(guild, project, "claude", claude_program())
    runtime_project.write_worker([{"say": "Seen."}], model=MODEL)
    kept = tmp_path / "claude" / ".credentials.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-old", "expiresAt": 1000}}))
    runtime_project.env |= {"CLAUDE_CONFIG_DIR": str(kept.parent)}
    ran = runtime_project.run()
    assert ran.code == 1
    assert "has expired" in ran.err
    assert "claude setup-token" in ran.err
    assert "sk-ant-oat01-old" not in ran.out + ran.err
