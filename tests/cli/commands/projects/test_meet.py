"""`guild meet` and the commands that take the id of a meeting, at a terminal and in a program."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.places import Terminal
from tests.projects.meetings.harness import MeetingProject, call, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

LINK = {**call("link_artifact", path=".lore/plan.md"), "say": "I link it."}


@pytest.fixture
def harness(home: Home, project: Path) -> MeetingProject:
    return MeetingProject.at(home, project)


def only_meeting_id(guild: Guild) -> str:
    (meeting,) = guild("ls", "meetings", "--json").json["meetings"]
    return meeting["meeting"]


# at a terminal


@pytest.mark.req("WKR-21", "MTG-15")
def test_a_meeting_can_be_left_and_continued_at_a_terminal(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("We could use Parquet."), LINK, say("Linked."), say("Bye then.")])
    terminal = Terminal(guild, "meet", "architect", whole=True)
    terminal.wait_for("Your first message")
    terminal.type("/help\n")
    terminal.wait_for("Ctrl-D or /leave")
    terminal.wait_for("Your first message")
    terminal.type("/close\n")
    terminal.wait_for("No meeting is open yet")
    terminal.wait_for("Your first message")
    terminal.type("Which form for exports?\n")
    terminal.wait_for("We could use Parquet.")
    terminal.wait_for("> ")
    terminal.type("/help\n")
    terminal.wait_for("Ctrl-D or /leave")
    terminal.type("/clsoe\n")
    terminal.wait_for("Unknown command /clsoe; nothing was sent.")
    terminal.type("/close now\n")
    terminal.wait_for("/close accepts no text; nothing was done or sent.")
    terminal.type("Link the plan\n")
    terminal.wait_for("I link it.")
    terminal.wait_for("→ link_artifact path=.lore/plan.md")
    terminal.wait_for("← link_artifact: Linked: .lore/plan.md")
    terminal.wait_for("Linked.")
    terminal.wait_for("> ")
    terminal.type("\x04")
    terminal.wait_for("stays open. Continue: guild meet t-")
    assert terminal.wait_exit()[0] == 0
    terminal.close()

    id = only_meeting_id(guild)
    back = Terminal(guild, "meet", id, whole=True)
    back.wait_for("linked: .lore/plan.md")
    back.wait_for("Link the plan")
    back.wait_for("Linked.")
    back.wait_for("> ")
    back.type("Bye\n")
    back.wait_for("Bye then.")
    back.type("/close\n")
    back.wait_for(f"{id} is closed")
    assert back.wait_exit()[0] == 0
    back.close()
    assert guild("show", id, "--json").json["status"] == "closed"


@pytest.mark.parametrize("typed", ["\x04", "/leave\n"])
def test_leaving_before_the_first_message_opens_no_meeting(guild: Guild, harness: MeetingProject, typed: str) -> None:
    terminal = Terminal(guild, "meet", "architect", whole=True)
    terminal.wait_for("Your first message")
    terminal.type(typed)
    terminal.wait_for("No meeting was opened.")
    assert terminal.wait_exit()[0] == 0
    terminal.close()
    assert guild("ls", "meetings", "--all", "--json").json == {"meetings": []}


def test_ctrl_c_ends_the_answer_and_keeps_the_meeting(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one"), {"sleep": 30, "say": "never"}, say("three")])
    terminal = Terminal(guild, "meet", "architect", "first", whole=True)
    terminal.wait_for("one")
    terminal.wait_for("> ")
    terminal.type("tell me all\n")
    id = wait_until(lambda: next(iter(guild("ls", "meetings", "--json").json["meetings"]), {}).get("meeting"))
    wait_until(lambda: guild("log", id).out.count("model_asked") == 2)
    terminal.type("\x03")
    terminal.wait_for("The answer was interrupted")
    terminal.wait_for("> ")
    assert "answer is due" not in guild("show", id).out
    terminal.type("something else\n")
    terminal.wait_for("three")
    terminal.type("/leave\n")
    assert terminal.wait_exit()[0] == 0
    terminal.close()


def test_pasted_lines_are_one_message(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one"), say("two")])
    terminal = Terminal(guild, "meet", "architect", "first", whole=True)
    terminal.wait_for("one")
    terminal.wait_for("> ")
    terminal.type("a line\nanother line\n\nand a third\n")
    terminal.wait_for("two")
    terminal.wait_for("> ")
    terminal.type("/leave\n")
    assert terminal.wait_exit()[0] == 0
    terminal.close()
    shown = guild("show", only_meeting_id(guild), "--json").json
    assert shown["exchanges"][1]["user_message"] == "a line\nanother line\n\nand a third"


def test_a_failed_turn_does_not_end_the_meeting(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one")])
    terminal = Terminal(guild, "meet", "architect", "first", whole=True)
    terminal.wait_for("one")
    terminal.wait_for("> ")
    terminal.type("more\n")
    terminal.wait_for("guild: ")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.wait_exit()[0] == 0
    terminal.close()


def test_an_approval_at_the_terminal_lets_the_command_end(guild: Guild, harness: MeetingProject) -> None:
    harness.worker(tool_rules={"fs.write": {"approval_required": True}})
    harness.script([call("Write", file_path=".lore/x.md", content="x"), say("written")])
    ran = guild("meet", "architect", "first", "--output", "json")
    terminal = Terminal(guild, "answer", ran.json["asks"][0]["ask"], "yes", whole=True)
    terminal.wait_for("written")
    assert terminal.wait_exit()[0] == 0
    terminal.close()


# by a program


def test_each_terminal_gets_the_answer_to_its_own_message(guild_hall: Guild, harness: MeetingProject) -> None:
    harness.script([say("zero"), *(say(f"answer {number}", sleep=0.1) for number in range(3))])
    id = guild_hall("meet", "architect", "Hello", "--output", "json").json["meeting"]
    asking = {f"words {number}": guild_hall.start("meet", id, f"words {number}") for number in range(3)}
    answers = {words: (terminal.communicate(timeout=30)[0], terminal.returncode) for words, terminal in asking.items()}
    exchanges = guild_hall("show", id, "--json").json["exchanges"][1:]
    assert answers == {one["user_message"]: (f"{one['answer']}\n", 0) for one in exchanges}
    assert len(exchanges) == 3


def test_a_message_from_standard_input_is_answered_on_standard_output(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one"), say("two")])
    first = guild("meet", "architect", input="Which form?\nAnd why?\n")
    assert (first.code, first.out) == (0, "one\n")
    id = only_meeting_id(guild)
    again = guild("meet", id, "-", input="more")
    assert again.out == "two\n"
    shown = guild("show", id, "--json").json
    assert [one["user_message"] for one in shown["exchanges"]] == ["Which form?\nAnd why?\n", "more"]
    assert shown["topic"] == "Which form?"


@pytest.mark.req("MTG-15", "WKR-21")
def test_an_answer_is_streamed_and_each_exchange_is_written_to_the_transcript(
    guild_hall: GuildWithHall, harness: MeetingProject, tmp_path: Path
) -> None:
    """The second answer calls a tool that never ends. The text before the call has arrived by then."""
    harness.worker(tools=["Bash"])
    wait = {**call("Bash", command="while :; do sleep 0.1; done"), "say": "We could use Parquet, which is small."}
    harness.script([say("Well."), wait])
    id = guild_hall("meet", "architect", "Exports", "--output", "json").json["meeting"]
    transcript = harness.home.path / "projects" / "shop" / "meetings" / f"{id}.md"
    wait_until(transcript.exists)
    assert ("Exports" in transcript.read_text(), "Well." in transcript.read_text()) == (True, True)

    asking = guild_hall.start("meet", id, "Which form?", "--output", "stream-json")
    assert asking.stdout is not None
    pieces: list[str] = []
    for line in asking.stdout:
        event = json.loads(line)
        pieces += [event["text"]] if event["type"] == "text_delta" else []
        if event["type"] == "tool_use":
            break
    assert len(pieces) > 1
    assert "".join(pieces) == "We could use Parquet, which is small."
    guild_hall.kill_hall()
    asking.communicate(timeout=30)

    kept = transcript.read_text()
    assert ("Well." in kept, "Parquet" in kept) == (True, False)
    harness.script([say("Well."), wait, say("Parquet it is.")])
    shown = guild_hall("show", id, "--json").json["exchanges"]
    assert [one["user_message"] for one in shown] == ["Exports", "Which form?"]
    assert shown[1]["answer"] == "We could use Parquet, which is small."
    guild_hall("hall", "stop")
    assert "Which form?" in transcript.read_text()


@pytest.mark.req("MTG-4")
def test_a_worker_cannot_close_its_meeting(guild: Guild, harness: MeetingProject) -> None:
    harness.worker(tools=["Write", "Bash"], checkout="full")
    harness.script([say("Hello.")])
    id = guild("meet", "architect", "Close it", "--output", "json").json["meeting"]
    notes = f".lore/meetings/{id}.md"
    closed = f"---\ntitle: Close it\nstatus: closed\nmeeting: {id}\nworker: architect\nrevision: 9\n---\n"
    tries = [
        *(call(name, meeting=id, id=id) for name in ("close_meeting", "meeting_close", "end_meeting")),
        call("Write", file_path=notes, content=closed),
        call("artifact_write", path=notes, title="Close it", status="closed", body="x"),
        call("Bash", command=f"guild meet {id} --close --no-summary; git update-ref refs/heads/claude/main HEAD"),
    ]
    harness.script([say("Hello."), {"calls": tries}, say("I cannot.")])
    tried = guild("meet", id, "Now.", "--output", "json")
    assert (tried.code, tried.json["status"]) == (0, "open")
    assert len(tried.json["exchanges"][0]["calls"]) == len(tries)
    assert guild("show", id, "--json").json["status"] == "open"
    assert "status: open" in harness.repo.at("guildhall/records", notes)
    assert guild("meet", "--close", id, "--no-summary").code == 0
    assert guild("show", id, "--json").json["status"] == "closed"


@pytest.mark.req("MTG-15")
def test_stream_json_has_one_event_per_line_and_the_result_last(guild: Guild, harness: MeetingProject) -> None:
    harness.script([LINK, say("one"), say("two")])
    ran = guild("meet", "architect", "first", "--say", "second", "--output", "stream-json")
    lines: list[dict[str, Any]] = [json.loads(line) for line in ran.out.splitlines()]
    kinds = [line["type"] for line in lines]
    assert {"text_delta", "tool_use", "tool_result", "turn_end", "result"} <= set(kinds)
    used, result = (next(line for line in lines if line["type"] == kind) for kind in ("tool_use", "tool_result"))
    assert used["id"] == result["id"]
    assert lines[-1]["type"] == "result"
    assert [one["answer"] for one in lines[-1]["exchanges"]] == ["I link it.\n\none", "two"]


def test_close_after_a_message_writes_the_notes(guild: Guild, harness: MeetingProject) -> None:
    ran = guild("meet", "architect", "first", "--close", "--output", "json")
    assert ran.json["status"] == "closed"
    assert "They talked." in harness.repo.at("guildhall/records", ran.json["notes"])


@pytest.mark.req("MTG-20", "SYS-22", "WKR-11")
def test_a_closed_meeting_leaves_notes_and_one_commit(guild: Guild, harness: MeetingProject) -> None:
    spec, repo = ".lore/export.md", harness.repo
    reports = [
        call("link_artifact", path=spec),
        call("record_decision", question="Which form?", decision="Parquet", reasoning="It is small."),
        call("propose_followup", title="Write the exporter", prompt=f"As in {spec}", worker="coder"),
        call("summarize_progress", summary="The form is agreed."),
    ]
    harness.script([call("Write", file_path=spec, content="Parquet\n"), {"calls": reports}, say("All agreed.")])
    opened = guild("meet", "architect", "Exports", "--output", "json")
    assert opened.code == 0, opened
    id = opened.json["meeting"]
    (transcript,) = (harness.home.path / "projects" / "shop" / "meetings").glob(f"{id}*")
    assert "All agreed." in transcript.read_text()
    branch, before = f"claude/meeting/{id}", repo.git("rev-parse", "claude/main")
    assert repo.git("ls-tree", "claude/main", spec) == ""
    assert repo.git("branch", "--list", "claude/meeting/*").endswith(branch)

    closed = guild("meet", "--close", id, "--json")
    assert (closed.code, closed.json["status"]) == (0, "closed"), closed
    notes = repo.at("guildhall/records", closed.json["notes"])
    assert "## Summary\n\nThey talked.\n\n## Decisions\n\n### Which form?\n\nParquet\n\nIt is small.\n" in notes
    assert f"## Artifacts\n\n- {spec}\n\n## Follow-ups\n\n### Write the exporter (coder)" in notes
    assert not transcript.exists()
    assert repo.git("rev-list", "--parents", f"{before}..claude/main").split()[1:] == [before], "one commit"
    assert sorted(repo.git("diff", "--name-only", before, "claude/main").split()) == [spec]
    assert repo.git("branch", "--list", "claude/meeting/*") == ""
    assert repo.git("rev-parse", f"refs/guildhall/kept/meeting/{id}")
    assert not (harness.home.worktrees / "shop" / id).exists()
    repo.fsck()


@pytest.mark.req("SYS-8a", "SYS-28")
def test_five_meetings_can_be_open_each_with_a_branch_and_a_checkout(guild: Guild, harness: MeetingProject) -> None:
    repo, checkouts = harness.repo, harness.home.worktrees / "shop"
    harness.worker("builder", checkout="full")
    (repo.path / "answers.yaml").write_text('{"workers": {"*": [[{"say": "hello"}]]}, "repeat": true}')
    before = repo.git("rev-parse", "main"), repo.git("status", "--porcelain", "--branch")
    workers = ["architect", "builder", "architect", "architect", "architect"]
    ids = [guild("meet", name, "Exports", "--output", "json").json["meeting"] for name in workers]
    has = {"architect": {".git", ".lore"}, "builder": {".git", ".lore", "src", "workers", "answers.yaml"}}
    for name, id in zip(workers, ids, strict=True):
        assert {path.name for path in (checkouts / id).iterdir()} == has[name]
        assert repo.git("branch", "--show-current", cwd=checkouts / id) == f"claude/meeting/{id}"
    refused = guild("meet", "architect", "One more")
    assert refused.code != 0
    assert "shop has 5 open meetings (maximum: 5)" in refused.err
    assert all(id in refused.err for id in ids)
    assert sorted(path.name for path in checkouts.iterdir() if path.is_dir()) == sorted(ids)
    assert (repo.git("rev-parse", "main"), repo.git("status", "--porcelain", "--branch")) == before


def test_a_meeting_waits_for_an_approval_and_continues_after_the_answer(guild: Guild, harness: MeetingProject) -> None:
    harness.worker(tool_rules={"fs.write": {"approval_required": True}})
    harness.script([call("Write", file_path=".lore/x.md", content="x"), say("written")])
    ran = guild("meet", "architect", "first", "--output", "json")
    assert ran.code == 4
    ask = ran.json["asks"][0]["ask"]
    answered = guild("answer", ask, "yes")
    assert (answered.code, answered.out) == (0, "written\n")
    shown = guild("show", ran.json["meeting"], "--json").json
    assert shown["exchanges"][0]["answer"] == "written"
    assert not shown["answering"]


ASKING_TO_WRITE = call("Write", file_path=".lore/x.md", content="x")


def user_messages(guild: Guild, id: str) -> list[tuple[str, str]]:
    return [(one["user_message"], one["answer"]) for one in guild("show", id, "--json").json["exchanges"]]


def test_messages_to_a_meeting_with_an_open_ask_are_delivered_after_the_answer(
    guild: Guild, harness: MeetingProject
) -> None:
    harness.worker(tool_rules={"fs.write": {"approval_required": True}})
    harness.script([ASKING_TO_WRITE, say("written"), *(say(f"answer {number}") for number in range(2, 6))])
    opened = guild("meet", "architect", "one", "--say", "two", "--output", "json")
    id, ask = opened.json["meeting"], opened.json["asks"][0]["ask"]
    assert (opened.code, opened.json["status"]) == (4, "open")
    sent = guild("meet", id, "three", "--say", "four")
    assert (sent.code, sent.out) == (4, "")
    assert f"guild answer {ask}" in sent.err
    assert "Recorded 2 messages without an answer." in sent.err
    closing = guild("meet", id, "five", "--close")
    assert closing.code == 4
    assert f"{id} stays open. Close it: guild meet {id} --close" in closing.err
    assert user_messages(guild, id) == [(text, "") for text in ("one", "two", "three", "four", "five")]
    answered = guild("answer", ask, "yes")
    assert (answered.code, answered.out) == (0, "written\nanswer 2\nanswer 3\nanswer 4\nanswer 5\n")
    answers = ("written", *(f"answer {number}" for number in range(2, 6)))
    assert user_messages(guild, id) == list(zip(("one", "two", "three", "four", "five"), answers, strict=True))


def test_a_message_on_return_to_a_meeting_with_an_open_ask_is_recorded_at_a_terminal(
    guild: Guild, harness: MeetingProject
) -> None:
    harness.worker(tool_rules={"fs.write": {"approval_required": True}})
    harness.script([ASKING_TO_WRITE, say("written"), say("two"), say("three")])
    id = guild("meet", "architect", "first", "--output", "json").json["meeting"]
    terminal = Terminal(guild, "meet", id, "second", whole=True)
    wait_until(lambda: user_messages(guild, id) == [("first", ""), ("second", "")])
    terminal.close()


def test_a_message_that_fails_is_recorded_once_and_answered_by_resume(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one")])
    id = guild("meet", "architect", "first", "--output", "json").json["meeting"]
    failed = guild("meet", id, "second", "--say", "third", "--close")
    assert (failed.code, failed.out) == (1, "")
    assert "Recorded 2 messages without an answer." in failed.err
    harness.script([say("one"), say("two"), say("three")])
    assert guild("resume", id).out == "two\nthree\n"
    assert user_messages(guild, id) == [("first", "one"), ("second", "two"), ("third", "three")]


@pytest.mark.req("MTG-10")
def test_a_renewal_with_a_message_is_one_model_call_and_one_exchange(guild: Guild, harness: MeetingProject) -> None:
    harness.script([say("one")])
    id = guild("meet", "architect", "first", "--output", "json").json["meeting"]
    harness.script([say("two"), say("three")])
    renewed = guild("meet", id, "second", "--say", "third", "--renew")
    assert (renewed.code, renewed.out) == (0, "two\nthree\n"), renewed.err
    assert user_messages(guild, id) == [("first", "one"), ("second", "two"), ("third", "three")]
    run = guild("show", id, "--json").json["run"]
    assert guild("log", run).out.count("model_asked") == 2
    again = guild("meet", id, "--renew")
    assert (again.code, again.out) == (0, "two\n"), again.err
    assert user_messages(guild, id)[2:] == [("third", "three"), ("", "two")]


def test_a_turn_at_its_limit_is_resumed_with_the_printed_command(guild: Guild, harness: MeetingProject) -> None:
    harness.worker(limits={"max_turns": 1})
    harness.script([call("link_artifact", path=".lore/plan.md"), call("memory_read"), say("Linked."), say("Bye.")])
    ran = guild("meet", "architect", "Link the plan")
    id = only_meeting_id(guild)
    assert ran.code == 5
    assert f"guild resume {id} --max-turns 2" in ran.err
    assert "already used 1 turn" in guild("resume", id, "--max-turns", "1").err
    again = guild("resume", id, "--max-turns", "2")
    assert (again.code, again.out) == (5, "")
    assert f"guild resume {id} --max-turns 4" in again.err
    run = guild("show", id, "--json").json["run"]
    last = guild("resume", run, "--max-turns", "4", "--output", "json")
    assert (last.code, last.json["exchanges"][-1]["answer"]) == (0, "Linked.")
    assert guild("show", id, "--json").json["run"] == run
    more = guild("resume", id, "--max-turns", "9")
    assert more.code != 0
    assert "has no unanswered message" in more.err
    assert guild("meet", id, "Bye").out == "Bye.\n"


@pytest.mark.req("WKR-19")
def test_a_meeting_has_the_limits_that_are_given_when_it_is_opened(guild: Guild, harness: MeetingProject) -> None:
    harness.worker(limits={"max_turns": 50})
    link = call("link_artifact", path=".lore/plan.md")
    harness.script([link, say("Linked."), say("Bye.")], price=1.0)
    opened = guild("meet", "architect", "first", "--max-turns", "1", "--budget", "2.5", "--output", "json")
    id = opened.json["meeting"]
    assert (opened.code, opened.json["max_turns"], opened.json["budget"]) == (5, 1, 2.5), opened.err
    assert "1 turn, 2.5 USD" in guild("show", id).out
    assert guild("meet", id, "--max-turns", "2").out == "Linked.\n"
    renewed = guild("meet", id, "more", "--renew", "--output", "json")
    assert renewed.code == 0, renewed.err
    bounds = json.loads(guild("log", renewed.json["run"], "--json").out.splitlines()[0])["data"]["bounds"]
    assert (bounds["max_turns"], 0 < bounds["budget"] < 2.5) == (2, True)

    harness.script([say("one")], price=1_000_000.0)
    asking = guild("meet", "architect", "second", "--budget", "0.01", "--output", "json")
    assert (asking.code, asking.json["asks"][0]["kind"]) == (4, "limit"), asking.err


WRONG: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("meet", "architect", ""), 2, "must not be empty"),
    (("meet", "architect", "x" * 200_000), 2, "longer than"),
    (("meet", "nobody", "hello"), 3, "nobody"),
    (("meet", "architect"), 2, "empty"),
    (("meet", "t-7k2m9x4qpw", "hello"), 3, "unknown meeting"),
    (("meet", "t-nope", "hello"), 3, "unknown meeting or worker 't-nope'"),
    (("meet", "r-7k2m9x4qpw", "hello"), 3, "is a run, not a worker"),
    (("show", "t-7k2m9x4qpw"), 3, "unknown meeting"),
    (("meet", "architect", "hello", "--project", "ship"), 3, "ship"),
    (("meet", "architect", "hello", "--renew"), 2, "--renew"),
    (("meet", "architect", "hello", "--max-turns", "0"), 2, "--max-turns"),
    (("meet", "architect", "hello", "--budget", "nan"), 2, "--budget"),
    (("meet", "architect", "hello", "--budget", "1"), 2, "has no known price"),
    (("meet", "--close", "t-7k2m9x4qpw"), 3, "unknown meeting"),
    (("answer", "t-7k2m9x4qpw", "soon"), 2, "invalid date"),
    (("ls", "meetings", "--project", "ship"), 3, "ship"),
    (("meet", "guide", "hello"), 2, "or use --model"),
    (("meet", "guide", "hello", "--model", "script:nope.yaml"), 2, "nope.yaml"),
    (("meet", "guide", "hello", "--model", "openai:gpt-4o"), 2, "OPENAI_API_KEY"),
    (("answer", "t-7k2m9x4qpw", "no", "--note", ""), 2, "must not be empty"),
    (("rm", "t-7k2m9x4qpw"), 3, "unknown meeting"),
    (("resume", "t-7k2m9x4qpw"), 3, "unknown meeting"),
)


def test_invalid_arguments_are_reported_with_a_hint(guild: Guild, harness: MeetingProject) -> None:
    for words, code, message in WRONG:
        ran = guild(*words)
        assert (ran.code, ran.out) == (code, ""), words
        assert message in ran.err
        assert len(ran.err.splitlines()) > 1 or "Known" in ran.err, "the hint is missing"
    assert guild("ls", "meetings", "--all", "--json").json == {"meetings": []}


def test_a_renewed_session_keeps_the_model_of_the_command(
    guild: Guild, harness: MeetingProject, tmp_path: Path
) -> None:
    harness.script([say("one")], [say("two")], name="guide")
    first = guild("meet", "guide", "hello", "--model", "script:answers.yaml", "--output", "json")
    assert first.code == 0, first.err
    again = guild("meet", first.json["meeting"], "--renew", "--output", "json")
    assert (again.code, again.json["session_count"], again.json["answering"]) == (0, 2, False), again.err
    assert guild("meet", "architect", "hello", cwd=tmp_path).code == 3


def test_ls_show_log_stop_and_rm_know_meetings(guild: Guild, harness: MeetingProject) -> None:
    guild("meet", "architect", "Which form?")
    id = only_meeting_id(guild)
    listed = guild("ls")
    assert f"guild meet {id}" in listed.out
    assert "Needs you" not in listed.out
    assert guild("ls", "--json").json["meetings"][0]["meeting"] == id
    assert "Which form?" in guild("show", id).out
    assert "Which form?" in guild("log", id).out
    waited = guild("wait", id)
    assert (waited.code, waited.err) == (4, f"Continue: guild meet {id}\n")
    assert guild("rm", id).code == 1
    resumed = guild("resume", guild("show", id, "--json").json["run"])
    assert (resumed.code, resumed.err) == (0, f'No answer is pending in {id}. Send a message: guild meet {id} "..."\n')
    assert "Nothing is running" in guild("stop", "--all").err
    assert guild("meet", id, "more").code == 1, "its script has one answer"
    failed = guild("ls").out
    assert "no answer" in failed
    assert "failed" not in failed
    assert guild("resume", id).code == 1
    assert "is closed" in guild("stop", id).out
    (line,) = (line for line in guild("ls").out.splitlines() if id in line)
    assert line.split()[1] == "closed"
    assert "failed" not in guild("show", id).out
    assert guild("wait", id).code == 0
    assert "No summary: not requested." in harness.repo.at("guildhall/records", f".lore/meetings/{id}.md")
    assert guild("rm", id).code == 0
    assert guild("ls", "meetings", "--all", "--json").json == {"meetings": []}
    assert "No meetings." in guild("ls", "meetings").err


def wait_until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + 10
    while not (found := condition()):
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)
    return found
