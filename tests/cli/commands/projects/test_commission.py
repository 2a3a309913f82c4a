"""`guild dispatch` in a project, and the commands that take the id of a commission."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from guildhall.runs.record.entries import ToolEnded
from tests.projects.commissions.harness import LATE, Answer, CommissionProject, call, say, submit, write

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    made = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made


NEW = ("dispatch", "smith", "Forge a key.", "--project", "shop")
HELD = ("dispatch", "smith", "--hold", "Forge a key.")


def read_statuses(guild: Guild) -> dict[str, str]:
    """Return the status of each commission by its id."""
    return {row["commission"]: row["status"] for row in guild("ls", "commissions", "--json").json["commissions"]}


@pytest.mark.req("COM-2", "WKR-9", "X-6")
def test_a_commission_goes_from_pending_to_completed(guild: Guild, harness: CommissionProject) -> None:
    schema = {"type": "object", "properties": {"keys": {"type": "integer"}}, "required": ["keys"]}
    (harness.repo.path / "keys.json").write_text(json.dumps(schema))
    harness.worker(output_schema_ref="keys.json")
    harness.script(
        [
            call("report_progress", summary="The iron is hot."),
            call("record_decision", question="Which iron?", decision="Wrought", reasoning="It bends."),
            call("log_question", question="Which lock is it for?"),
            write("src/key.py", "key = 1\n"),
            submit({"keys": 3}),
            say(),
        ]
    )
    words = ("--title", "A key", "--artifact", "src/key.py", "--check", "test -s src/key.py", "--link", ".lore/plan.md")
    made = guild(*HELD, *words, "--json")
    assert made.code == 0, made.err
    one = made.json
    assert (one["status"], one["artifacts"], one["checks"]) == ("pending", ["src/key.py"], ["test -s src/key.py"])
    id = one["commission"]
    done = guild("dispatch", id, "--wait", "--json")
    assert done.code == 0, done.err + done.out
    assert (done.json["status"], done.json["result"]) == ("completed", {"keys": 3})
    shown = guild("show", id, "--json").json
    assert shown["decisions"] == [{"question": "Which iron?", "decision": "Wrought", "reasoning": "It bends."}]
    assert [one["question"] for one in shown["asked"]] == ["Which lock is it for?"]
    assert shown["summary"] == "The iron is hot."
    text = guild("show", id).out
    assert "A key" in text
    assert "Wrought" in text
    assert "completed" in text
    assert '{\n  "keys": 3\n}' in text
    artifact = harness.repo.at("guildhall/records", f".lore/commissions/{id}.md")
    assert "Which iron?" in artifact
    assert "Which lock is it for?" in artifact
    assert guild("log", id).code == 0
    assert [row["commission"] for row in guild("ls", "commissions", "--json").json["commissions"]] == [id]
    assert id in guild("ls", "commissions", "--status", "completed").out
    assert id in guild("ls").out
    assert guild("ls", id, "--json").json["status"] == "completed"
    assert guild("ls", id).out.startswith(f"{id}  completed")
    assert guild("wait", id).code == 0
    over = guild("resume", id)
    assert over.code == 1
    assert "redispatch" not in over.err
    replayed = guild("replay", id)
    assert replayed.code == 0, replayed.err + replayed.out


@pytest.mark.req("COM-31")
@pytest.mark.req("COM-7")
def test_one_command_creates_and_dispatches_a_commission_in_a_hall(
    guild_hall: GuildWithHall, harness: CommissionProject
) -> None:
    harness.script([write("src/key.py"), submit("Forged."), say()])
    made = guild_hall(*NEW, "--json")
    assert made.code == 0, made.err
    id = made.json["commission"]
    assert made.json["status"] == "in_progress"
    done = guild_hall("wait", id, "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    assert guild_hall("show", id, "--json").json["status"] == "completed"
    # A commit of the user unblocks another commission without any command.
    blocked = guild_hall(*HELD, "--depends-on", "docs/lock.md").out.strip()
    harness.repo.commit({"docs/lock.md": "The lock\n"}, "Lock")
    _wait_until_pending(harness.home, blocked)
    # The user changes the same line meanwhile.
    harness.script([{"sleep": 1, **write("src/cart.py", "total = 2\n")}, submit("Two."), say()])
    created = guild_hall(*NEW)
    assert created.code == 0, created.err
    both = created.out.strip()
    harness.repo.commit({"src/cart.py": "total = 3\n"}, "Three")
    waited = guild_hall("wait", both, "--json")
    assert (waited.code, waited.json["status"]) == (4, "failed")
    assert "src/cart.py" in waited.json["reason"]
    assert harness.repo.at(waited.json["branch"], "src/cart.py") == "total = 2"
    assert harness.repo.at("claude/main", "src/cart.py") == "total = 3"
    asked = guild_hall("ls", "--json").json["needs_you"]["asks"]
    asks = {ask["kind"]: ask["ask"] for ask in asked}
    (meeting,) = guild_hall("ls", "meetings", "--json").json["meetings"]
    assert (meeting["status"], meeting["worker"], meeting["ask"]) == ("requested", "smith", asks["meeting"])
    assert "src/cart.py" in next(ask["body"] for ask in asked if ask["kind"] == "meeting")
    answered = guild_hall("answer", asks["conflict"], "redispatch")
    assert (answered.code, answered.out) == (0, f"{both} is in_progress\n"), answered.err
    assert f"guild wait {both}" in answered.err
    assert "resume" not in answered.err
    assert guild_hall("wait", both).code == 0
    # After the hall is killed, `wait` reports the interrupted run instead of waiting for it.
    harness.script([write("src/key.py"), LATE])
    other = guild_hall(*NEW).out.strip()
    waits = guild_hall("dispatch", "guide", "--hold", "--model", "script:script.yaml", "Help.").out.strip()
    guild_hall.kill_hall()
    assert f"Its run has stopped. Continue: guild resume {other}" in guild_hall("show", other).err
    left = guild_hall("wait", other)
    assert left.code == 4
    assert f"guild resume {other}" in left.err
    assert guild_hall("wait", waits).code == 4


def test_a_started_commission_is_not_called_pending_when_the_hall_dies(
    guild_hall: GuildWithHall, harness: CommissionProject
) -> None:
    harness.script([write("src/key.py"), LATE])
    process = guild_hall.start(*NEW, "--wait")
    assert process.stderr is not None
    error = ""
    while "in_progress" not in error:  # the command knows that the commission has started
        line = process.stderr.readline()
        assert line, error
        error += line
    guild_hall.kill_hall()
    error += process.communicate(timeout=60)[1]
    id = guild_hall("ls", "commissions", "--json").json["commissions"][0]["commission"]
    assert f"{id} was started. Show its state: guild show {id}" in error
    assert "is pending" not in error


def _wait_until_pending(home: Home, id: str) -> None:
    until = time.monotonic() + 10
    with closing(sqlite3.connect(f"file:{home.database}?mode=ro", uri=True)) as record:
        while record.execute("select status from commissions where id = ?", (id,)).fetchone() != ("pending",):
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.req("COM-14", "COM-30")
def test_a_failed_commission_reports_its_reason_and_can_be_retried(guild: Guild, harness: CommissionProject) -> None:
    repo = harness.repo
    harness.script([call("report_progress", summary="Hot."), write("src/key.py", "half\n"), say("No.")])
    done = guild(*NEW, "--wait", "--json")
    assert done.code == 1
    assert done.json["reason"] == "the run ended without submitting a result"
    id, branch = done.json["commission"], done.json["branch"]
    head, row = guild("ls", "commissions").out.splitlines()
    assert head.split()[:4] == ["id", "status", "project", "worker"]
    assert row.split()[:4] == [id, "failed", "shop", "smith"]
    assert row.endswith("the run ended without submitting a result"), "instead of the progress"
    assert repo.at(branch, "src/key.py") == "half", "committed before its checkout was removed"
    assert "status: failed" in repo.at("guildhall/records", f".lore/commissions/{id}.md")
    assert not list((harness.home.worktrees / "shop").glob(f"{id}*"))
    assert f"guild retry {id}" in guild("show", id).err
    refused = guild("resume", id)
    assert refused.code != 0
    assert "guild retry" in refused.err
    harness.script([write("src/lock.py", "whole\n"), submit("Forged.")])  # then the script has no answer left
    again = guild("retry", id, "--wait", "--json")
    assert (again.code, again.json["attempt"], again.json["status"]) == (0, 2, "completed")
    assert (again.json["result"], repo.at("claude/main", "src/lock.py")) == ("Forged.", "whole")
    assert "after the result was submitted" in again.json["reason"]
    assert again.json["branch"] != branch
    assert repo.at(branch, "src/key.py") == "half"
    assert repo.git("ls-tree", "claude/main", "src/key.py") == ""
    assert again.json["timeline"][: len(done.json["timeline"])] == done.json["timeline"]
    assert guild("stop", "--abandon", id).code != 0
    waits = guild(*HELD).out.strip()
    rows = [line.split()[:2] for line in guild("ls").out.splitlines()]
    assert [row for row in rows if row[0] == id] == [[id, "completed"]], "once, with its own status"
    assert [waits, "pending"] in rows
    assert len(guild("ls", "--json").json["commissions"]) == 2
    text = guild("show", id).out
    assert f"refs/guildhall/kept/commission/{id}-2" in text
    assert "checkout" not in text


def test_a_failed_check_is_shown_with_its_output(guild: Guild, harness: CommissionProject) -> None:
    harness.script([submit("Forged."), say()])
    check = """echo 'it is "too" small' && false"""
    done = guild(*NEW, "--check", "true", "--check", check, "--wait")
    assert done.code == 1
    assert f"the check `{check}` failed" in done.out
    assert any(line.endswith('it is "too" small') for line in done.out.splitlines())


def test_a_commission_that_cannot_start_fails_with_its_reason(guild: Guild, harness: CommissionProject) -> None:
    harness.script([say()])
    id = guild(*HELD, "--model", "script:script.yaml").out.strip()
    (harness.repo.path / "script.yaml").unlink()
    done = guild("dispatch", id, "--wait")
    assert done.code == 1
    assert done.out == f"{id} is failed\n"
    assert "script.yaml: file not found. Create it" in done.err
    assert f"guild retry {id}" in done.err
    edited = guild("edit", id, "--title", "Later")
    assert edited.code == 0
    assert "It failed" not in edited.err
    rows = [line.split() for line in guild("ls").out.splitlines()]
    assert [row[:2] for row in rows if row[0] == id] == [[id, "failed"]], "although it has never had a run"
    refused = guild("project", "rm", "shop")
    assert refused.code == 1
    assert f"unfinished work: {id}\n" in refused.err
    assert guild("stop", "--abandon", id).code == 0
    assert guild("project", "rm", "shop").code == 0


def test_impossible_commissions_are_not_created(guild: Guild, harness: CommissionProject) -> None:
    harness.script([say()])
    guide = ("dispatch", "guide", "--hold", "Help.")
    nothing = guild(*guide)
    assert (nothing.code, nothing.out) == (2, "")
    assert "no model set for worker" in nothing.err
    assert "or use --model" in nothing.err
    assert "dispatch" not in nothing.err
    assert "no known price" in guild(*HELD, "--max-budget-usd", "2").err
    assert "no model set for worker" in guild(*HELD, "--reviewer", "guide").err
    unknown = guild(*HELD, "--depends-on", ".lore/commissions/c-2222222222.md")
    assert (unknown.code, unknown.out) == (3, "")
    assert "unknown commission 'c-2222222222'" in unknown.err
    assert guild("ls", "commissions", "--json").json["commissions"] == []
    # A commission can be edited, but not into an impossible one.
    made = guild(*guide, "--model", "script:script.yaml", "--max-turns", "3", "--link", "docs/nowhere.md")
    id = made.out.strip()
    assert "linked: docs/nowhere.md does not exist on claude/main" in made.err
    assert "docs/nowhere.md does not exist" in guild("show", id).err
    assert "no price" not in guild("show", id).out, "it has cost nothing yet"
    assert "no known price" in guild("edit", id, "--max-budget-usd", "2").err
    assert "no model set for worker" in guild("edit", id, "--model", "").err
    edited = guild("edit", id, "--max-turns", "", "--max-budget-usd", "", "--json").json
    assert "max_turns" not in edited
    assert "--max-turns" in guild("edit", id, "--max-turns", "none").err


def test_a_commission_stays_pending_if_its_dispatch_is_refused(guild: Guild, harness: CommissionProject) -> None:
    harness.script([say()])
    other = guild(*HELD).out.strip()
    harness.repo.git("worktree", "add", "-q", str(harness.repo.path.parent / "aside"), "claude/main")
    made = guild(*NEW, "--wait")
    id = made.out.strip()
    assert made.code == 1
    assert f"{id} was created and is pending. Start it: guild dispatch {id}" in made.err
    harness.repo.git("worktree", "remove", "--force", str(harness.repo.path.parent / "aside"))
    (harness.repo.path / "workers" / "smith.yaml").write_text("name: smith\ninstructions: You forge.\n")
    refused = guild("dispatch", id, "--wait")
    assert refused.code == 2
    assert f"guild edit {id} --model" in refused.err
    assert read_statuses(guild) == {other: "pending", id: "pending"}


def test_a_commission_is_edited_stopped_abandoned_and_deleted(guild: Guild, harness: CommissionProject) -> None:
    harness.script([say()])
    id = guild(*HELD).out.strip()
    assert guild("wait", id).code == 4, "a held commission starts only when it is dispatched"
    assert f"guild dispatch {id}" in guild("resume", id).err
    edited = guild("edit", id, "--prompt", "Forge two.", "--max-turns", "7", "--json").json
    assert (edited["prompt"], edited["max_turns"], edited["status"]) == ("Forge two.", 7, "pending")
    assert edited["title"] == "Forge two.", "it was created without a title"
    nothing = guild("edit", id)
    assert nothing.code == 2
    assert "--depends-on" in nothing.err
    words = ("--title", "Keys", "--check", "true", "--check", "false", "--reviewer", "smith", "--link", "README.md")
    more = guild("edit", id, *words, "--model", "script:script.yaml", "--json").json
    assert (more["checks"], more["reviewer"], more["linked"]) == (["true", "false"], "smith", ["README.md"])
    less = ("--check", "", "--reviewer", "", "--model", "", "--link", "", "--prompt", "Forge three.")
    gone = guild("edit", id, *less, "--json").json
    assert (gone["checks"], gone["reviewer"], gone["linked"], gone.get("model")) == ([], None, [], None)
    assert gone["title"] == "Keys"
    waited = guild("edit", id, "--title", "Two keys", "--wait")
    assert (waited.code, waited.out) == (4, f"{id} is pending\n"), "there is nothing to wait for"
    assert "must not be empty" in guild("stop", id, "--reason", "").err
    long = f"not now: {'it is late ' * 50}\nand the iron is cold"
    assert guild("stop", id, "--reason", long, "--json").json["reason"] == long
    shown = guild("show", id).out
    assert long.splitlines()[0] in shown, "all of it"
    assert "│ and the iron is cold" in shown
    assert guild("stop", "--abandon", id).out == f"{id} is abandoned\n"
    assert guild("rm", id).out == f"Deleted {id}.\n"
    assert guild("rm", id).code == 3
    assert id not in guild("ls").out
    other = guild(*HELD).out.strip()
    assert "abandon" in guild("rm", other, "--json").err
    assert guild("stop", other).out.startswith(f"{other} is cancelled")


def test_a_completed_commission_is_not_cancelled(guild: Guild, harness: CommissionProject) -> None:
    harness.script([submit("Forged."), LATE])

    async def leave(shop: CommissionProject) -> str:
        begun = await shop.commissions.dispatch((await shop.create_commission()).id, shop.frame)
        ledger = shop.hall.runs.ledger(str(begun.run))
        await shop.wait_until(lambda: ledger.journal.all(ToolEnded))
        return begun.id

    id = harness.run_in_hall(leave)
    late = guild("stop", id)
    assert (late.code, late.out) == (1, f"{id} is completed\n")
    assert "Not cancelled" in late.err


def test_interrupting_a_manager_that_waits_leaves_no_interrupted_call(guild: Guild, harness: CommissionProject) -> None:
    made = call("create_commission", title="A key", worker="smith", prompt="Forge it.")
    begun = {"expect": "(?P<id>c-[a-z0-9]+) is pending", **call("dispatch_commission", id="${id}")}
    waits = call("wait_for_commissions", ids=["${id}"])
    harness.script([LATE], manager=[[made, begun, waits, say()]])
    process = guild.start("run", "manager", "Go.", "--override-model", "script:script.yaml")
    assert process.stderr
    for line in process.stderr:
        if line.startswith("→ wait_for_commissions"):
            break
    process.send_signal(signal.SIGINT)
    answered = process.stderr.read()
    assert process.wait(10) == 130
    assert "took effect" not in answered, "waiting has no effect"
    assert "guild resume r-" in answered


def test_interrupting_the_wait_prints_the_command_to_resume(guild: Guild, harness: CommissionProject) -> None:
    harness.script([LATE])
    process = guild.start(*NEW, "--wait")
    assert process.stderr
    assert process.stdout
    for line in process.stderr:
        if "Ctrl-C stops waiting" in line:
            break
    process.send_signal(signal.SIGINT)
    id, answered = process.stdout.read().strip(), process.stderr.read()
    assert process.wait(10) == 130
    assert id in read_statuses(guild)
    assert f"Continue it: guild resume {id}" in answered


def test_a_blocked_commission_names_its_missing_dependencies(guild: Guild, harness: CommissionProject) -> None:
    made = guild(*HELD, "--depends-on", ".lore/design.md", "--json").json
    assert (made["status"], made["reason"]) == ("blocked", "waiting for .lore/design.md")
    there = guild(*NEW, "--depends-on", ".lore/design.md", "--wait")
    assert there.code == 4
    assert there.out.startswith("c-"), "the commission was created"
    assert "waiting for .lore/design.md" in guild("ls", "commissions").out
    refused = guild("dispatch", made["commission"], "--wait")
    assert refused.code != 0
    assert "waiting for .lore/design.md" in refused.err
    assert "(missing)" in guild("show", made["commission"]).out


@pytest.mark.req("COM-7", "SYS-14", "SYS-24")
def test_a_commission_waits_for_files_of_other_commissions_and_of_the_user(
    guild: Guild, harness: CommissionProject
) -> None:
    repo = harness.repo
    harness.script([write(".lore/design.md", "A design\n"), submit("Designed."), say()])
    design = guild(*HELD, "--artifact", ".lore/design.md").out.strip()
    needs = ("--depends-on", ".lore/design.md", "--depends-on", "docs/a.md")
    made = guild(*HELD, "--artifact", "src/key.py", *needs, "--json").json
    id = made["commission"]
    assert (made["status"], made["reason"]) == ("blocked", "waiting for .lore/design.md, docs/a.md")
    assert guild("show", id, "--json").json["after"] == [design]
    circle = guild("edit", design, "--depends-on", "src/key.py")
    assert f"{design} -> src/key.py -> {id} -> .lore/design.md -> {design}" in circle.err

    mine = repo.commit({"docs/a.md": "A\n"}, "Mine")
    assert guild("dispatch", design, "--wait").code == 0
    assert read_statuses(guild)[id] == "pending", "by itself"
    assert (repo.at("claude/main", ".lore/design.md"), repo.at("claude/main", "docs/a.md")) == ("A design", "A")
    assert (repo.git("rev-parse", "main"), repo.git("rev-list", "claude/main..main")) == (mine, "")
    repo.git("rm", "-q", "docs/a.md")
    repo.commit({}, "No more")
    assert "waiting for docs/a.md" in guild("dispatch", id, "--wait").err
    assert read_statuses(guild)[id] == "blocked"
    repo.commit({"docs/a.md": "Again\n"}, "Again")
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])
    done = guild("dispatch", id, "--wait", "--json").json
    moves = [line["after"] for line in done["timeline"] if line["after"]]
    assert moves == ["blocked", "pending", "blocked", "pending", "dispatched", "in_progress", "completed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dispatch", "nobody", "--hold", "Forge."), "nobody"),
        (("dispatch",), "WORKER"),
        ((*HELD, "--artifact", "../x"), "not a normal path inside the project"),
        ((*HELD, "--artifact", ".git/hooks/pre-commit"), "not a normal path inside the project"),
        ((*HELD, "--project", "nowhere"), "nowhere"),
        (NEW, "--wait"),
        ((*HELD, "--wait"), "--wait cannot be used with --hold"),
        ((*HELD, "--model", "bogus"), "the provider is missing"),
        ((*HELD, "--model", "nobody:gpt-4"), "unknown provider 'nobody'"),
        ((*HELD, "--model", "script:nope.yaml"), "nope.yaml"),
        ((*HELD[:-1], " "), "the task is empty"),
        ((*HELD[:-1], "x" * 50_001), "prompt: longer than 50,000 bytes"),
        ((*HELD[:-1], "ü" * 25_001), "prompt: longer than 50,000 bytes"),
        ((*HELD, "--title", ""), "title: must not be empty"),
        (("ls", "commissions", "--project", "nowhere"), "nowhere"),
        (("dispatch", "c-2222222222", "--wait"), "unknown commission"),
        (("edit", "x" * 500, "--title", "y"), "unknown commission"),
        (("retry", "r-2222222222"), "r-2222222222 is a run, not a commission"),
        (("retry", "j-2222222222"), "it is a job"),
        (("run", "c-2222222222", "Go."), "is a commission, not a worker"),
        (("ls", "commissions", "--status", "done"), "unknown commission status"),
        (("show", "c-2222222222"), "unknown commission"),
        (("wait", "c-2222222222"), "unknown commission"),
    ],
)
def test_invalid_arguments_are_reported_without_a_traceback(
    guild: Guild, harness: CommissionProject, words: tuple[str, ...], message: str
) -> None:
    ran = guild(*words)
    assert ran.code != 0
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert json.dumps(ran.out) == '""'


def test_dispatch_outside_of_a_project_is_refused(guild: Guild, harness: CommissionProject, tmp_path: Path) -> None:
    ran = guild(*HELD, cwd=tmp_path)
    assert ran.code != 0
    assert "guild project add" in ran.err


@pytest.mark.parametrize(
    ("answers", "counts", "text"),
    [
        ([], [0, 0, 0], "no files changed"),
        ([write("src/cart.py", "total = 2\n"), write("src/key.py", "a\nb\n")], [2, 3, 1], "2 files changed, +3 -1"),
    ],
)
def test_a_completed_commission_shows_the_extent_of_its_work(
    guild: Guild, harness: CommissionProject, answers: list[Answer], counts: list[int], text: str
) -> None:
    harness.script([*answers, submit(), say()])
    id = guild(*NEW, "--wait", "--json").json["commission"]
    waited = guild("wait", id)
    reason = f"merged into claude/main: {text}" if counts[0] else text
    for output in (waited.out, guild("show", id).out, guild("ls", "commissions").out):
        assert reason in output
        assert ("merged" in output) == bool(counts[0])
    (row,) = guild("ls", "commissions", "--json").json["commissions"]
    shown = guild("show", id, "--json").json
    assert row["diffstat"] == shown["diffstat"] == dict(zip(("files", "insertions", "deletions"), counts, strict=True))
    assert shown["reason"] == shown["timeline"][-1]["reason"] == reason
