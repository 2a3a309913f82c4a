"""`guild trust`: code of a folder is executed only after the user trusts it, and again after each change."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.cli.places import Terminal
    from tests.conftest import CommandResult, Guild

    At = Callable[..., Terminal]

TOOLBOX = '''
from guildhall import tool


@tool(capabilities={"fs.write"}, repeatable=True)
def stamp(text: str) -> str:
    """Put a stamp on it."""
    return f"stamped {text}"
'''
MODEL = """
from pydantic import BaseModel, Field


class Report(BaseModel):
    score: int = Field(le=10)
"""
STAMP = {"call": "stamp", "with": {"text": "this"}}


@pytest.fixture
def post(project: Path) -> Path:
    """Return a project with a worker that needs a toolbox of the project."""
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "post.py").write_text(TOOLBOX)
    put_worker(project, toolboxes=["post"], tool_rules=None)
    put_script(project, STAMP, DONE)
    return project


def read_standings(guild: Guild, *words: str) -> dict[str, str]:
    result = guild("trust", *words, "--json")
    assert result.code == 0, result
    return {file["file"]: file["standing"] for code in result.json["code"] for file in code["files"]}


def run_scribe(guild: Guild) -> CommandResult:
    return guild("run", "scribe", "go", "--output", "json")


@pytest.mark.req("X-18")
def test_code_runs_only_if_its_current_text_is_trusted(guild: Guild, post: Path) -> None:
    refused = run_scribe(guild)
    assert refused.code == 4
    assert refused.json["error"]["code"] == "not_trusted"
    assert "toolboxes/post.py (not trusted yet)" in refused.json["error"]["message"]
    assert refused.json["error"]["hint"] == "Review and trust it: guild trust"
    assert guild("ls", "--all", "--json").json["done"] == [], "there was no run"
    assert guild("check", "scribe").code == 4

    shown = guild("trust")
    assert (shown.code, "Nothing was trusted" in shown.err) == (4, True)
    assert guild("plan", "scribe").out.rstrip() in shown.out
    assert re.search(r"toolboxes/post.py  \d+ bytes  not trusted yet\n    sha256 [0-9a-f]{64}\n", shown.out)
    assert run_scribe(guild).code == 4

    assert guild("trust", "--yes").code == 0
    assert guild("check", "scribe").code == 0
    done = run_scribe(guild)
    assert (done.code, done.json["output"]) == (0, "done")
    assert "Everything is trusted" in guild("trust").err

    (post / "toolboxes" / "post.py").write_text(TOOLBOX + "# changed\n")
    again = run_scribe(guild)
    assert again.code == 4
    assert "changed since you trusted it" in again.err
    assert read_standings(guild) == {"toolboxes/post.py": "changed"}
    (post / "toolboxes" / "post.py").write_text(TOOLBOX)
    assert run_scribe(guild).code == 0, "the trusted text is back"


@pytest.mark.req("X-18")
def test_untrusted_code_is_not_loaded(guild: Guild, post: Path) -> None:
    """No command loads it to describe, check or plan it. The tools stay unknown."""
    (post / "toolboxes" / "post.py").write_text("1 / 0\n")
    for words in (["plan", "scribe"], ["worker", "show", "scribe"], ["check"], ["trust"], ["doctor"]):
        ran = guild(*words)
        assert "ZeroDivisionError" not in ran.out + ran.err
    assert "unknown until you trust it" in guild("plan", "scribe").out
    guild("trust", "--yes")
    assert "ZeroDivisionError" in guild("plan", "scribe").out


def test_trust_can_be_revoked(guild: Guild, post: Path) -> None:
    guild("trust", "--yes")
    taken = guild("trust", "--forget")
    assert (taken.code, taken.out) == (0, f"{post}/toolboxes/post.py\n")
    assert run_scribe(guild).code == 4
    nothing = guild("trust", "--forget", post, "--json")
    assert nothing.json == {"folder": str(post), "forgotten": []}
    assert "was trusted" in guild("trust", "--forget", "gone/folder").err


def test_trust_of_a_deleted_file_can_be_revoked(guild: Guild, post: Path) -> None:
    guild("trust", "--yes")
    (post / "toolboxes" / "post.py").unlink()
    assert guild("trust", "--forget", "toolboxes").out.endswith("post.py\n")


def test_toolboxes_of_the_home_need_no_trust(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "post.py").write_text(TOOLBOX)
    put_worker(project, toolboxes=["post"], tool_rules=None)
    put_script(project, STAMP, DONE)
    assert run_scribe(guild).code == 0
    assert "Nothing in" in guild("trust").out
    assert "Nothing in" in guild("trust", home.path).out


@pytest.mark.parametrize("where", [".", "workers", None])
def test_a_folder_without_code_needs_no_trust(guild: Guild, project: Path, where: str | None) -> None:
    (project / "workers").mkdir()
    ran = guild("trust", *([where] if where else []))
    assert (ran.code, "would be executed." in ran.out) == (0, True)
    assert guild("trust", "--json").json["code"] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [(["nowhere"], 3), (["file.txt"], 2), ([""], 2), (["x" * 5000], 2), (["--yes", "--forget"], 2), (["none.yaml"], 3)],
)
def test_an_invalid_folder_is_reported(guild: Guild, project: Path, words: list[str], code: int) -> None:
    (project / "file.txt").write_text("x")
    ran = guild("trust", *words)
    assert ran.code == code
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err


def test_trust_accepts_a_folder_or_a_worker_file(guild: Guild, post: Path, tmp_path: Path) -> None:
    guild("trust", "--yes", post, cwd=tmp_path)
    assert run_scribe(guild).code == 0
    loose = tmp_path / "loose"
    (loose / "toolboxes").mkdir(parents=True)
    (loose / "toolboxes" / "post.py").write_text(TOOLBOX)
    (loose / "scribe.yaml").write_text("instructions: x\ntoolboxes: [post]\n")
    refused = guild("run", loose / "scribe.yaml", "go")
    assert refused.code == 4
    assert f"guild trust {loose}/scribe.yaml" in refused.err
    asked = guild("trust", loose / "scribe.yaml")
    assert asked.err.strip().endswith(f"guild trust {loose / 'scribe.yaml'} --yes")
    assert guild("trust", loose / "scribe.yaml", "--yes").code == 0
    assert guild("run", loose / "scribe.yaml", "go").code == 0


def test_control_characters_in_names_are_escaped(guild: Guild, post: Path) -> None:
    odd = post.with_name("a\n  good.py  1 bytes  trusted\x1b[2J\u202e")
    post.rename(odd)
    (odd / "toolboxes" / "x\x1b[2J.py").write_text("no worker can name it\n")
    (odd / "toolboxes" / "loop.py").symlink_to("loop.py")
    (odd / "empty").mkdir()
    for words in (["trust"], ["trust", "--yes"], ["trust", "empty"], ["trust", "--forget"], ["trust", "--forget"]):
        ran = guild(*words, cwd=odd)
        assert ran.code in (0, 4)
        assert not set(ran.out + ran.err) & set("\x1b\u202e")
        assert "\n  good.py" not in ran.out + ran.err
    assert [code["name"] for code in guild("trust", "--json", cwd=odd).json["code"]] == ["post"]


def test_unreadable_files_are_reported_and_not_trusted(guild: Guild, post: Path, tmp_path: Path) -> None:
    boxes = post / "toolboxes"
    os.mkfifo(boxes / "pipe.py")
    (boxes / "folder.py").mkdir()
    (boxes / "loop.py").symlink_to("loop.py")
    (tmp_path / "out.py").write_text(TOOLBOX)
    (boxes / "out.py").symlink_to(tmp_path / "out.py")
    with (boxes / "huge.py").open("wb") as file:
        file.truncate(10**10)
    ran = guild("trust", "--yes")
    assert ran.code == 0
    for message in (
        "pipe.py: cannot read the file: not a regular file",
        "loop.py: ",
        "out.py: the file is a link to ",
        "huge.py: the file is too",
    ):
        assert message in ran.err
    assert read_standings(guild) == {"toolboxes/post.py": "trusted"}
    put_worker(post, toolboxes=["out"])
    refused = guild("run", "scribe", "go")
    assert refused.code == 1
    assert "outside of the project" in refused.err


def test_a_trusted_toolbox_replaced_by_a_link_is_refused(guild: Guild, post: Path, tmp_path: Path) -> None:
    guild("trust", "--yes")
    path = post / "toolboxes" / "post.py"
    path.rename(tmp_path / "post.py")
    path.symlink_to(tmp_path / "post.py")
    assert guild("run", "scribe", "go").code == 1


@pytest.mark.req("X-18")
def test_a_resumed_run_needs_trust(guild: Guild, post: Path) -> None:
    put_worker(post, toolboxes=["post"], tool_rules={"stamp": {"approval_required": True}})
    guild("trust", "--yes")
    waiting = run_scribe(guild)
    ask, path = waiting.json["asks"][0]["ask"], post / "toolboxes" / "post.py"
    path.write_text(TOOLBOX + "# changed\n")
    assert guild("answer", ask, "yes").code == 4
    refused = guild("resume", waiting.json["run"])
    assert (refused.code, "changed since you trusted it" in refused.err) == (4, True)
    guild("trust", "--yes")
    assert guild("resume", waiting.json["run"]).code == 0


def test_a_replay_needs_trust(guild: Guild, post: Path) -> None:
    guild("trust", "--yes")
    done = run_scribe(guild).json["run"]
    assert guild("replay", done).code == 0
    guild("trust", "--forget")
    assert guild("replay", done).code == 4


# At a terminal


@pytest.mark.req("X-18")
def test_the_user_is_asked_for_trust_and_the_run_starts(guild: Guild, post: Path, terminal: At) -> None:
    plan = guild("plan", "scribe").out
    person = terminal("run", "scribe", "go")
    person.wait_for("Trust toolboxes/post.py to run commands as you?")
    assert plan.splitlines()[0] in person.output
    assert "toolbox post" in person.output
    person.type("yes\n")
    code, out = person.wait_exit()
    assert (code, out) == (0, "done\n")
    assert read_standings(guild) == {"toolboxes/post.py": "trusted"}


@pytest.mark.parametrize("typed", ["no\n", "\n", "yess\n", "\x04"])
def test_any_answer_but_yes_denies_trust(guild: Guild, post: Path, terminal: At, typed: str) -> None:
    person = terminal("run", "scribe", "go")
    person.wait_for("Trust toolboxes/post.py to run commands as you?")
    person.type(typed)
    assert person.wait_exit()[0] == 4
    assert read_standings(guild) == {"toolboxes/post.py": "new"}


def test_a_change_during_the_prompt_is_not_trusted(guild: Guild, post: Path, terminal: At) -> None:
    person = terminal("trust")
    person.wait_for("[y]es  [n]o:")
    (post / "toolboxes" / "post.py").write_text(TOOLBOX + "# swapped\n")
    person.type("y\n")
    assert person.wait_exit()[0] == 0
    assert read_standings(guild) == {"toolboxes/post.py": "changed"}
    assert run_scribe(guild).code == 4


def test_a_change_is_asked_about_when_a_run_is_resumed(guild: Guild, post: Path, terminal: At) -> None:
    put_worker(post, toolboxes=["post"], tool_rules={"stamp": {"approval_required": True}})
    guild("trust", "--yes")
    ask = run_scribe(guild).json["asks"][0]["ask"]
    (post / "toolboxes" / "post.py").write_text(TOOLBOX + "# changed\n")
    person = terminal("answer", ask, "yes")
    person.wait_for("[y]es  [n]o:")
    person.type("y\n")
    assert person.wait_exit() == (0, "done\n")


# Callable workers


@pytest.fixture
def office(post: Path) -> Path:
    """Return a project whose worker `boss` calls `scribe` through `middle`. Only `scribe` needs a toolbox."""
    bare: dict[str, Any] = {"sandboxes": None, "tool_rules": None}
    put_worker(post, "boss", allow_workers=["middle"], **bare)
    put_worker(post, "middle", allow_workers=["scribe"], **bare)
    call = {"call": "worker_call", "with": {"worker": "scribe", "input_data": "go"}}
    answers = {"boss": [[{**call, "with": {**call["with"], "worker": "middle"}}, DONE]], "middle": [[call, DONE]]}
    (post / "answers.yaml").write_text(json.dumps({"workers": {**answers, "scribe": [[STAMP, DONE]]}}))
    return post


@pytest.mark.req("X-18")
def test_callable_workers_need_trust_before_the_run_starts(guild: Guild, office: Path) -> None:
    refused = guild("run", "boss", "go", "--output", "json")
    error = refused.json["error"]
    assert (refused.code, error["code"], error["hint"]) == (4, "not_trusted", "Review and trust it: guild trust")
    assert "scribe.yaml, which it may call: " in error["message"]
    assert "toolboxes/post.py (not trusted yet)" in error["message"]
    assert guild("ls", "--all", "--json").json["done"] == [], "there was no run"
    assert guild("trust", "--yes").code == 0
    assert guild("run", "boss", "go").code == 0


def test_all_untrusted_files_are_named_at_once(guild: Guild, office: Path) -> None:
    (office / "toolboxes" / "own.py").write_text("1 / 0\n")
    put_worker(office, "boss", toolboxes=["own"], allow_workers=["scribe"], tool_rules=None)
    message = guild("run", "boss", "go").err
    assert "toolboxes/own.py (not trusted yet)" in message
    assert "toolboxes/post.py (not trusted yet)" in message


def test_the_user_is_asked_to_trust_callable_workers(guild: Guild, office: Path, terminal: At) -> None:
    person = terminal("run", "boss", "go")
    person.wait_for("Trust toolboxes/post.py to run commands as you?")
    assert "toolbox post" in person.output
    person.type("yes\n")
    assert person.wait_exit() == (0, "done\n")


def test_a_resumed_run_needs_trust_in_callable_workers(guild: Guild, office: Path, terminal: At) -> None:
    put_worker(office, toolboxes=["post"], tool_rules={"stamp": {"approval_required": True}})
    guild("trust", "--yes")
    ran = guild("run", "boss", "go", "--output", "json")
    (office / "toolboxes" / "post.py").write_text(TOOLBOX + "# changed\n")
    refused = guild("resume", ran.json["run"])
    assert (refused.code, "post.py (changed since you trusted it)" in refused.err) == (4, True)
    assert guild("show", ran.json["run"], "--json").json["status"] == "waiting"
    person = terminal("answer", ran.json["asks"][0]["ask"], "yes")
    person.wait_for("[y]es  [n]o:")
    person.type("y\n")
    assert person.wait_exit() == (0, "done\n")
    assert guild("resume", ran.json["run"]).code == 1, "a completed run is refused"


def test_untrusted_workers_of_a_star_are_named_and_the_run_starts(guild: Guild, office: Path) -> None:
    put_worker(office, "boss", allow_workers="*", sandboxes=None, tool_rules=None)
    (office / "answers.yaml").write_text(json.dumps({"workers": {"boss": [[DONE]]}, "repeat": True}))
    put_worker(office, "middle", sandboxes=None, tool_rules=None)
    ran = guild("run", "boss", "go")
    assert (ran.code, ran.out) == (0, "done\n")
    assert "Untrusted workers, which it cannot call: scribe." in ran.err
    guild("trust", "--yes")
    assert "Not trusted" not in guild("run", "boss", "go").err


def test_workers_that_cannot_be_called_need_no_trust(guild: Guild, office: Path) -> None:
    put_worker(office, toolboxes=["post"], tool_rules=None, status="retired")
    put_worker(office, "boss", allow_workers=["scribe", "ghost"], sandboxes=None, tool_rules=None)
    (office / "answers.yaml").write_text(json.dumps({"workers": {"boss": [[DONE]]}}))
    assert guild("run", "boss", "go").code == 0


# Models in Python


@pytest.fixture
def judge(project: Path) -> Path:
    """Return a project whose worker has an output schema in Python."""
    (project / "report").mkdir()
    (project / "report" / "model.py").write_text(MODEL)
    put_worker(project, output_schema_ref="report.model:Report", sandboxes=None, tool_rules=None)
    put_script(project, {"output": {"score": 11}}, {"output": {"score": 7}})
    return project


@pytest.mark.req("DO-10", "X-18")
def test_an_output_is_validated_by_a_model_of_the_project(guild: Guild, judge: Path) -> None:
    refused = run_scribe(guild)
    assert (refused.code, refused.json["error"]["code"]) == (4, "not_trusted")
    assert '"output_schema": null' in guild("worker", "show", "scribe", "--json").out
    guild("trust", "--yes")
    done = run_scribe(guild)
    assert (done.code, done.json["output"]) == (0, {"score": 7})
    assert "11 is greater than the maximum of 10" in guild("log", done.json["run"], "--json").out
    out = guild("worker", "show", "scribe").out
    assert "output schema (report.model:Report)" in out
    assert '"maximum": 10' in out
    (judge / "report" / "more.py").write_text("x = 1\n")
    assert run_scribe(guild).code == 4, "the other modules could import the new one"


def test_repeated_invalid_output_fails_the_run(guild: Guild, judge: Path) -> None:
    put_script(judge, *[{"output": {"score": 11}}] * 3)
    guild("trust", "--yes")
    ran = run_scribe(guild)
    assert (ran.code, ran.json["error"]["code"]) == (1, "runtime_failed")


def test_a_resumed_run_keeps_its_recorded_schema(guild: Guild, judge: Path) -> None:
    put_worker(judge, output_schema_ref="report.model:Report")
    write = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": "a.md", "content": "x"}}
    put_script(judge, write, {"output": {"score": 7}})
    guild("trust", "--yes")
    ask = run_scribe(guild).json["asks"][0]["ask"]
    (judge / "report" / "model.py").write_text("1 / 0")
    ran = guild("answer", ask, "yes", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, {"score": 7}), "the module is not imported again"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Report = 1", "report.model:Report is not a model"),
        ("import nowhere", "No module named 'nowhere'"),
        ("from pydantic import RootModel\nReport = RootModel[list[int]]", "type: object"),
        (MODEL.replace("Report", "Other"), "unknown name"),
    ],
)
def test_an_invalid_model_is_reported_by_check_run_and_plan(guild: Guild, judge: Path, text: str, message: str) -> None:
    (judge / "report" / "model.py").write_text(text)
    guild("trust", "--yes")
    for words in (["check"], ["run", "scribe", "go"], ["plan", "scribe"]):
        ran = guild(*words)
        assert message in ran.out + ran.err
        assert "Traceback" not in ran.err
        assert ran.code in (1, 2)


def test_importing_a_model_has_no_effect_outside_its_process(guild: Guild, judge: Path) -> None:
    mark = judge / "mark"
    effect = f"try:\n    open({str(mark)!r}, 'w')\nexcept OSError:\n    pass\n"
    (judge / "report" / "model.py").write_text(effect + MODEL)
    for words in (["plan", "scribe"], ["check"], ["run", "scribe", "go"], ["trust", "--yes"]):
        guild(*words)
    assert run_scribe(guild).code == 0
    assert not mark.exists()


def test_a_worker_cannot_trust(guild: Guild, post: Path) -> None:
    """No tool grants trust, and the command cannot reach the hall from the confinement."""
    call: dict[str, Any] = {
        "call": "Bash",
        "with": {"command": "guild trust --yes || python3 -m guildhall trust --yes"},
    }
    put_worker(post, "sly", tools=["Bash"], tool_rules=None)
    put_script(post, call, DONE)
    ran = guild("run", "sly", "go", "--output", "json", "--approve-all")
    assert ran.code == 0
    assert read_standings(guild) == {"toolboxes/post.py": "new"}
