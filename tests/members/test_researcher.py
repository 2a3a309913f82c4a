"""The researcher that comes with Guildhall: searches, reports in its form, remembers, and is a template for others."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

import guildhall
from guildhall.core.clock import SystemClock
from guildhall.core.request_frame import Frame
from guildhall.jobs.model import Dispatch
from guildhall.members.jobs import MemberJobs
from guildhall.members.process import MemberProcess, Timings
from guildhall.members.registry import MemberRegistry, read_manifest
from guildhall.testing.scripted_server import ScriptedServer
from tests.members.member_servers import serve_member, write_script

if TYPE_CHECKING:
    from collections.abc import Generator

    from guildhall.core.paths import Home
    from tests.conftest import Guild


SHIPPED = Path(guildhall.__file__).parent / "members" / "shipped"
REPORT = {
    "question": "Why are there two tides a day?",
    "summary": "Because the sea bulges on both sides.",
    "findings": [
        {
            "claim": "The far side bulges too.",
            "sources": [{"url": "https://tides.example/why", "title": "Tides"}],
            "confidence": "high",
        }
    ],
    "openQuestions": ["How strong is the effect in closed seas?"],
}


class Engine(BaseHTTPRequestHandler):
    """A SearXNG server that knows one page."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["q"][0]
        self.server.asked.append(query)  # type: ignore[attr-defined]
        found = [{"title": "Tides", "url": "https://tides.example/why", "content": "The sea bulges twice."}]
        body = json.dumps({"results": found}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def engine() -> Generator[tuple[str, list[str]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def research(*more: dict[str, Any], output: Any = None) -> list[dict[str, Any]]:
    return [
        {"call": "WebSearch", "with": {"query": "two tides a day"}},
        {"expect": "The sea bulges twice", "call": "update_summary", "with": {"summary": "Found one page."}},
        *more,
        {"call": "submit_result", "with": {"output": output or REPORT}},
        {"say": "done"},
    ]


def place(folder: Path, url: str | None, answers: list[Any]) -> Path:
    """Copy the shipped folder and write the user's settings for it."""
    shutil.copytree(SHIPPED / "researcher", folder)
    model = write_script(folder.parent / "answers.yaml", answers)
    settings = f"model: {model}\n" + (f"web_search: {{searxng: '{url}'}}\n" if url else "")
    (folder.parent / "person").mkdir()
    (folder.parent / "person" / "config.yaml").write_text(settings)
    return folder


def environ(folder: Path) -> dict[str, str]:
    return {"GUILDHALL_HOME": str(folder.parent / "person")}


@pytest.mark.req("WD-40", "WD-41", "WD-42")
def test_the_researcher_searches_the_web_and_reports_with_sources(tmp_path: Path) -> None:
    async def work() -> None:
        async with serve_member(folder, environ(folder)) as member:
            assert (await member.ask("tools/list")).json()["result"] == {"tools": []}
            job = await member.dispatch("Why are there two tides a day?", "Tides")
            shown = await member.ended(job)
            assert (shown["status"], shown["summary"]) == ("completed", "Found one page.")
            result = await member.worker("result", jobId=job)
            assert json.loads(result["output"]) == REPORT

    with engine() as (url, asked):
        folder = place(tmp_path / "researcher", url, research())
        asyncio.run(work())
        assert asked == ["two tides a day"]
    assert read_manifest(folder).capabilities == ("worker",)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"findings": [{"claim": "It is so."}]}, "sources"),
        ({"findings": [{"claim": "It is so.", "sources": []}]}, "sources"),
        ({"findings": [{"claim": "x", "sources": [{"url": "somewhere"}]}]}, "url"),
        ({"openQuestions": None}, "openQuestions"),
        ({"opinion": "I like it."}, "opinion"),
        ({"summary": ""}, "summary"),
    ],
)
@pytest.mark.req("WD-41")
def test_a_report_that_does_not_match_the_schema_is_rejected(
    tmp_path: Path, change: dict[str, Any], missing: str
) -> None:
    schema = json.loads((SHIPPED / "researcher" / "schemas" / "report.json").read_text())
    jsonschema.validate(REPORT, schema)
    answers = [
        {"call": "submit_result", "with": {"output": {**REPORT, **change}}},
        {"expect": missing, "call": "submit_result", "with": {"output": REPORT}},
        {"say": "done"},
    ]

    async def work() -> None:
        async with serve_member(folder, environ(folder)) as member:
            job = await member.dispatch("Why?")
            assert (await member.ended(job))["status"] == "completed"
            assert json.loads((await member.worker("result", jobId=job))["output"]) == REPORT

    folder = place(tmp_path / "researcher", "http://127.0.0.1:9", answers)
    asyncio.run(work())


def test_a_dispatch_without_a_search_engine_names_the_setting(tmp_path: Path) -> None:
    folder = place(tmp_path / "researcher", None, research())

    async def work() -> None:
        async with serve_member(folder, environ(folder)) as member:
            error = await member.refused("dispatch", {"description": "Tides", "task": "Why?"})
            assert error["code"] == -32000
            assert "WebSearch has no search engine" in error["message"]
            assert "web_search: {provider: native}" in error["message"]
            assert error["data"]["code"] == "tool_unavailable"
            assert await member.worker("list") == {"jobs": []}

    asyncio.run(work())
    assert not list((folder / "jobs").glob("j-*"))


@pytest.mark.req("WD-28", "WD-27")
def test_the_memory_of_the_researcher_is_available_to_the_next_job(tmp_path: Path) -> None:
    note = {"call": "store_memory", "with": {"key": "good-sources", "content": "tides.example was right."}}
    again = [{"expect_system": "tides.example was right", "call": "submit_result", "with": {"output": REPORT}}]

    async def work(second: str) -> None:
        async with serve_member(folder, environ(folder)) as member:
            assert (await member.ended(await member.dispatch("Why?")))["status"] == "completed"
            assert (await member.ended(await member.dispatch("And why not?", model=second)))["status"] == "completed"

    with engine() as (url, _):
        folder = place(tmp_path / "researcher", url, research(note))
        asyncio.run(work(write_script(tmp_path / "again.yaml", [*again, {"say": "done"}])))


@pytest.mark.req("WD-22")
def test_the_model_receives_exactly_the_prompt_and_the_tools(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"workers": {"researcher": [research()]}}))

    async def work(variables: dict[str, str]) -> None:
        async with serve_member(folder, {**environ(folder), **variables}) as member:
            job = await member.dispatch("Why?", model="anthropic:claude-sonnet-5")
            shown = await member.ended(job)
            assert shown["status"] == "completed", shown["error"]

    with engine() as (url, _), ScriptedServer(script) as server:
        folder = place(tmp_path / "researcher", url, [])
        key = {"ANTHROPIC_API_KEY": "script-researcher", "ANTHROPIC_BASE_URL": server.anthropic_url}
        asyncio.run(work(key))
    names = sorted(tool["name"] for tool in server.requests[0].body["tools"])
    assert names == sorted(
        [
            "Glob",
            "Grep",
            "Read",
            "WebFetch",
            "WebSearch",
            "log_question",
            "record_decision",
            "store_memory",
            "submit_result",
            "update_summary",
            "write_artifact",
        ]
    )
    prompt = json.dumps(server.requests[0].body["system"])
    assert "You research one question" in prompt
    assert "update_summary" in prompt


@pytest.mark.req("WD-43")
def test_a_copy_with_another_name_and_prompt_works(tmp_path: Path) -> None:
    answers = research()
    answers[0]["expect_system"] = "You are a historian"

    async def work() -> None:
        async with serve_member(folder, environ(folder)) as member:
            about = (await member.ask("initialize", {"protocolVersion": "2025-06-18"})).json()["result"]
            assert about["serverInfo"]["name"] == "historian"
            job = await member.dispatch("Who built it?")
            shown = await member.ended(job)
            assert shown["status"] == "completed", shown["error"]
            assert json.loads((await member.worker("result", jobId=job))["output"])["summary"]

    with engine() as (url, _):
        folder = place(tmp_path / "historian", url, answers)
        manifest = json.loads((folder / "guild-member.json").read_text())
        (folder / "guild-member.json").write_text(json.dumps({**manifest, "name": "historian"}))
        (folder / "prompts" / "researcher.md").write_text("You are a historian. Say what happened.\n")
        asyncio.run(work())


@pytest.mark.req("PLAN-tpl", "WD-43")
def test_a_copy_is_discovered_started_and_runs_a_job_from_dispatch_to_result(home: Home) -> None:
    async def work() -> None:
        member = MemberRegistry(home.path / "nowhere", home).find("historian")
        assert (member.accepts_jobs, member.scope, member.error) == (True, "home", None)
        frame = Frame.here(home.path, os.environ)
        process = MemberProcess(member, frame, home, SystemClock(), Timings(grace_s=2.0), "")
        try:
            jobs = MemberJobs(member, process.client)
            job = (await jobs.dispatch(Dispatch(description="Lighthouse", task="Who built it?"))).id
            async with asyncio.timeout(10):
                while (shown := await jobs.status(job)).job.status == "running":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert shown.job.status == "completed", shown.job.error
            assert json.loads((await jobs.result(job)).output) == REPORT
            assert [line.id for line in (await jobs.page()).jobs] == [job]
            await jobs.delete(job)
        finally:
            await process.stop()

    with engine() as (url, asked):
        folder = home.path / "guild-members" / "historian"
        shutil.copytree(SHIPPED / "researcher", folder)
        manifest = json.loads((folder / "guild-member.json").read_text())
        (folder / "guild-member.json").write_text(json.dumps({**manifest, "name": "historian"}))
        (folder / "prompts" / "researcher.md").write_text("You are a historian. Say what happened.\n")
        answers = research()
        answers[0]["expect_system"] = "You are a historian"
        model = write_script(home.path / "answers.yaml", answers)
        home.settings.write_text(f"model: {model}\nweb_search: {{searxng: '{url}'}}\n")
        asyncio.run(work())
        assert asked == ["two tides a day"]
    assert list((folder / "jobs").iterdir()) == []


@pytest.mark.req("PLAN-tpl", "WD-41")
def test_a_member_created_from_the_researcher_answers_a_question_with_a_report(
    home: Home, project: Path, guild_hall: Guild
) -> None:
    with engine() as (url, asked):
        model = write_script(project / "answers.yaml", research())
        home.path.mkdir(parents=True)
        home.settings.write_text(f"model: {model}\nweb_search: {{searxng: '{url}'}}\n")
        made = guild_hall("member", "new", "historian", "--from", "researcher")
        assert made.code == 0, made.err
        assert guild_hall("dispatch", "historian", "Who built it?", "--wait").code == 4  # nobody has trusted it yet
        trusted = guild_hall("trust", "--yes")
        assert trusted.code == 0, trusted.err
        done = guild_hall("dispatch", "historian", "Who built it?", "--wait", timeout=90)
        assert done.code == 0, done.err
        assert json.loads(done.out) == REPORT
        assert asked == ["two tides a day"]
    (job,) = (project / "guild-members" / "historian" / "jobs").iterdir()
    assert json.loads((job / "meta.json").read_text())["status"] == "completed"
    assert not (home.path / "jobs").exists() or not list((home.path / "jobs").iterdir())  # it is the member's alone
