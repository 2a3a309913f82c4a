"""`guild dispatch` and the commands that take the id of a job."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.ids import JOB, is_id
from tests.jobs.job_hall import LATE, JobHall, call, say, submit

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

ASK = call("log_question", question="Which door?\nFront or back?", wait=True)


@pytest.fixture
def job_hall(home: Home, project: Path) -> JobHall:
    job_hall = JobHall(home=home, project=project)
    job_hall.worker()
    return job_hall


@pytest.mark.req("WD-5", "WD-12", "WD-13")
def test_a_job_is_dispatched_and_its_result_is_collected_later(guild_hall: GuildWithHall, job_hall: JobHall) -> None:
    note = call("update_summary", summary="looking for iron")
    why = call("record_decision", question="Which metal?", decision="iron", reasoning="it is there")
    job_hall.script(
        [{"calls": [note, why]}, ASK, call("write_artifact", path="plan.md", content="# Plan"), submit("a key"), say()]
    )
    sent = guild_hall("dispatch", "smith", "Forge a key.\nFor Ada.", "--config", '{"metal": "iron"}', "--json")
    assert sent.code == 0, sent.err
    job = sent.json["jobId"]
    assert is_id(job, JOB)
    waited = guild_hall("wait", job)
    assert waited.code == 4
    assert "Which door?" in waited.err
    assert "Front or back?" in waited.err
    shown = guild_hall("show", job, "--json").json
    assert (shown["status"], shown["description"], shown["summary"]) == ("running", "Forge a key.", "looking for iron")
    assert shown["questions"] == ["Which door?\nFront or back?"]
    assert shown["decisions"] == [{"question": "Which metal?", "decision": "iron", "reasoning": "it is there"}]
    (ask,) = shown["waiting"]
    listed = guild_hall("ls")
    assert f"guild answer {ask}" in listed.out
    result = guild_hall("wait", job, "--json")
    assert (result.code, result.json["jobId"], result.json["status"]) == (4, job, "running"), "it needs an answer"
    refused = guild_hall("rm", job)
    assert refused.code == 1
    assert "is running" in refused.err
    assert guild_hall("answer", ask, "the front door").code == 0
    waited = guild_hall("wait", job)
    assert (waited.code, waited.out.strip()) == (0, "a key")
    result = guild_hall("wait", job, "--json").json
    assert {"jobId": job, "output": "a key", "artifacts": ["artifacts/plan.md"]}.items() <= result.items()
    text = guild_hall("show", job).out
    assert "the front door" in text
    assert "artifacts/plan.md" in text
    assert "submit_result" in guild_hall("log", job).out
    assert "Replay matches the recording" in guild_hall("replay", job).out
    (row,) = guild_hall("ls", "jobs", "--filter", "Forge*", "--worker", "smith", "--json").json["jobs"]
    assert (row["jobId"], row["status"], row["worker"]) == (job, "completed", "smith")
    assert job in guild_hall("ls").out
    assert guild_hall("stop", job, "--json").json == {"jobId": job, "status": "completed"}
    assert guild_hall("rm", job, "--json").json == {"jobId": job, "deleted": True}
    gone = guild_hall("show", job, "--json")
    assert (gone.code, gone.json["error"]["code"]) == (3, "unknown_job")


@pytest.mark.req("WD-47", "WD-16", "WD-17")
def test_a_job_survives_the_crash_of_its_hall(guild_hall: GuildWithHall, job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), {"sleep": 0.5, **submit("a key")}, say()])
    job = guild_hall("dispatch", "smith", "Forge it.").out.strip()
    guild_hall.kill_hall()
    shown = guild_hall("show", job, "--json").json  # read by the command itself, because no hall runs
    assert shown["status"] == "running"
    job_hall.worker("cooper", model="script:late.yaml")
    (job_hall.project / "late.yaml").write_text(json.dumps({"workers": {"cooper": [[LATE]]}}))
    other = guild_hall("dispatch", "cooper", "Make a cask.").out.strip()  # starts a hall, which resumes the first job
    assert guild_hall("wait", job).out.strip() == "a key"
    assert guild_hall("stop", other).out.strip() == f"{other} is cancelled"
    waited = guild_hall("wait", other)
    assert (waited.code, waited.out) == (1, "")
    assert f"{other} was cancelled" in waited.err
    assert guild_hall("wait", other).code == 1
    assert guild_hall("rm", other).code == 0


def test_dispatch_without_a_hall_requires_wait(guild: Guild, job_hall: JobHall) -> None:
    job_hall.script([submit("a key"), say()])
    refused = guild("dispatch", "smith", "Forge it.")
    assert refused.code == 2
    assert "--wait" in refused.err
    done = guild("dispatch", "smith", "-", "--wait", "--description", "a key", input="Forge it.")
    assert (done.code, done.out.strip()) == (0, "a key")
    output = guild("dispatch", "smith", "Forge it.", "--wait", "--json").json
    assert (output["status"], output["output"], output["artifacts"]) == ("completed", "a key", None)
    page = guild("ls", "jobs", "--limit", "1", "--json").json
    assert [job["jobId"] for job in page["jobs"]] == [output["jobId"]]
    rest = guild("ls", "jobs", "--cursor", page["nextCursor"]).out
    assert "a key" in rest
    assert len(guild("ls", "jobs", "--all", "--json").json["jobs"]) == 2


@pytest.mark.req("WD-44", "WD-32", "X-6")
def test_a_failed_job_reports_the_reason_and_can_be_resumed(guild: Guild, job_hall: JobHall) -> None:
    job_hall.script([call("update_summary", summary="one"), say("done")])
    failed = guild("dispatch", "smith", "Forge it.", "--wait", "--config", '{"artifacts": ["key.md"]}')
    assert failed.code == 1
    assert "the artifact key.md is missing" in failed.err
    (job,) = guild("ls", "jobs", "--json").json["jobs"]
    assert job["status"] == "failed"
    folder = job_hall.home.jobs / job["jobId"]
    shown = guild("show", job["jobId"])
    for output in (failed.err, shown.err):
        assert f"{folder / 'result.md'}. Dispatch the job again" in output
        assert "guild resume" not in output  # resuming would not call the model again
    assert str(folder) in shown.out
    kept = guild("rm", job["jobId"])
    assert kept.code == 1
    assert "--force" in kept.err
    (job_hall.home.jobs / job["jobId"] / "artifacts").mkdir()
    (job_hall.home.jobs / job["jobId"] / "artifacts" / "key.md").write_text("by hand")
    assert guild("resume", job["jobId"]).code == 0
    assert guild("wait", job["jobId"]).out.strip() == "done"
    assert f"cannot resume the job {job['jobId']}: it is completed" in guild("resume", job["jobId"]).err
    limited = guild("dispatch", "smith", "Forge it.", "--wait", "--config", '{"maxTurns": 1}')
    assert limited.code == 5
    assert "max_turns" in limited.err
    (job, _) = guild("ls", "jobs", "--json").json["jobs"]
    for output in (limited.err, guild("show", job["jobId"]).err, guild("resume", job["jobId"]).err):
        assert f"guild resume {job['jobId']}" in output
        assert f"guild resume {job['run']}" not in output
    assert guild("rm", job["jobId"], "--force").code == 0


def test_a_question_can_be_answered_without_a_hall(guild: Guild, job_hall: JobHall) -> None:
    job_hall.script([ASK, submit("a key"), say()])
    waits = guild("dispatch", "smith", "Forge it.", "--wait")
    assert waits.code == 4
    assert "Front or back?" in waits.err
    (ask,) = guild("ls", "--json").json["needs_you"]["asks"]
    assert ask["kind"] == "question"
    assert "guild answer" in guild("show", ask["ask"]).err
    done = guild("answer", ask["ask"], "the front door")
    assert (done.code, done.out.strip()) == (0, "a key")
    assert guild("answer", ask["ask"], "again").code == 1


@pytest.fixture
def completed_job(guild: Guild, job_hall: JobHall) -> dict[str, Any]:
    """Return a completed job that called all of its tools, from `guild dispatch --wait --json`."""
    parts = [
        call("update_summary", summary="first"),
        call("update_summary", summary="looking for iron"),
        call("record_decision", question="Which metal?", decision="iron", reasoning="it is there"),
        call("record_decision", question="Which bit?", decision="the long one", reasoning="the lock is deep"),
        call("log_question", question="Which door?\n---\nFront or back?"),
        call("log_question", question="And when?"),
        call("write_artifact", path="report.md", content="# Report"),
    ]
    job_hall.script([*parts, submit("a key"), say()])
    config = json.dumps({"metal": "iron", "maxTurns": 30})
    task = "Forge a key.\nFor Ada."
    output = guild("dispatch", "smith", task, "--wait", "--json", "--description", "keys/a key", "--config", config)
    assert output.code == 0, output.err
    return output.json


def test_a_job_cannot_become_a_test(guild: Guild, completed_job: dict[str, Any]) -> None:
    ran = guild("test", "add", completed_job["jobId"], "job")
    assert ran.code == 2
    assert "tests cannot start the run of a job" in ran.err


@pytest.mark.req("WD-15", "WD-20", "WD-21")
def test_a_job_is_a_directory_of_plain_files(job_hall: JobHall, guild: Guild, completed_job: dict[str, Any]) -> None:
    assert [path.name for path in job_hall.home.jobs.iterdir()] == [completed_job["jobId"]]
    files = job_hall.files(completed_job["jobId"])
    assert files["task.md"] == "Forge a key.\nFor Ada."
    assert json.loads(files["config.json"]) == {"metal": "iron", "maxTurns": 30}
    meta = json.loads(files["meta.json"])
    assert (meta["id"], meta["status"], meta["description"]) == (completed_job["jobId"], "completed", "keys/a key")
    assert files["result.md"] == guild("wait", completed_job["jobId"]).out.rstrip("\n") == "a key"
    assert files["artifacts/report.md"] == "# Report"
    result = guild("wait", completed_job["jobId"], "--json").json
    expected = {"jobId": completed_job["jobId"], "output": "a key", "artifacts": ["artifacts/report.md"]}
    assert expected.items() <= result.items()


@pytest.mark.req("WD-23", "WD-24", "WD-25")
def test_the_worker_reports_through_its_tools(job_hall: JobHall, guild: Guild, completed_job: dict[str, Any]) -> None:
    files = job_hall.files(completed_job["jobId"])
    assert files["status.md"] == completed_job["summary"] == "looking for iron"
    decisions = [(one["question"], one["decision"]) for one in json.loads(files["decisions.json"])]
    assert decisions == [("Which metal?", "iron"), ("Which bit?", "the long one")]
    assert completed_job["decisions"][1]["reasoning"] == "the lock is deep"
    assert completed_job["questions"] == ["Which door?\n---\nFront or back?", "And when?"]
    assert "> Which door?\n> ---\n> Front or back?\n" in files["questions.md"]
    asks = guild("ls", "--json").json["needs_you"]["asks"]
    assert [ask["body"] for ask in asks] == completed_job["questions"]


@pytest.mark.req("WD-11", "WD-8", "WD-10")
def test_a_job_is_found_by_id_and_by_filter(guild: Guild, completed_job: dict[str, Any]) -> None:
    shown = guild("show", completed_job["jobId"], "--json").json
    expected = {
        "jobId": completed_job["jobId"],
        "status": "completed",
        "description": "keys/a key",
        "summary": "looking for iron",
        "questions": ["Which door?\n---\nFront or back?", "And when?"],
        "error": None,
    }
    assert expected.items() <= shown.items()
    assert [one["decision"] for one in shown["decisions"]] == ["iron", "the long one"]
    assert shown["startedAt"] < shown["completedAt"]
    assert guild("ls", "jobs", "--filter", "zzz*").err == "No jobs match the filter. List all: guild ls jobs\n"
    for filter, found in (("keys*", 1), ("*key", 1), ("keys", 0), ("KEYS*", 0), ("*door*", 0)):
        rows = guild("ls", "jobs", "--filter", filter, "--json").json["jobs"]
        assert len(rows) == found, filter
        for row in rows:
            output = (row["jobId"], row["status"], row["description"], row["summary"])
            assert output == (completed_job["jobId"], "completed", "keys/a key", "looking for iron")


@pytest.mark.req("WD-11")
def test_a_job_without_reports_has_null_in_their_place(guild_hall: GuildWithHall, job_hall: JobHall) -> None:
    guild = guild_hall
    job_hall.script([LATE])
    job = guild("dispatch", "smith", "Forge it.", "--description", "a key").out.strip()
    running = guild("show", job, "--json").json
    nothing = dict.fromkeys(("summary", "questions", "decisions", "error", "completedAt"))
    assert ({"jobId": job, "status": "running", "description": "a key"} | nothing).items() <= running.items()
    assert guild("stop", job).code == 0
    stopped = guild("show", job, "--json").json
    assert stopped["status"] == "cancelled"
    assert stopped["completedAt"] >= stopped["startedAt"] == running["startedAt"]


@pytest.mark.req("WD-7")
def test_job_ids_are_never_used_again(guild_hall: GuildWithHall, job_hall: JobHall) -> None:
    guild = guild_hall
    job_hall.script([{"fail": 400}])
    ids: list[str] = []
    for _ in range(3):
        made = [guild("dispatch", "smith", "Forge it.").out.strip() for _ in range(2)]
        ids += made
        for job in made:
            guild("wait", job, "--timeout", "30s")
            assert guild("rm", job, "--force").code == 0
        guild("hall", "stop")
    assert len(set(ids)) == len(ids) == 6
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]{3,60}", job) for job in ids), ids


@pytest.mark.req("WD-18", "WD-14")
def test_deleting_a_job_deletes_its_directory_and_its_asks(
    job_hall: JobHall, guild: Guild, completed_job: dict[str, Any]
) -> None:
    assert guild("rm", completed_job["jobId"]).code == 0
    assert list(job_hall.home.jobs.iterdir()) == []
    assert guild("ls", "--json").json["needs_you"]["asks"] == []
    for command in ("show", "wait", "stop", "rm"):
        gone = guild(command, completed_job["jobId"], "--json")
        assert (gone.code, gone.json["error"]["code"]) == (3, "unknown_job")
    job_hall.script([{"fail": 400}])
    again = guild("dispatch", "smith", "Forge it.", "--wait", "--json").json
    assert again["status"] == "failed"
    none = guild("wait", again["jobId"], "--json")
    assert (none.code, none.json["status"], "output" in none.json) == (1, "failed", False)


@pytest.mark.req("WD-31", "WD-34", "WD-6")
def test_a_worker_in_a_job_has_read_tools_and_report_instructions(
    guild: Guild, job_hall: JobHall, completed_job: dict[str, Any]
) -> None:
    first = json.loads(guild("log", completed_job["jobId"], "--json").out.splitlines()[0])["data"]
    names = {tool["name"] for tool in first["tools"]}
    assert {"Read", "Grep", "Glob", "update_summary", "record_decision", "log_question", "store_memory"} < names
    assert not names & {"Write", "Edit", "Bash", "sandbox_write_text"}
    assert "report only through the tools below" in first["system_prompt"]
    assert first["first_message"].startswith("Forge a key.\nFor Ada.\n")
    assert '"metal": "iron"' in first["first_message"]
    assert "keys/a key" not in first["first_message"]
    job_hall.worker(tools=["Read", "Write", "Edit"])
    refused = guild("dispatch", "smith", "Forge it.", "--wait")
    assert refused.code == 4
    assert "the tool Write and the tool Edit" in refused.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["dispatch", "smith", " ", "--wait"], 2),
        (["dispatch", "smith", "go", "--wait", "--config", "{"], 2),
        (["dispatch", "smith", "go", "--wait", "--config", "[]"], 2),
        (["dispatch", "smith", "go", "--wait", "--config", '{"maxTurns": "x"}'], 2),
        (["dispatch", "smith", "go", "--wait", "--description", "a\nb"], 2),
        (["dispatch", "nobody", "go", "--wait"], 3),
        (["show", "nothing"], 3),
        (["show", "j-2345678923"], 3),
        (["wait", "../.."], 3),
        (["stop", "r-2345678923"], 3),
        (["rm", "\x1b[31m"], 3),
        (["rm", "r-2345678923"], 3),
        (["wait", "j-2345678923"], 3),
        (["log", "j-2345678923"], 3),
        (["resume", "j-2345678923"], 3),
        (["fork", "j-2345678923", "--at", "1"], 3),
        (["ls", "jobs", "--cursor", "x"], 2),
        (["ls", "jobs", "--limit", "0"], 2),
        (["ls", "jobs", "--filter", "x" * 2000], 2),
    ],
)
def test_invalid_arguments_are_reported_without_a_traceback(
    guild: Guild, job_hall: JobHall, words: list[str], code: int
) -> None:
    job_hall.script([say()])
    done = guild(*words)
    assert done.code == code, done.err
    assert done.err.startswith("guild: ")
    assert "Traceback" not in done.err
    assert "\x1b" not in done.err


def test_errors_name_the_field_as_the_user_wrote_it(guild: Guild, job_hall: JobHall) -> None:
    job_hall.script([submit("a key"), say()])
    assert "guild: the task is empty" in guild("dispatch", "smith", "", "--wait").err
    assert (
        "config.maxTurns: expected" in guild("dispatch", "smith", "go", "--wait", "--config", '{"maxTurns": "2"}').err
    )
    deep = guild("dispatch", "smith", "go", "--wait", "--config", '{"a": ' + "[" * 64 + "]" * 64 + "}")
    assert deep.err.startswith("guild: invalid config of the job: more than 64 levels of nesting\nUse a flatter object")
    near = guild("dispatch", "smith", "go", "--wait", "--config", '{"max_turns": 2, "metal": "iron"}')
    assert near.code == 0, near.err
    assert "max_turns is passed to the worker. Did you mean maxTurns?" in near.err
    assert "metal" not in near.err


def test_the_job_list_is_empty_before_the_first_job(guild: Guild, job_hall: JobHall) -> None:
    nothing: dict[str, Any] = {"jobs": []}
    assert json.loads(guild("ls", "jobs", "--json").out) == nothing
    assert "guild dispatch" in guild("ls", "jobs").err


@pytest.mark.req("X-3", "WD-32")
def test_the_budget_of_a_job_includes_its_child_runs(guild: Guild, job_hall: JobHall) -> None:
    job_hall.worker(allow_workers=["cooper"])
    job_hall.worker("cooper")
    help = call("worker_call", worker="cooper", input_data="Make a cask.")
    spent = {"usage": {"input": 1000, "output": 4000}}
    runs = {"smith": [[{**help, **spent}, {**say(), **spent}]], "cooper": [[{**say("a cask"), **spent}]]}
    script = {"workers": runs, "price": {"input": 10.0, "output": 10.0}}
    (job_hall.project / "script.yaml").write_text(json.dumps(script))
    done = guild("dispatch", "smith", "Forge it.", "--wait", "--json", "--config", '{"maxBudgetUsd": 1.0}').json
    assert (done["status"], done["cost_usd"]) == ("completed", 0.15)
    failed = guild("dispatch", "smith", "Forge it.", "--wait", "--json", "--config", '{"maxBudgetUsd": 0.1}')
    assert failed.code == 5
    output = failed.json
    assert output["status"] == "failed"
    assert "max_budget_usd" in output["error"]
    assert output["cost_usd"] < 0.15
    more = guild("resume", output["jobId"], "--budget", "1", "--output", "json").json
    assert more["status"] == "completed"
    assert guild("show", output["jobId"], "--json").json["status"] == "completed"
