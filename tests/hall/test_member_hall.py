"""The hall inside a member: its tools, memory, settings and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.paths import Home
from guildhall.hall.composition.database import lock_home
from guildhall.testing.scripted_server import ScriptedServer
from tests.hall.test_member import free_port, start_member, wait_until_up
from tests.members.member_servers import connect_member, make_member, serve_member, write_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

JOB_TOOLS = {"update_summary", "record_decision", "log_question", "store_memory", "write_artifact", "submit_result"}
READ_TOOLS = {"Read", "Grep", "Glob"}


def listed_tools(server: ScriptedServer) -> set[str]:
    """Return the names of the tools in every model request."""
    (names,) = {frozenset(tool["name"] for tool in request.body["tools"]) for request in server.requests}
    return set(names)


# Tools


@pytest.mark.req("WD-22", "WD-30")
def test_the_model_gets_job_and_read_tools_and_can_reach_nothing_else(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk", model="anthropic:claude-sonnet-5", tools=["WebFetch"], accepts_risk=True)
    (folder / "notes.md").write_text("the note of the member")
    outside = tmp_path / "outside.txt"
    outside.write_text("a secret of the person's")
    tries: list[dict[str, Any]] = [
        {"call": "Read", "with": {"file_path": str(folder / "notes.md")}},
        {"expect": "the note of the member", "call": "Read", "with": {"file_path": str(outside)}},
        {"call": "Write", "with": {"file_path": str(folder / "new.txt"), "content": "x"}},
        {"expect": "Unknown tool 'Write'", "call": "Edit", "with": {"file_path": str(folder / "notes.md")}},
        {"expect": "Unknown tool 'Edit'", "call": "Bash", "with": {"command": "touch new.txt"}},
        {
            "expect": "Unknown tool 'Bash'",
            "call": "Glob",
            "with": {"pattern": "**/*", "path": str(folder / ".guild")},
        },
        {"call": "write_artifact", "with": {"path": "../../../new.txt", "content": "x"}},
        {"call": "store_memory", "with": {"key": "../new", "content": "x"}},
        {"call": "submit_result", "with": {"output": "as far as I could"}},
        {"say": "done"},
    ]
    script = tmp_path / "tries.yaml"
    script.write_text(json.dumps({"workers": {"clerk": [tries]}}))

    async def work(environ: dict[str, str]) -> str:
        async with serve_member(folder, environ) as member:
            job = await member.dispatch("Do your worst.")
            shown = await member.ended(job)
            assert shown["status"] == "completed", shown["error"]
            return job

    with ScriptedServer(script) as server:
        key = {"ANTHROPIC_API_KEY": "script-clerk", "ANTHROPIC_BASE_URL": server.anthropic_url}
        job = asyncio.run(work(key))
    shown = listed_tools(server)
    assert shown >= JOB_TOOLS | READ_TOOLS | {"WebFetch"}
    assert not shown & {"Write", "Edit", "Bash", "WebSearch", "worker_call"}
    output = json.dumps([request.body for request in server.requests])
    assert "a secret of the person's" not in output
    assert "script-clerk" not in output
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".guild", "guild-member.json", "guildhall.yaml", "jobs", "notes.md", "script.yaml", "server.py", "workers"]
    )
    assert sorted(path.name for path in (folder / "jobs").iterdir()) == [job]
    assert (folder / "notes.md").read_text() == "the note of the member"


# Memory


@pytest.mark.req("WD-26", "WD-27", "WD-28")
def test_memory_of_a_job_is_in_the_prompt_of_the_next_job(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    first = write_script(
        tmp_path / "first.yaml",
        [
            {"call": "store_memory", "with": {"key": "sources", "content": "The almanac is good."}},
            {"call": "submit_result", "with": {"output": "one"}},
            {"say": "done"},
        ],
    )
    second = write_script(
        tmp_path / "second.yaml",
        [
            {
                "expect_system": "(?s)newest.*The almanac is good",
                "call": "store_memory",
                "with": {"key": "sources", "content": "The almanac is out of date."},
            },
            {"call": "submit_result", "with": {"output": "two"}},
            {"say": "done"},
        ],
    )
    third = write_script(tmp_path / "third.yaml", [{"expect_system": "The almanac is out of date", "say": "three"}])

    async def job(model: str) -> str:
        async with serve_member(folder) as member:  # a new member process each time; the memory is on disk
            job = await member.dispatch(model=model)
            shown = await member.ended(job)
            assert shown["status"] == "completed", shown
            return (await member.worker("result", jobId=job))["output"]

    assert asyncio.run(job(first)) == "one"
    assert (folder / "memory" / "sources.md").read_text() == "The almanac is good."
    assert asyncio.run(job(second)) == "two"
    assert asyncio.run(job(third)) == "three"
    assert [path.name for path in (folder / "memory").glob("*.md")] == ["sources.md"]


@pytest.mark.req("WD-28")
def test_the_newest_memory_entries_are_shown_up_to_the_limit(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    (folder / "guildhall.yaml").write_text("model: script:script.yaml\nmemory: {limit_tokens: 1000}\n")
    (folder / "memory").mkdir()
    for number in range(6):
        note = folder / "memory" / f"note-{number}.md"
        note.write_text(f"note {number} begins\n{'x' * 700}\nnote {number} ends\n")
        os.utime(note, (1_000_000 + number, 1_000_000 + number))
    expected = "(?s)note 5 begins.*note 5 ends.*note 4 begins.*note 4 ends.*not fit here"
    model = write_script(tmp_path / "look.yaml", [{"expect_system": expected, "say": "seen"}])
    never = write_script(tmp_path / "never.yaml", [{"expect_system": "note 0 begins", "say": "seen"}])

    async def work() -> None:
        async with serve_member(folder) as member:
            assert (await member.ended(await member.dispatch(model=model)))["status"] == "completed"
            assert (await member.ended(await member.dispatch(model=never)))["status"] == "failed"

    asyncio.run(work())


@pytest.mark.req("WD-26")
def test_memory_of_a_member_is_compacted_in_the_background(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    (folder / "guildhall.yaml").write_text("model: script:script.yaml\nmemory: {limit_tokens: 400}\n")
    note = {"call": "store_memory", "with": {"key": "long", "content": "x" * 4_000}}
    answers = {
        "clerk": [[note, {"expect": "too long for a prompt", "say": "done"}]],
        "memory-compactor": [[{"expect": "xxxx", "say": "It was all x."}]],
    }
    script = {"workers": answers, "repeat": True, "price": {"input": 3.0, "output": 15.0}}
    (folder / "script.yaml").write_text(json.dumps(script))

    async def work() -> None:
        async with serve_member(folder) as member:
            shown = await member.ended(await member.dispatch())
            assert shown["status"] == "completed", shown["error"]
            async with asyncio.timeout(10):
                while not (folder / "memory" / "compacted.md").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len((await member.worker("list"))["jobs"]) == 1  # compaction is not a job

    asyncio.run(work())
    assert (folder / "memory" / "compacted.md").read_text().strip() == "It was all x."
    assert not (folder / "memory" / "long.md").exists()
    assert [path.read_text() for path in (folder / "memory" / "archive").rglob("long.md")] == ["x" * 4_000]


@pytest.mark.req("WD-29")
def test_invalid_memory_keys_are_rejected_and_a_repeated_key_replaces(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    wrong = ["../up", "a/b", "", ".hidden", "a" * 65, "name.md", "nul\0", "é", "compacted", "/etc/passwd", "a..b"]
    notes = [{"call": "store_memory", "with": {"key": key, "content": "x"}} for key in wrong]
    refused = [{**note, "expect": "key"} if place else note for place, note in enumerate(notes)]
    again = [{"call": "store_memory", "with": {"key": "a-fact.1", "content": text}} for text in ("first", "second")]
    answers = [*refused, {**again[0], "expect": "key"}, again[1], {"say": "done"}]
    model = write_script(tmp_path / "script.yaml", answers)

    async def work() -> None:
        async with serve_member(folder) as member:
            shown = await member.ended(await member.dispatch(model=model))
            assert shown["status"] == "completed", shown["error"]

    asyncio.run(work())
    assert {path.name: path.read_text() for path in (folder / "memory").glob("*.md")} == {"a-fact.1.md": "second"}
    assert [path.name for path in tmp_path.glob("*.md")] == []


# Restarts


@pytest.mark.req("WD-18")
def test_a_job_is_resumed_when_the_member_restarts(tmp_path: Path) -> None:
    folder = make_member(
        tmp_path / "clerk",
        answers=[
            {"call": "update_summary", "with": {"summary": "begun"}},
            {"call": "log_question", "with": {"question": "Only once?"}},
            {"sleep": 0.3, "call": "submit_result", "with": {"output": "through"}},
            {"say": "done"},
        ],
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"

    async def start_job() -> str:
        await wait_until_up(url)
        async with connect_member(url) as member:
            job = await member.dispatch()
            async with asyncio.timeout(10):
                while (await member.worker("status", jobId=job))["questions"] is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return job

    async def finish_job(job: str) -> dict[str, Any]:
        await wait_until_up(url)
        async with connect_member(url) as member:
            shown = await member.ended(job)
            assert (await member.worker("result", jobId=job))["output"] == "through"
            await member.worker("delete", jobId=job)
            return shown

    process = start_member(folder, port)
    try:
        job = asyncio.run(start_job())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
        assert json.loads((folder / "jobs" / job / "meta.json").read_text())["status"] == "running"
        process = start_member(folder, port)
        shown = asyncio.run(finish_job(job))
    finally:
        process.kill()
        process.communicate()
    assert (shown["status"], shown["summary"], shown["questions"]) == ("completed", "begun", ["Only once?"])
    assert list((folder / "jobs").iterdir()) == []


# Settings and folder


def test_a_member_uses_the_settings_of_the_user_unless_it_has_its_own(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    (folder / "guildhall.yaml").unlink()
    person = tmp_path / "person"
    person.mkdir()
    say = {"say": "by the settings of the person"}
    model = write_script(person / "said.yaml", [say])
    (person / "config.yaml").write_text(f"model: {model}\n")
    own = write_script(tmp_path / "own.yaml", [{"say": "by its own"}])

    async def read_output(environ: dict[str, str]) -> Any:
        async with serve_member(folder, environ) as member:
            reply = (await member.ask("worker/dispatch", {"description": "x", "task": "x"})).json()
            if "error" in reply:
                return reply["error"]["code"]
            await member.ended(reply["result"]["jobId"])
            return (await member.worker("result", jobId=reply["result"]["jobId"]))["output"]

    assert asyncio.run(read_output({})) == -32000  # no model is set
    assert asyncio.run(read_output({"GUILDHALL_HOME": str(person)})) == "by the settings of the person"
    (folder / ".guild" / "config.yaml").write_text(f"model: {own}\n")
    assert asyncio.run(read_output({"GUILDHALL_HOME": str(person)})) == "by its own"


def test_toolboxes_of_a_member_need_no_trust(tmp_path: Path) -> None:
    folder = make_member(
        tmp_path / "clerk",
        toolboxes=["letters"],
        answers=[{"call": "shout", "with": {"text": "hear"}}, {"expect": "HEAR", "say": "heard"}],
    )
    (folder / "toolboxes").mkdir()
    (folder / "toolboxes" / "letters.py").write_text(
        "from guildhall import Toolbox, tool\n\n\n@tool\ndef shout(text: str) -> str:\n"
        '    """Says it louder."""\n    return text.upper()\n\n\ntoolbox = Toolbox("letters", shout)\n'
    )

    async def work() -> None:
        async with serve_member(folder) as member:
            shown = await member.ended(await member.dispatch())
            assert shown["status"] == "completed", shown

    asyncio.run(work())


def test_a_second_process_of_a_member_is_refused(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    with lock_home(Home.at(folder / ".guild"), SystemClock()):
        process = start_member(folder, 0, secret=None)
        _, output = process.communicate(timeout=20)
    assert (process.returncode, "is in use by" in output, "Traceback" in output) == (1, True, False)
    assert "The member is already running" in output
    assert "GUILDHALL" not in output


def test_the_worker_with_the_name_of_the_member_gets_the_jobs(tmp_path: Path) -> None:
    folder = make_member(tmp_path / "clerk")
    (folder / "workers" / "other.yaml").write_text(json.dumps({"instructions": "Other."}))

    async def work() -> None:
        async with serve_member(folder) as member:
            assert (await member.ended(await member.dispatch()))["status"] == "completed"

    asyncio.run(work())
    (folder / "workers" / "clerk.yaml").rename(folder / "workers" / "third.yaml")
    process = start_member(folder, 0)
    _, output = process.communicate(timeout=20)
    assert (process.returncode, "has several workers: other, third" in output) == (1, True)


def test_commands_can_read_and_answer_the_jobs_of_a_running_member(tmp_path: Path, guild: Guild) -> None:
    folder = make_member(
        tmp_path / "clerk",
        tool_rules={"write_artifact": {"approval_required": True}},
        answers=[
            {"call": "write_artifact", "with": {"path": "report.md", "content": "All of it."}},
            {"call": "submit_result", "with": {"output": "written"}},
            {"say": "done"},
        ],
    )
    inside = {"GUILDHALL_HOME": str(folder / ".guild"), "GUILDHALL_EMBEDDED": ""}

    def run_guild(*words: str) -> Any:
        ran = guild(*words, "--json", env=inside)
        assert ran.code == 0, ran.err
        return ran.json

    async def work() -> str:
        async with serve_member(folder) as member:
            job = await member.dispatch()
            async with asyncio.timeout(10):
                while (shown := await member.worker("status", jobId=job))["questions"] is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert shown["status"] == "running"
            assert (await member.refused("answer", {"jobId": job, "answer": "yes"}))["code"] == -32602
            needs = (await asyncio.to_thread(run_guild, "ls"))["needs_you"]
            (ask,) = [one["ask"] for one in needs["asks"]]
            answered = await asyncio.to_thread(guild, "answer", ask, "yes", env=inside)
            assert answered.code == 0, answered.err
            assert (await member.ended(job))["status"] == "completed"
            return job

    job = asyncio.run(work())
    assert (folder / "jobs" / job / "artifacts" / "report.md").read_text() == "All of it."
    assert [row["jobId"] for row in run_guild("ls", "jobs")["jobs"]] == [job]  # also while the member is stopped
    for embedded in ("1", ""):
        refused = guild("rm", job, env={**inside, "GUILDHALL_EMBEDDED": embedded})
        assert (refused.code, "belongs to the member clerk" in refused.err) == (7, True), refused
    assert (folder / "jobs" / job).is_dir()
