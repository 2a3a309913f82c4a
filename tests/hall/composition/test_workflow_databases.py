"""Workflow databases: every command works with a workflow that has its own database."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import HallInUse
from guildhall.hall.composition.database import lock_database

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild, GuildWithHall

_TABLES = ("runs", "journal", "asks", "rooms", "messages", "deliveries", "room_log", "workflows", "agents", "schedules")


@pytest.fixture
def team(project: Path) -> Path:
    """Write a workflow of two agents with a database for each tag. One agent needs approval to write a file."""
    return write_team(project, "state/${{ workflow.tag }}.db")


def write_team(project: Path, db: str | None, **context: Any) -> Path:
    usual: dict[str, Any] = {"system_prompt": "You are at work.", "model": "script:script.yaml"}
    asked = {**usual, "tools": ["Write"], "tool_rules": {"fs.write": {"approval_required": True}}}
    text = {
        "agents": {"ann": usual, "bob": asked},
        "context": {"documentOwner": "none", "config": {"db": db} if db else {}, **context},
        "kickoff": "@ann begin",
    }
    script = {
        "workers": {
            "ann": [[{"call": "channel_send", "with": {"message": "@bob your turn"}}, {"say": "done"}]],
            "bob": [
                [
                    {"call": "document_write", "with": {"content": "# Notes"}},
                    {"call": "Write", "with": {"file_path": "made.txt", "content": "made"}},
                    {"call": "no_action"},
                ]
            ],
        },
        "repeat": True,
    }
    (project / "script.yaml").write_text(json.dumps(script))
    (project / "team.yaml").write_text(json.dumps(text))
    return project / "team.yaml"


def count_rows(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        return {one: connection.execute(f"SELECT count(*) FROM {one}").fetchone()[0] for one in _TABLES}  # noqa: S608


def list_asks(guild: Guild) -> list[dict[str, Any]]:
    return guild("ls", "--json").json["needs_you"]["asks"]


def assert_ok(ran: CommandResult) -> CommandResult:
    assert ran.code == 0, ran.err
    return ran


def test_all_state_is_in_the_database_and_every_command_finds_it(guild: Guild, team: Path, home: Home) -> None:
    waiting = guild("run", "team.yaml")
    assert waiting.code == 4
    assert not any(count_rows(home.database).values())
    own = team.parent / "state" / "main.db"
    assert own.stat().st_mode & 0o777 == 0o600
    assert {name for name, count in count_rows(own).items() if not count} == {"schedules"}

    (ask,) = list_asks(guild)
    assert ask["run"] in guild("ls").out
    assert guild("show", ask["ask"]).code == 0
    assert_ok(guild("answer", ask["ask"], "yes"))
    run = guild("ls", "@team", "--json").json["run"]
    assert guild("show", run, "--json").json["status"] == "completed"
    assert guild("doc", "read", "@team").out == "# Notes\n"
    assert "@bob your turn" in guild("log", "@team").out
    assert {line["worker"] for line in guild("cost", "--json").json["lines"]} >= {"ann", "bob"}
    assert guild("proposals", "@team", "--json").json["proposals"] == []
    assert_ok(guild("replay", run))
    assert "ann" in assert_ok(guild("script", run)).out
    assert guild("send", "@team", "anybody?").code == 1  # the workflow is completed
    assert guild("stop", run).code in (0, 1)
    assert not any(count_rows(home.database).values())

    assert guild("run", "team.yaml", "--tag", "b").code == 4
    assert (team.parent / "state" / "b.db").exists()
    assert [one["tag"] for one in guild("ls", "--json").json["workflows"]] == ["b"]
    again = guild("run", "team.yaml", "--output", "json")
    assert again.code == 4
    assert guild("ls", "@team", "--json").json["generation"] == 2


@pytest.mark.req("X-1")
def test_a_workflow_survives_a_crash_of_the_hall_and_is_resumed(
    guild_hall: GuildWithHall, team: Path, home: Home
) -> None:
    run = assert_ok(guild_hall("start", "team.yaml", "--background", "--json")).json["run"]
    assert guild_hall("wait", "@team", "--timeout", "20s").code == 4
    guild_hall.kill_hall()
    (ask,) = list_asks(guild_hall)  # no hall runs, so the command reads the file
    assert_ok(guild_hall("send", "ann@team", "once more"))  # a new hall resumes the workflow
    assert_ok(guild_hall("answer", ask["ask"], "no"))
    assert guild_hall("wait", "@team", "--timeout", "20s").code in (0, 4)
    assert_ok(guild_hall("schedule", "@team", "set", "1h"))
    assert guild_hall("schedule", "@team", "show", "--json").json["schedules"]
    assert guild_hall("hall", "status", "--json").json["runs"] == 1
    lines = [json.loads(line) for line in guild_hall("log", run, "--json").out.splitlines()]
    assert [one["content"] for one in lines if one.get("type") == "message"].count("once more") == 1
    assert_ok(guild_hall("hall", "stop"))
    assert guild_hall("ls", "@team", "--json").json["status"] == "paused"
    assert_ok(guild_hall("stop", "@team"))
    assert guild_hall("ls", "@team", "--json").json["status"] == "stopped"
    assert not any(count_rows(home.database).values())


def test_a_workflow_tag_cannot_run_in_two_databases(guild_hall: GuildWithHall, team: Path) -> None:
    write_team(team.parent, None)
    assert_ok(guild_hall("start", "team.yaml", "--background"))
    write_team(team.parent, "own.db")
    refused = guild_hall("run", "team.yaml")
    assert (refused.code, "another database" in refused.err) == (1, True)
    assert not (team.parent / "own.db").exists() or not any(count_rows(team.parent / "own.db").values())
    assert_ok(guild_hall("stop", "@team"))
    assert guild_hall("run", "team.yaml").code == 4
    assert guild_hall("ls", "@team", "--json").json["status"] == "paused"  # the instance that started last


def test_agents_cannot_change_the_database(guild: Guild, project: Path) -> None:
    usual: dict[str, Any] = {"system_prompt": "x", "model": "script:script.yaml", "tools": ["Write", "Bash"]}
    files = ("own.db", "own.db-wal", "own.db-shm", "own.db.lock")
    text = {"agents": {"ann": usual}, "context": {"config": {"db": "own.db"}}, "kickoff": "@ann go"}
    writes = [{"call": "Write", "with": {"file_path": name, "content": "x"}} for name in files]
    shell = [{"call": "Bash", "with": {"command": f"echo x > {name}"}} for name in files]
    (project / "script.yaml").write_text(json.dumps({"workers": {"ann": [[*writes, *shell, {"say": "done"}]]}}))
    (project / "team.yaml").write_text(json.dumps(text))
    assert_ok(guild("run", "team.yaml"))
    with closing(sqlite3.connect(project / "own.db")) as connection:
        ended = connection.execute("SELECT data FROM journal WHERE kind='tool_ended'").fetchall()
    assert len(ended) == len(files) * 2
    assert all(json.loads(one[0])["result"]["is_error"] for one in ended), ended


@pytest.mark.parametrize("kind", ["text", "folder", "foreign", "pipe", "linked lock", "among documents", "in the home"])
def test_an_unusable_database_file_is_refused_and_kept(guild: Guild, project: Path, kind: str, home: Home) -> None:
    file, db = project / "own.db", "own.db"
    victim = project / "victim"
    victim.write_text("precious")
    if kind == "text":
        file.write_text("not a database, but dear to somebody, and longer than a header is: " * 3)
    elif kind == "folder":
        file.mkdir()
    elif kind == "foreign":
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE mine (x)")
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "linked lock":
        (project / "own.db.lock").symlink_to(victim)
    elif kind == "among documents":
        db = ".workflow/team/main/documents/own.db"
    else:
        db = str(home.path / "own.db")
    before = file.read_bytes() if file.is_file() else None
    write_team(project, db)
    refused = guild("run", "team.yaml")
    assert refused.code in (2, 7), refused.err
    assert "Traceback" not in refused.err
    assert "GUILDHALL_HOME" not in refused.err
    assert (file.read_bytes() if file.is_file() else None) == before
    assert victim.read_text() == "precious"
    assert not any(assert_ok(guild("ls", "--json")).json[group] for group in ("working", "done", "workflows"))
    checked = guild("doctor")
    assert "Traceback" not in checked.err


def test_two_homes_cannot_share_a_database(guild: Guild, team: Path, tmp_path: Path) -> None:
    assert guild("run", "team.yaml").code == 4
    own = team.parent / "state" / "main.db"
    with lock_database(own, SystemClock()):
        with pytest.raises(HallInUse, match="another home"):
            lock_database(own, SystemClock())
        other = guild("run", "team.yaml", env={"GUILDHALL_HOME": str(tmp_path / "other")})
        assert (other.code, "another home" in other.err) == (7, True)


def test_a_missing_database_is_reported_by_doctor_and_found_again(guild: Guild, team: Path) -> None:
    assert guild("run", "team.yaml").code == 4
    own = team.parent / "state"
    shutil.move(own, team.parent / "away")
    assert assert_ok(guild("ls", "--json")).json["workflows"] == []
    checked = guild("doctor")
    assert str(own / "main.db") in checked.out + checked.err
    shutil.move(team.parent / "away", own)
    assert len(list_asks(guild)) == 1
