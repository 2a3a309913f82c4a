"""Delegation: which workers may be called, with which input, and one tree of journals, asks and ends."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, OTHER, WRITE, journal, kinds, put_worker, wait_until
from tests.runs.test_asks import terminal as terminal
from tests.runs.trees import ONE, TWO, call, calls, list_notes, put_answers, put_boss, put_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.places import Terminal
    from tests.conftest import CommandResult, Guild


def run_boss(guild: Guild, *words: str, code: int = 0) -> Any:
    """Run `boss` and return the JSON output of the command."""
    ran = guild("run", "boss", "go", "--output", "json", *words)
    assert ran.code == code, ran
    return ran.json


def tool_results(guild: Guild, root: str) -> str:
    """Return the results that the root run received for its calls."""
    shown = guild("show", root, "--json").json
    return "\n".join(message["content"] for message in shown["messages"] if message["role"] == "tool")


def answer(guild: Guild, ask: str, *words: str) -> CommandResult:
    return guild("answer", ask, *words, "--output", "json")


# Calls


@pytest.mark.req("DO-7", "X-1")
def test_parallel_calls_form_one_tree(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None)
    three = calls(*(call("hand", f"say {number}") for number in range(3)))
    used = {"usage": {"input": 1000, "output": 100}}
    put_answers(
        project,
        boss=[[{**three, **used}, {"expect": "zero\none\ntwo", "say": "three", **used}]],
        hand=[[{"expect": f"say {number}", "say": word, **used}] for number, word in enumerate(["zero", "one", "two"])],
    )
    ran = guild("run", "boss", "go", "--output", "json")
    done = ran.json
    assert (ran.code, done["output"]) == (0, "three"), ran
    assert [one["output"] for one in done["runs"]] == ["zero", "one", "two"]
    assert {(one["parent"], one["worker"], one["status"]) for one in done["runs"]} == {
        (done["run"], "hand", "completed")
    }
    counted = {"turns": 5, "input_tokens": 5000, "output_tokens": 500, "cost_usd": done["cost_usd"]}
    assert done["usage"] == {**counted, "cache_read_tokens": 0, "cache_write_tokens": 0}
    assert done["cost_usd"] == pytest.approx(5 * 0.0045)
    assert re.search(r"Run r-\w+: model script:answers.yaml; may call hand; at most 5.00 USD", ran.err)
    for label in ("[hand] ", "[hand 2] ", "[hand 3] "):
        assert re.search(rf"^  {re.escape(label)}Run r-\w+: .*; shares the parent's budget; ", ran.err, re.M)
    assert re.search(r"completed: 4 runs, 5 turns, 5,000 tokens in", ran.err)
    children = [one["run"] for one in done["runs"]]

    listed = guild("ls", "--json", "--all").json["done"]
    assert [(one["run"], one["cost_usd"]) for one in listed] == [(done["run"], pytest.approx(done["cost_usd"]))]
    shown = guild("show", done["run"]).out
    assert all(f"called   {child} hand completed" in shown for child in children)
    child = guild("show", children[1]).out
    assert f"called by  {done['run']}" in child
    assert "1 turn, 1,000 tokens in" in child
    assert [one["run"] for one in guild("show", done["run"], "--json").json["below"]] == children
    entries = journal(guild, done["run"])
    assert {entry["run"] for entry in entries} == {done["run"], *children}
    for one in (done["run"], *children):
        assert [entry["seq"] for entry in entries if entry["run"] == one] in (list(range(12)), list(range(4)))
    assert f"  [hand {children[0]}]   0 " in guild("log", done["run"]).out
    assert guild("log", done["run"], "-f").code == 0
    sums = {line["worker"]: line["runs"] for line in guild("cost", "--json").json["lines"]}
    assert sums == {"boss": 1, "hand": 3}
    assert guild("cost", "--json").json["total_usd"] == pytest.approx(done["cost_usd"])


def test_the_stream_has_the_events_of_the_whole_tree(guild: Guild, project: Path) -> None:
    put_tree(project)
    ran = guild("run", "boss", "go", "--output", "stream-json")
    *events, result = [json.loads(line) for line in ran.out.splitlines()]
    root = result["run"]
    assert {event["root"] for event in events} == {root}
    started = [event for event in events if event["type"] == "run_started"]
    assert [event["parent"] for event in started] == [None, root, root]
    assert {event["run"] for event in events} == {root, *(one["run"] for one in result["runs"])}
    assert (events[-1]["type"], events[-1]["run"]) == ("run_ended", root)
    assert sum(event["type"] == "run_ended" for event in events) == 3


@pytest.mark.req("DO-7")
def test_a_called_worker_has_its_own_tools_and_by_default_the_model_of_its_caller(guild: Guild, project: Path) -> None:
    put_boss(project, "hand", "own", tools=["Read"], model="script:boss.yaml")
    put_worker(project, "hand", tool_rules=None)
    put_worker(project, "own", tool_rules=None, sandboxes=None, base=False, tools=["Glob"], model="script:own.yaml")
    put_answers(project, boss=[[{"say": "not this one"}]])
    put_answers(project, own=[[{"say": "own"}]])
    (project / "own.yaml").write_text((project / "answers.yaml").read_text())
    put_answers(project, boss=[[calls(call("hand"), call("own")), DONE]], hand=[[{"say": "hand"}]])
    (project / "boss.yaml").write_text((project / "answers.yaml").read_text())
    (project / "answers.yaml").write_text("workers: {}\n")
    done = run_boss(guild)
    assert [one["output"] for one in done["runs"]] == ["hand", "own"]
    frozen = {entry["run"]: entry["data"] for entry in journal(guild, done["run"]) if entry["kind"] == "assembled"}
    names = {data["worker"]["definition"]["name"]: {tool["name"] for tool in data["tools"]} for data in frozen.values()}
    assert names["own"] == {"Glob"}
    assert "worker_call" in names["boss"]
    assert not names["hand"] & {"worker_call", "Read", "Glob"}
    assert {name for name in names["hand"] if not name.startswith("sandbox_")} < names["boss"]  # the base toolbox
    models = {data["worker"]["definition"]["name"]: data["model"] for data in frozen.values()}
    assert models["hand"] == models["boss"] == f"script:{project}/boss.yaml"
    assert models["own"] == f"script:{project}/own.yaml"

    put_answers(project, **{"*": [[call("hand"), {"say": "all the same"}]], "hand": [[{"say": "other"}]]})
    same = run_boss(guild, "--override-model", "script:answers.yaml")
    assert [one["output"] for one in same["runs"]] == ["other"]


@pytest.mark.req("DO-7")
def test_input_and_output_can_be_objects(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None, output_schema_ref="schema.json")
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    (project / "schema.json").write_text(json.dumps(schema))
    put_answers(
        project,
        boss=[[call("hand", {"add": [1, {"to": "ü"}]}), {"expect": '"sum": 3', "say": "3"}]],
        hand=[[{"expect": r'"add": \[\s+1,\s+\{\s+"to": "ü"', "output": {"sum": "three"}}, {"output": {"sum": 3}}]],
    )
    done = run_boss(guild)
    assert done["runs"][0]["output"] == {"sum": 3}
    assert guild("replay", done["run"]).code == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("  \n", "invalid input: empty"),
        ("a\0b", "invalid input: not text"),
        (7, "input_data"),
        (["a"], "input_data"),
    ],
)
def test_invalid_input_is_returned_to_the_caller(guild: Guild, project: Path, data: object, message: str) -> None:
    put_boss(project)
    put_worker(project, "hand")
    put_answers(project, boss=[[call("hand", data), DONE]], hand=[[DONE]])
    done = run_boss(guild)
    assert done["runs"] == []
    assert message in tool_results(guild, done["run"])


@pytest.mark.req("DO-7")
@pytest.mark.parametrize(
    ("hand", "message"),
    [
        ([{"fail": 400}], "did not finish"),
        ([{"expect": "something else", "say": "no"}], "did not finish"),
        ([{"say": ""}, {"say": ""}, {"say": ""}], "3 unusable model responses in a row"),
    ],
)
def test_a_failed_call_is_reported_to_the_caller_which_continues(
    guild: Guild, project: Path, hand: list[dict[str, Any]], message: str
) -> None:
    put_boss(project)
    put_worker(project, "hand")
    put_answers(project, boss=[[call("hand"), {"say": "without it, then"}]], hand=[hand])
    done = run_boss(guild)
    assert (done["output"], done["runs"][0]["status"]) == ("without it, then", "failed")
    assert message in tool_results(guild, done["run"])
    assert "guild resume" not in guild("show", done["runs"][0]["run"]).err
    assert guild("replay", done["run"]).code == 0


# Allowed workers


@pytest.mark.req("DO-7")
@pytest.mark.parametrize(
    ("allowed", "name", "may"),
    [
        (["hand"], "hand", True),
        (["project/hand"], "hand", True),
        (["project/hand"], "project/hand", True),
        (["hand"], "project/hand", False),
        (["hand"], "hnad", False),
        (["hand"], "draft", False),
        (["hand"], "", False),
        (["hand"], "workers/hand.yaml", False),
        (["hand"], "*", False),
        (["draft"], "draft", True),
        (["gone"], "gone", False),
        (["retired"], "retired", False),
        (["*"], "hand", True),
        (["*"], "project/hand", True),
        (["*"], "hnad", False),
        (["*"], "draft", False),
        (["*"], "retired", False),
        (["*"], "workers/hand.yaml", False),
        (["*"], "../hand.json", False),
        (["*"], "*", False),
    ],
)
def test_only_allowed_workers_are_called(guild: Guild, project: Path, allowed: list[str], name: str, may: bool) -> None:
    put_boss(project, *allowed)
    for status in ("draft", "retired"):
        put_worker(project, status, status=status)
    put_worker(project, "hand", description="Writes")
    put_answers(project, boss=[[call(name), DONE]], **{"*": [[{"say": "called"}]]})
    done = run_boss(guild)
    assert [one["output"] for one in done["runs"]] == (["called"] if may else [])
    if name == "hnad":
        assert "Did you mean 'hand'?" in tool_results(guild, done["run"])


def test_the_tool_description_lists_the_allowed_workers(guild: Guild, project: Path) -> None:
    put_worker(project, "hand", description="Writes files")
    put_worker(project, "draft", description="not yet", status="draft")
    put_answers(project, boss=[[DONE]])
    for allowed, lines in (
        (["hand", "gone"], ["- hand: Writes files", "- gone"]),
        (["*"], ["- hand: Writes files", "- boss"]),
    ):
        put_boss(project, *allowed)
        first = journal(guild, run_boss(guild)["run"])[0]["data"]
        message = next(tool["description"] for tool in first["tools"] if tool["name"] == "worker_call").splitlines()
        assert set(lines) <= set(message)
        assert not any("draft" in line for line in message)


@pytest.mark.req("DO-7")
@pytest.mark.parametrize("allowed", ["hand", "*"])
def test_a_locked_worker_whose_text_has_changed_is_not_called(guild: Guild, project: Path, allowed: str) -> None:
    put_tree(project, allow_workers=[allowed])
    assert guild("worker", "lock", "hand").code == 0
    assert len(run_boss(guild)["runs"]) == 2
    put_worker(project, "hand", tool_rules=None, instructions="Do as you please.")
    done = run_boss(guild)
    assert done["runs"] == []
    assert "is locked, but its file was changed afterwards" in tool_results(guild, done["run"])


def test_a_rule_requires_approval_of_a_call_or_forbids_it(guild: Guild, project: Path) -> None:
    put_tree(project, tool_rules={"worker.call": {"approval_required": True}})
    waiting = run_boss(guild, code=4)
    assert waiting["runs"] == []
    first, second = waiting["asks"]
    assert answer(guild, first["ask"], "yes").code == 4
    done = answer(guild, second["ask"], "no", "--note", "one is enough").json
    assert [one["status"] for one in done["runs"]] == ["completed"]
    assert "one is enough" in tool_results(guild, done["run"])
    put_tree(project, tool_rules={"worker_call": {"allowed": False}})
    assert run_boss(guild)["runs"] == []


@pytest.mark.req("DO-7")
def test_recursive_calls_end_at_the_maximum_depth(guild: Guild, project: Path) -> None:
    put_boss(project, "boss")
    put_answers(project, boss=[[call("boss"), DONE]])
    done = run_boss(guild)
    assert len(done["runs"]) == 7
    assert {one["status"] for one in done["runs"]} == {"completed"}
    parents = {one["run"]: one["parent"] for one in done["runs"]}
    assert len(set(parents.values())) == 7
    deepest = (set(parents) - set(parents.values())).pop()
    assert "cannot nest more than 8 runs" in str(journal(guild, deepest))
    assert guild("replay", done["run"]).code == 0


@pytest.mark.parametrize(("mode", "there"), [("--strict", []), ("--approve-all", ["a.md", "b.md"])])
def test_the_approval_mode_of_the_command_applies_to_child_runs(
    guild: Guild, project: Path, mode: str, there: list[str]
) -> None:
    put_tree(project, asking=True)
    done = run_boss(guild, mode)
    assert done["asks"] == []
    assert list_notes(project) == there


def test_a_recording_answers_for_the_whole_tree(guild: Guild, project: Path) -> None:
    put_tree(project)
    recorded = run_boss(guild)
    put_answers(project, boss=[[{"say": "not this"}]])
    again = run_boss(guild, "--override-model", f"replay:{recorded['run']}")
    assert [one["output"] for one in again["runs"]] == ["one is written", "two is written"]
    assert again["cost_usd"] == 0
    put_worker(project, "other")
    put_boss(project, "other")
    put_answers(project, boss=[[call("other"), DONE]], other=[[DONE]])
    longer = run_boss(guild)
    put_boss(project, "hand")
    lost = run_boss(guild, "--override-model", f"replay:{longer['run']}")
    assert "calling 'other' is not allowed" in tool_results(guild, lost["run"])


# Asks


@pytest.mark.req("X-15", "X-2")
def test_a_tree_waits_until_all_asks_of_its_child_runs_are_answered(guild: Guild, project: Path) -> None:
    put_tree(project, asking=True)
    waiting = run_boss(guild, code=4)
    assert waiting["status"] == "waiting"
    assert [one["status"] for one in waiting["runs"]] == ["waiting", "waiting"]
    assert sorted(ask["run"] for ask in waiting["asks"]) == sorted(one["run"] for one in waiting["runs"])
    assert {ask["root"] for ask in waiting["asks"]} == {waiting["run"]}
    listed = guild("ls", "--json").json
    assert ([*listed["working"], *listed["done"]], listed["needs_you"]["runs"]) == ([], [])
    assert len(listed["needs_you"]["asks"]) == 2
    child = guild("show", waiting["runs"][0]["run"])
    assert "guild answer a-" in child.err
    first, second = (ask["ask"] for ask in waiting["asks"])
    still = answer(guild, first, "yes")
    assert (still.code, list_notes(project)) == (4, [])
    assert f"guild answer {second}" in still.err
    done = answer(guild, second, "yes").json
    assert (done["status"], done["output"]) == ("completed", "both are written")
    assert list_notes(project) == ["a.md", "b.md"]
    entries = journal(guild, done["run"])
    assert kinds(entries).count("model_answered") == 6
    assert kinds([entry for entry in entries if entry["data"].get("tool") == "sandbox_write_text"]) == [
        "tool_asked",
        "tool_asked",
        "tool_started",
        "tool_started",
    ]
    assert guild("replay", done["run"]).code == 0


@pytest.mark.req("X-15")
def test_a_sibling_finishes_while_the_parent_waits_for_the_ask_of_a_child(guild: Guild, project: Path) -> None:
    put_boss(project, "hand", "free")
    put_worker(project, "hand")
    put_worker(project, "free", tool_rules=None)
    put_answers(
        project,
        boss=[[calls(call("hand"), call("free")), {"expect": "repeat it unchanged. not now", "say": "done"}]],
        hand=[[WRITE, {"expect": "not now", "say": "The user denied this call. Do not repeat it unchanged. not now"}]],
        free=[[{**OTHER, "sleep": 0.2}, {"say": "freely written", "sleep": 0.2}]],
    )
    waiting = run_boss(guild, code=4)
    assert [one["status"] for one in waiting["runs"]] == ["waiting", "completed"]
    assert list_notes(project) == ["b.md"]
    done = answer(guild, waiting["asks"][0]["ask"], "no", "--note", "not now").json
    assert (done["status"], list_notes(project)) == ("completed", ["b.md"])
    entries = journal(guild, done["run"])
    free = next(one["run"] for one in done["runs"] if one["worker"] == "free")
    assert kinds([entry for entry in entries if entry["run"] == free]).count("resumed") == 0


def test_an_ask_of_a_called_worker_expires(guild: Guild, project: Path) -> None:
    put_tree(project, hand={"tool_rules": {"fs.write": {"approval_required": True, "timeout": "1s"}}}, asking=True)
    waiting = run_boss(guild, code=4)
    wait_until(lambda: guild("ls", "--json").json["needs_you"]["asks"] == [])
    assert [one["run"] for one in guild("ls", "--json").json["needs_you"]["runs"]] == [waiting["run"]]
    late = answer(guild, waiting["asks"][0]["ask"], "yes")
    assert late.code == 1
    assert "expired" in late.err
    ran = guild("resume", waiting["run"], "--output", "json")
    assert (ran.json["status"], list_notes(project)) == ("completed", [])
    assert str(journal(guild, waiting["run"])).count("This is not a denial") >= 2


def test_an_expired_ask_does_not_block_the_tree(guild: Guild, project: Path) -> None:
    put_boss(project, "hand", "brief")
    put_worker(project, "hand")
    put_worker(project, "brief", tool_rules={"fs.write": {"approval_required": True, "timeout": "1s"}})
    put_answers(project, boss=[[calls(call("hand"), call("brief")), DONE]], hand=[ONE], brief=[TWO])
    waiting = run_boss(guild, code=4)
    asks = {ask["expires_at"] is None: ask["ask"] for ask in waiting["asks"]}
    wait_until(lambda: guild("show", asks[False], "--json").json["status"] == "expired")
    shown = guild("show", waiting["run"])
    assert (asks[True] in shown.err, asks[False] in shown.err) == (True, False), "only one can still be answered"
    done = answer(guild, asks[True], "yes")
    assert (done.code, done.json["status"], list_notes(project)) == (0, "completed", ["a.md"])
    assert "This is not a denial" in str(journal(guild, waiting["run"]))


@pytest.mark.req("DO-6")
def test_always_applies_to_the_whole_tree(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand")
    put_answers(project, boss=[[call("hand"), call("hand"), DONE]], hand=[ONE])
    waiting = run_boss(guild, code=4)
    done = answer(guild, waiting["asks"][0]["ask"], "always").json
    assert (done["status"], len(done["runs"])) == ("completed", 2)
    assert kinds(journal(guild, done["run"])).count("tool_asked") == 1
    assert run_boss(guild, code=4)["asks"]  # another tree asks again


def test_asks_at_a_terminal_are_answered_one_after_another(
    terminal: Callable[..., Terminal], guild: Guild, project: Path
) -> None:
    put_tree(project, asking=True)
    person = terminal("run", "boss", "go")
    for _ in range(2):
        person.wait_for("hand wants to call sandbox_write_text")
        person.wait_for("Allow this call?")
        person.type("yes\n")
    assert person.wait_exit() == (0, "both are written\n")
    assert list_notes(project) == ["a.md", "b.md"]


# Ends


@pytest.mark.req("X-2")
def test_ctrl_c_pauses_the_tree_and_resuming_repeats_nothing(guild: Guild, project: Path) -> None:
    put_tree(project)
    slow = [OTHER, {"say": "two is written", "sleep": 60}]
    both = calls(call("hand", "write one"), call("hand", "write two"))
    put_answers(project, boss=[[both, {"say": "both are written"}]], hand=[ONE, slow])
    process = guild.start("run", "boss", "go", "--output", "json")
    assert process.stderr
    seen = ""
    while "one is written" not in seen or seen.count("← sandbox_write_text") < 2:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    paused = json.loads(out)
    assert (process.returncode, paused["status"]) == (130, "paused"), err
    assert [one["status"] for one in paused["runs"]] == ["completed", "paused"]
    listed = guild("ls", "--json").json["needs_you"]["runs"]
    assert [one["run"] for one in listed] == [paused["run"]]
    for path in (project / "notes").glob("*"):
        path.unlink()
    put_answers(project, boss=[[both, {"say": "both are written"}]], hand=[ONE, TWO])
    ran = guild("resume", paused["run"], "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "both are written")
    assert [one["run"] for one in ran.json["runs"]] == [one["run"] for one in paused["runs"]]
    assert list_notes(project) == []  # neither was written again
    assert "[hand] " in ran.err
    assert guild("replay", paused["run"]).code == 0


@pytest.mark.req("X-15")
def test_stop_cancels_the_tree(guild: Guild, project: Path) -> None:
    put_boss(project, "hand", "free", "broken")
    put_worker(project, "hand")
    for name in ("free", "broken"):
        put_worker(project, name, tool_rules=None)
    put_answers(
        project,
        boss=[[calls(call("hand"), call("free"), call("broken")), DONE]],
        hand=[ONE],
        free=[TWO],
        broken=[[{"fail": 400}]],
    )
    waiting = run_boss(guild, code=4)
    hand, free, broken = (one["run"] for one in waiting["runs"])
    for verb in ("stop", "resume"):
        refused = guild(verb, hand)
        assert refused.code == 1
        assert f"is a child run of {waiting['run']}" in refused.err
        assert f"guild {verb} {waiting['run']}" in refused.err
    stopped = guild("stop", waiting["run"], "--json")
    expected = {"run": waiting["run"], "target": None, "cancelled": [waiting["run"], hand]}
    assert (stopped.code, stopped.json) == (0, expected)
    below = {one["run"]: one["status"] for one in guild("show", waiting["run"], "--json").json["below"]}
    assert below == {hand: "cancelled", free: "completed", broken: "failed"}
    late = guild("answer", waiting["asks"][0]["ask"], "yes")
    assert late.code == 1
    assert "withdrawn" in late.err
    for verb in ("stop", "resume"):
        assert f"cannot {verb} {waiting['run']}: it is cancelled" in guild(verb, waiting["run"]).err
    assert guild("ls", "--json").json["needs_you"] == {"asks": [], "runs": []}
    assert guild("replay", waiting["run"]).code == 0
    assert guild("stop", "r-2222222222").code == 3
    other = run_boss(guild, "--strict")
    refused = guild("stop", other["run"])
    assert (refused.code, "it is completed" in refused.err) == (1, True)


def test_stop_reports_the_cancelled_runs(guild: Guild, project: Path) -> None:
    put_tree(project, asking=True)
    waiting = run_boss(guild, code=4)
    message = guild("stop", waiting["run"]).out
    assert message == f"Stopped {waiting['run']} and 2 child runs. Details: guild show {waiting['run']}\n"
    assert re.search(r"status +cancelled \(by the user\)", guild("show", waiting["run"]).out)


def test_a_running_tree_is_not_stopped_by_another_command(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand")
    put_answers(project, boss=[[call("hand"), DONE]], hand=[[{"say": "late", "sleep": 60}]])
    process = guild.start("run", "boss", "go")
    assert process.stderr
    root = process.stderr.readline().split()[1].rstrip(":")
    wait_until(lambda: bool(guild("show", root, "--json").json["below"]))
    assert guild("ls", "--json").json["working"][0]["run"] == root
    refused = guild("stop", root)
    assert refused.code == 7
    process.kill()
    process.wait(5)
    assert [one["status"] for one in guild("ls", "--json").json["needs_you"]["runs"]] == ["interrupted"]
    child = guild("show", root, "--json").json["below"][0]["run"]
    assert f"Continue: guild resume {root}" in guild("show", child).err
    assert len(guild("stop", root, "--json").json["cancelled"]) == 2


# Memory


def test_a_called_worker_has_its_own_memory(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None)
    put_answers(
        project,
        boss=[[call("hand"), DONE]],
        hand=[[{"call": "memory_write", "with": {"key": "pen", "content": "It is blue.", "scope": "worker"}}, DONE]],
    )
    done = run_boss(guild)
    child = done["runs"][0]["run"]
    blamed = guild("memory", "log", "pen", "--scope", "worker", "--worker", "hand", "--json").json
    assert blamed["records"][0]["run"] == child
    again = run_boss(guild)
    first = {entry["run"]: entry["data"] for entry in journal(guild, again["run"]) if entry["kind"] == "assembled"}
    assert "It is blue." in first[again["runs"][0]["run"]]["memory"]
    assert "It is blue." not in first[again["run"]]["memory"]


def test_compaction_is_reported_in_the_called_run_that_caused_it(guild: Guild, project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand", tool_rules=None)
    notes = calls(
        *(
            {
                "call": "memory_write",
                "with": {"scope": "worker", "key": f"note-{number}", "content": str(number) * 1500},
            }
            for number in range(4)
        )
    )
    hand = [notes, {"say": "noted", "sleep": 0.2}]
    compactor = {"memory-compactor": [[{"say": "short"}]]}
    put_answers(project, boss=[[call("hand"), {"say": "done", "sleep": 0.2}]], hand=[hand], **compactor)
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\nmemory: {limit_tokens: 400}\n")
    ran = guild("run", "boss", "go", "--output", "stream-json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    result = next(line for line in lines if line["type"] == "result")
    (condensed,) = [line for line in lines if line["type"] == "memory_condensed"]
    assert (condensed["root"], condensed["run"]) == (result["run"], result["runs"][0]["run"])
    assert condensed["done"], condensed
    # The compactor run belongs to the hall, not to the tree.
    assert condensed["by"] not in {one["run"] for one in result["runs"]}


@pytest.mark.parametrize(("allowed", "names"), [(["hand"], ["hand"]), (["*"], None)])
def test_worker_name_has_the_allowed_workers_as_values(
    guild: Guild, project: Path, allowed: list[str], names: list[str] | None
) -> None:
    put_boss(project, allow_workers=allowed)
    put_worker(project, "hand", tool_rules=None)
    put_answers(project, boss=[[DONE]], hand=[[DONE]])
    tools = {tool["name"]: tool for tool in journal(guild, run_boss(guild)["run"])[0]["data"]["tools"]}
    assert tools["worker_call"]["input_schema"]["properties"]["worker"].get("enum") == names
