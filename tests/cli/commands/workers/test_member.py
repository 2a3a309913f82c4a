"""`guild member`, and the job commands for jobs of members."""

from __future__ import annotations

import json
import shlex
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.members.member_folders import put_member
from tests.members.member_servers import make_member
from tests.members.test_process import alive, marks
from tests.runs.places import put_worker, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall


@pytest.mark.req("WD-1", "WD-2", "WD-38")
def test_member_ls_shows_states_and_capabilities(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "ant")
    put_member(home.path, "bee", work=False)
    put_member(project, "cat")
    put_member(project, "bad", version=5)
    rows = {row["name"]: row for row in guild("member", "ls", "--json").json}
    assert list(rows) == ["bad", "cat", "ant", "bee"]
    assert {name: row["capabilities"] for name, row in rows.items()} == {
        "bad": [],
        "cat": ["worker"],
        "ant": ["worker"],
        "bee": [],
    }
    assert "guild-member.json:5: version: expected text" in rows["bad"]["error"]
    assert {name: row["state"] for name, row in rows.items() if name != "bad"} == {
        "cat": "declared",
        "ant": "trusted",
        "bee": "trusted",
    }
    shown = guild("member", "ls").out.splitlines()
    assert [line.split()[:2] for line in shown] == [
        ["name", "state"],
        ["bad", "invalid"],
        ["cat", "not"],
        ["ant", "not"],
        ["bee", "not"],
    ]
    doctor = {check["name"]: check for check in guild("doctor", "--json").json}
    assert doctor["members"]["detail"] == "2 usable, 1 not trusted: cat, 1 with errors: bad"
    assert not doctor["members"]["ok"]


def test_an_empty_list_prints_how_to_create_a_member(guild: Guild, project: Path) -> None:
    ran = guild("member", "ls")
    assert (ran.code, ran.out) == (0, "")
    assert "guild member new NAME" in ran.err
    assert guild("member", "ls", "--json").json == []
    assert "members" not in {check["name"] for check in guild("doctor", "--json").json}


@pytest.mark.req("WD-37")
def test_a_member_is_shown_with_its_command(guild: Guild, project: Path, home: Home) -> None:
    mcp = {"command": "${PYTHON}", "args": ["server.py", "${PORT}"], "env": {"KEY": "${A_KEY}"}}
    put_member(project, "cat", mcp=mcp, description="Says \x1b[31mmeow")
    ran = guild("member", "show", "cat")
    assert "${PYTHON} server.py ${PORT}" in ran.out
    assert "A_KEY" in ran.out
    assert ["capabilities", "worker"] in [line.split() for line in ran.out.splitlines()]
    assert "\x1b" not in ran.out
    assert "guild trust" in ran.err
    assert guild("member", "show", "cat", "--json").json["displayName"] == "Cat"
    gone = guild("member", "show", "cot")
    assert gone.code == 3
    assert "Did you mean 'cat'?" in gone.err


@pytest.mark.req("WD-4")
def test_the_tools_of_a_member_are_listed_and_called(guild: Guild, project: Path, home: Home) -> None:
    folder = put_member(home.path, "ant")
    assert [tool["name"] for tool in guild("member", "tools", "ant", "--json").json] == ["echo", "look", "die"]
    rows = [line.split("  ") for line in guild("member", "tools", "ant").out.splitlines()]
    assert ["echo", "[text: string]", "Says it again."] in [[cell.strip() for cell in row if cell] for row in rows]
    assert guild("member", "call", "ant", "echo", '{"text": "hello"}').out == "echo: hello\n"
    for arguments, code, message in (
        (["ech"], 3, "Did you mean 'echo'?"),
        (["echo", "["], 2, "not JSON"),
        (["echo", "[]"], 2, "not a JSON object"),
    ):
        ran = guild("member", "call", "ant", *arguments)
        assert ran.code == code
        assert message in ran.err
    assert not any(map(alive, marks(folder))), "the member is stopped with the command that contains the hall"


def test_an_untrusted_member_is_not_started(guild: Guild, project: Path) -> None:
    folder = put_member(project, "cat")
    for words in (["member", "tools", "cat"], ["member", "call", "cat", "echo"], ["dispatch", "cat", "x", "--wait"]):
        ran = guild(*words)
        assert ran.code == 4, ran
        assert "the member cat is untrusted code" in ran.err
    assert marks(folder) == []
    shown = guild("trust", "--yes")
    assert shown.code == 0
    assert shown.out.startswith("member cat\n")
    assert guild("member", "call", "cat", "echo").code == 0


@pytest.mark.req("WD-36", "WD-35")
def test_a_job_of_a_member_is_dispatched_watched_and_fetched(guild_hall: GuildWithHall, project: Path, home: Home):
    put_member(home.path, "ant")
    guild = guild_hall
    sent = guild("dispatch", "ant", "quick: what is it?", "--description", "a question", "--json")
    assert sent.json == {"jobId": "ant/j-1"}, sent
    assert guild("wait", "ant/j-1").out == "done: quick: what is it?\n"
    assert guild("wait", "ant/j-1", "--json").json["artifacts"] == ["artifacts/report.md"]
    assert guild("show", "ant/j-1", "--json").json["questions"] == ["Which one?\n\nThe red one?"]
    shown = guild("show", "ant/j-1").out
    assert "Which one?" in shown
    assert ["artifact", "artifacts/report.md"] in [line.split() for line in shown.splitlines()]
    assert "artifacts/report.md" in guild("wait", "ant/j-1").err
    other = guild("log", "ant/j-1")
    assert (other.code, "guild show ant/j-1" in other.err) == (3, True)
    unsupported = guild("resume", "ant/j-1")
    assert (unsupported.code, "does not support worker/resume" in unsupported.err) == (4, True)
    slow = guild("dispatch", "ant", "think").out.strip()
    assert slow == "ant/j-2"
    late = guild("wait", slow, "--timeout", "0.1")
    assert (late.code, f"{slow} is still running" in late.err) == (6, True), late.err
    assert guild("show", slow, "--json").json["status"] == "running"
    assert [job["jobId"] for job in guild("ls", "jobs", "--member", "ant", "--json").json["jobs"]] == [
        "ant/j-1",
        "ant/j-2",
    ]
    assert guild("ls", "jobs", "--member", "ant", "--filter", "a q*").out.split()[:2] == ["ant/j-1", "completed"]
    assert guild("rm", slow).code == 1
    # The hall polls the member every few seconds.
    wait_until(lambda: "ant, ready, running jobs: 1\n" in guild("hall", "status").out)
    assert guild("stop", slow).out == "ant/j-2 is cancelled\n"
    assert guild("rm", slow).out == "Deleted ant/j-2.\n"
    gone = guild("show", slow)
    assert (gone.code, "unknown job 'ant/j-2'" in gone.err) == (3, True)
    assert [guild(verb, slow).code for verb in ("stop", "rm", "wait", "resume")] == [3, 3, 3, 3]
    member = guild("member", "show", "ant", "--json").json
    assert member["state"] == "ready"
    assert guild("hall", "stop").code == 0
    assert not alive(member["pid"])


def test_members_without_jobs_and_ambiguous_names_are_refused(guild: Guild, project: Path, home: Home) -> None:
    put_member(home.path, "bee", work=False)
    put_member(home.path, "scribe")
    put_worker(project)
    refused = guild("dispatch", "bee", "x", "--wait")
    assert (refused.code, "does not accept jobs" in refused.err) == (4, True)
    both = guild("dispatch", "scribe", "x", "--wait")
    assert both.code == 1
    assert "ambiguous name 'scribe'" in both.err
    assert "project/scribe or home/scribe" in both.err
    for odd in ("/j-1", "ant/", "a\nb/j", "x" * 500 + "/j"):
        assert guild("show", odd).code == 3
    assert guild("show", "nobody/j-1").code == 3
    assert guild("rm", "bee/j-1", "--force").code == 4


@pytest.mark.req("WD-2")
def test_a_new_member_works_at_once(guild: Guild, project: Path) -> None:
    made = guild("member", "new", "clock")
    folder = project / "guild-members" / "clock"
    assert made.out == f"{folder}\n"
    assert json.loads((folder / "guild-member.json").read_text())["name"] == "clock"
    assert guild("member", "new", "clock").code == 1
    assert guild("member", "new", "../x").code == 2
    gone = guild("member", "new", "x", "--from", "reseacher")
    assert (gone.code, "Did you mean 'researcher'?" in gone.err) == (3, True)
    assert guild("trust", "--yes").code == 0
    assert guild("member", "call", "clock", "greet", '{"name": "Ada"}').out == "Good day, Ada!\n"
    wrong = guild("member", "call", "clock", "greet", '{"name": 5}')
    assert (wrong.code, wrong.err.startswith("guild: greet of the member clock failed: ")) == (1, True)


def test_a_copy_of_the_researcher_accepts_jobs(guild: Guild, project: Path) -> None:
    assert guild("member", "new", "legal-analyst", "--from", "researcher").code == 0
    (row,) = guild("member", "ls", "--json").json
    assert (row["name"], row["displayName"], row["capabilities"]) == ("legal-analyst", "Legal Analyst", ["worker"])
    assert row["error"] is None


def test_a_hall_stays_for_a_member_job_and_the_next_hall_restarts_the_member(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    folder = put_member(home.path, "ant")
    home.settings.write_text("hall: {idle: 0.4s}\n")
    guild = guild_hall
    assert guild("dispatch", "ant", "think long").code == 0
    first = guild.hall()
    (pid,) = marks(folder)
    wait_until(lambda: guild("hall", "status", "--json").code == 0)
    guild.kill_hall()
    wait_until(lambda: not alive(pid))
    assert json.loads((home.path / "members-at-work.json").read_text()) == {str(folder.resolve()): str(project)}
    assert guild("member", "show", "ant", "--json").json["state"] == "trusted", "looking starts nothing"
    assert "guild ls jobs --member ant" in guild("ls").err
    assert guild("ls", "jobs", "--member", "ant").code == 0
    assert "--member" not in guild("ls").err
    assert guild.hall().pid != first.pid
    assert len(marks(folder)) == 2
    # The test member loses its jobs with its process, so nothing is resumed and the hall may exit.
    wait_until(lambda: not (home.path / "members-at-work.json").exists())


@pytest.mark.req("WD-19")
def test_the_hall_reads_the_jobs_of_a_member_only_through_its_server(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    guild = guild_hall
    make_member(home.path / "guild-members" / "clerk", answers=[{"say": "stamped"}])
    job = guild("dispatch", "clerk", "Stamp it.").out.strip()
    assert guild("wait", job, "--timeout", "30s").out == "stamped\n"
    directory = home.path / "guild-members" / job.replace("/", "/jobs/")
    assert (directory / "result.md").read_text() == "stamped"
    assert not home.jobs.exists() or list(home.jobs.iterdir()) == []

    folder = put_member(home.path, "ant")  # it keeps its jobs in memory, so the files below are not its own
    job = guild("dispatch", "ant", "quick: think", "--description", "real").out.strip()
    for id in (job.partition("/")[2], "j-9"):
        shutil.copytree(directory, folder / "jobs" / id)
    assert guild("wait", job).out == "done: quick: think\n"
    assert guild("show", job, "--json").json["description"] == "real"
    listed = guild("ls", "jobs", "--member", "ant", "--json").json["jobs"]
    assert [(row["jobId"], row["description"]) for row in listed] == [(job, "real")]
    assert guild("show", "ant/j-9").code == 3
    assert guild("rm", job).code == 0
    assert (folder / "jobs" / job.partition("/")[2] / "result.md").exists()


@pytest.mark.req("WD-12")
def test_questions_of_a_completed_member_job_stay_open_until_answered(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    guild = guild_hall
    asks = [{"call": "log_question", "with": {"question": "Which branch?"}}, {"say": "finished with what I have"}]
    make_member(home.path / "guild-members" / "clerk", answers=asks)
    job = guild("dispatch", "clerk", "Look.").out.strip()
    waited = guild("wait", job, "--timeout", "30s")
    assert (waited.code, waited.out) == (0, "finished with what I have\n")
    answer = f'guild answer {job} "..."'
    assert f"Answer: {answer}" in waited.err
    assert answer in guild("ls").out
    assert [(row["jobId"], row["startedAt"]) for row in guild("ls", "jobs", "--json").json["jobs"]] == [(job, None)]
    guild("hall", "stop")  # the question is known without a hall and without the member
    assert "unfinished" not in guild("ls").err
    assert answer in guild("ls").out
    assert answer in guild("ls", "asks").out
    assert "guild ls jobs --member clerk" in guild("ls", "jobs").err
    assert guild("ls", "asks", "--json").json["members"][0]["questions"] == ["Which branch?"]
    assert guild("answer", job, "main").code == 0
    assert "Which branch?" not in guild("ls").out
    shown = guild("show", job)
    assert "answer:\n  │ main\n" in shown.out
    answered = guild("show", job, "--json").json
    assert (answered["jobId"], answered["questions"]) == (job, None)
    assert answered["answered"] == [{"question": "Which branch?", "answer": "main"}]


@pytest.mark.req("WD-17", "WD-44")
def test_a_failed_member_job_is_resumed_and_deleted_as_printed(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    guild = guild_hall
    answers = [{"call": "update_summary", "with": {"summary": "one"}}, {"say": "all done"}]
    make_member(home.path / "guild-members" / "clerk", answers=answers)
    limited = ("--config", '{"maxTurns": 1}')
    job = guild("dispatch", "clerk", "Look.", *limited).out.strip()
    assert guild("wait", job, "--timeout", "30s").code == 1
    shown = guild("show", job).err
    assert f"guild rm {job} --force" in shown
    refused = guild("rm", job)
    assert refused.code == 1
    assert f"guild resume {job}" in refused.err
    resumed = guild("resume", job, "--max-turns", "5")
    assert (resumed.code, resumed.out) == (0, "all done\n"), resumed.err
    other = guild("dispatch", "clerk", "Look.", *limited).out.strip()
    assert guild("wait", other, "--timeout", "30s").code == 1
    command = next(line for line in guild("rm", other).err.split(". ") if "--force" in line).partition("guild ")[2]
    assert guild(*shlex.split(command)).out == f"Deleted {other}.\n"
    assert guild("show", other).code == 3


def test_a_member_is_restarted_and_receives_variables_that_are_set_later(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    guild = guild_hall
    env = {"command": "${PYTHON}", "args": ["server.py", "${PORT}", ""], "env": {"ANT_KEY": "${ANT_KEY}"}}
    put_member(home.path, "ant", mcp=env)
    (home.path / "config.yaml").write_text("env: [ANT_KEY]\n")

    def look(**variables: str) -> dict[str, str]:
        return json.loads(guild("member", "call", "ant", "look", env=variables).out)["env"]

    assert "ANT_KEY" not in look()
    assert look(ANT_KEY="one")["ANT_KEY"] == "one"
    before = guild("member", "show", "ant", "--json").json
    assert look()["ANT_KEY"] == "one"  # a command without the variable does not remove it
    restarted = guild("member", "restart", "ant", env={"ANT_KEY": "two"})
    assert (restarted.code, restarted.out.startswith("Restarted ant (pid ")) == (0, True), restarted.err
    assert look()["ANT_KEY"] == "two"
    assert guild("member", "stop", "ant").out == "Stopped ant. The next use starts it again.\n"
    assert not alive(before["pid"])
    assert guild("member", "show", "ant", "--json").json["state"] == "trusted"
    guild("dispatch", "ant", "think", env={"ANT_KEY": "two"})  # a running job prevents the restart
    assert look(ANT_KEY="three")["ANT_KEY"] == "two"


@pytest.mark.req("WD-39")
def test_the_shipped_manager_can_dispatch_to_all_members(guild: Guild, project: Path, home: Home) -> None:
    assert "-dispatch_" not in guild("plan", "manager", "--model", "test:x").out
    put_member(home.path, "ant")
    assert "ant-dispatch_dispatch" in guild("plan", "manager", "--model", "test:x").out


def test_an_unknown_worker_with_the_name_of_a_template_prints_how_to_create_it(guild: Guild, project: Path) -> None:
    unknown = guild("dispatch", "researcher", "What?", "--wait")
    assert (unknown.code, "guild member new researcher --from researcher" in unknown.err) == (3, True), unknown.err


def test_questions_of_a_member_job_are_answered_by_job_id(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    asks = [
        {"call": "log_question", "with": {"question": "When?\n\nToday's is late.", "wait": False}},
        {"call": "log_question", "with": {"question": "Which?", "wait": True}},
        {"expect": "(?s)The second\\.\nMind the paint\\.", "say": "the second, then"},
    ]
    make_member(project / "guild-members" / "clerk", answers=asks)
    assert guild_hall("trust", "--yes").code == 0
    made = guild_hall("dispatch", "clerk", "Choose.")
    assert made.code == 0, made.err
    job = made.out.strip()
    waits = guild_hall("wait", job)
    assert (waits.code, waits.out) == (4, "")
    assert "Which?" in waits.err
    assert f"guild answer {job}" in waits.err
    waiting_json = guild_hall("wait", job, "--json")
    assert (waiting_json.code, len(waiting_json.json["questions"]), waiting_json.json["waiting"]) == (4, 2, True)
    for words, code in ((["approve", job], 2), (["answer", job], 2), (["answer", job, "x", "--question", "What?"], 1)):
        assert guild_hall(*words).code == code, words
    assert guild_hall("answer", "clerk/", "x").code == 3
    shown = guild_hall("show", job)
    assert "running (needs you)" in shown.out
    assert f"{project}/guild-members/{job.replace('/', '/jobs/')}" in shown.out
    assert f"guild answer {job} \"...\" --question 'Which?'" in shown.err
    elsewhere = home.path.parent
    wait_until(lambda: "Which?" in guild_hall("ls", cwd=elsewhere).out)
    assert f"cd {project} && guild answer {job}" in guild_hall("ls", cwd=elsewhere).out
    rows = [" ".join(line.split()) for line in guild_hall("ls").out.splitlines()]
    assert f"{job} question Which? guild answer {job} \"...\" --question 'Which?'" in rows
    which = guild_hall("answer", job, "x")
    assert (which.code, "2 open questions" in which.err) == (2, True)
    command = next(line for line in which.err.splitlines() if "late" in line)
    assert guild_hall(*shlex.split(command)[1:]).code == 0, command
    lost = guild_hall("answer", job, "x", cwd=elsewhere)
    assert (lost.code, "Change to the folder" in lost.err) == (3, True)
    answered = guild_hall("answer", job, "The second.", "--note", "Mind the paint.")
    assert (answered.code, answered.err.strip()) == (0, f"Answered {job}.")
    ended = guild_hall("wait", job)
    assert (ended.code, ended.out.strip()) == (0, "the second, then")
