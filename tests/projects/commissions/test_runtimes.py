"""Our own runtime and the real Claude Code carry out a commission with the same result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.clis import claude_program
from tests.projects.commissions.harness import call, say, submit, write

if TYPE_CHECKING:
    from tests.conftest import Guild
    from tests.projects.commissions.harness import CommissionProject


@pytest.mark.req("WKR-10", "COM-2", "WD-33")
@pytest.mark.timeout(180)
def test_pydantic_and_claude_do_the_same(guild: Guild, harness: CommissionProject) -> None:
    env = {"GUILDHALL_CLAUDE": str(claude_program())}
    steps = [
        call("report_progress", summary="The iron is hot."),
        call("record_decision", question="Which iron?", decision="Wrought", reasoning="It bends."),
        submit("Too early."),
        write("src/key.py", "key = 1\n"),
        submit("Forged."),
        say(),
    ]
    came: dict[str, Any] = {}
    for runtime in ("pydantic", "claude"):
        harness.worker(runtime=runtime)
        path = f"src/{runtime}.py"
        steps[3] = write(path, "key = 1\n")
        harness.script(steps)
        words = ("dispatch", "smith", "Forge a key.", "--title", "A key", "--artifact", path)
        done = guild(*words, "--wait", "--json", env=env, timeout=150)
        assert done.code == 0, done.err + done.out
        one = done.json
        assert harness.repo.at("claude/main", path) == "key = 1"
        artifact = harness.repo.at("guildhall/records", f".lore/commissions/{one['commission']}.md")
        assert "Wrought" in artifact
        came[runtime] = {
            "standing": [one[name] for name in ("status", "result", "summary", "attempt", "decisions")],
            "timeline": [(line["before"], line["after"]) for line in one["timeline"]],
            "commits": harness.repo.git("log", "-1", "--format=%an|%cn|%s", "claude/main"),
            "tools": _tools(guild, one["run"]),
        }
    assert came["pydantic"] == came["claude"]
    assert guild("ls", "--json").json["needs_you"]["asks"] == [], "nor has Claude Code asked whether it may"
    harness.repo.fsck()


def _tools(guild: Guild, run: str) -> list[str]:
    first = json.loads(guild("log", run, "--json").out.splitlines()[0])
    return sorted(tool["name"] for tool in first["data"]["tools"])
