"""The real Claude Code with a person's login: the hall puts it in, the program never has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program
from tests.hall.offices import Office

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

MODEL = "anthropic:claude-sonnet-4-5"


@pytest.mark.req("X-14")
def test_a_login_is_put_in_by_the_hall_and_only_claudes_own_lines_stay(guild: Guild, project: Path) -> None:
    office = Office(guild, project, "claude", claude_program())
    call = {"say": "I look.", "call": "sandbox_list", "with": {"path": "notes"}}
    office.put([call, {"say": "Seen."}], model=MODEL)
    with ScriptedServer(project / "script.yaml") as server:
        office.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "CLAUDE_CODE_OAUTH_TOKEN": "script-bob"}
        ran = office.run()
        assert (ran.code, ran.out) == (0, "Seen.\n"), ran.err
        asked = [exchange for exchange in server.requests if exchange.answered]
    assert [exchange.key for exchange in asked] == ["script-bob"] * 2
    for exchange in asked:
        lines = [block["text"] for block in (exchange.body or {})["system"]]
        assert lines[-1] == "You are Bob."
        assert len(lines) == 3
        assert "script-bob" not in json.dumps(exchange.body)


@pytest.mark.req("X-14")
def test_a_login_that_has_run_out_is_told_before_anything_is_asked(guild: Guild, project: Path, tmp_path: Path) -> None:
    office = Office(guild, project, "claude", claude_program())
    office.put([{"say": "Seen."}], model=MODEL)
    kept = tmp_path / "claude" / ".credentials.json"
    kept.parent.mkdir()
    kept.write_text(json.dumps({"claudeAiOauth": {"accessToken": "sk-ant-oat01-old", "expiresAt": 1000}}))
    office.env |= {"CLAUDE_CONFIG_DIR": str(kept.parent)}
    ran = office.run()
    assert ran.code == 1
    assert "has expired" in ran.err
    assert "claude setup-token" in ran.err
    assert "sk-ant-oat01-old" not in ran.out + ran.err
