"""The Python library: load, run, await, stream, answer and resume workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import guildhall
from guildhall import RunResult, Toolbox, Worker, tool
from guildhall.core.errors import (
    Conflict,
    GuildError,
    HallUnavailable,
    InvalidFile,
    NotFound,
    NotTrusted,
    ToolUnavailable,
    UsageError,
)
from guildhall.hall.composition.hall import Hall
from guildhall.runs.model import Answer
from tests.runs.places import DONE, OTHER, WRITE, put_script, put_worker
from tests.runs.trees import call, list_notes, put_answers, put_boss, put_tree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.events import Event


@pytest.fixture
def scribe(project: Path) -> Worker:
    """Return a worker that writes one file after an approval."""
    put_worker(project)
    put_script(project, {**WRITE, "say": "I write."}, {"say": "all done", "usage": {"input": 200, "output": 20}})
    return Worker.load("scribe")


def test_every_public_name_exists() -> None:
    for name in guildhall.__all__:
        assert getattr(guildhall, name) is not None


def test_importing_the_library_imports_nothing_heavy() -> None:
    heavy = ["pydantic_ai", "sqlalchemy", "ruamel", "httpx2", "starlette", "jinja2", "jsonschema", "genai_prices"]
    code = f"import sys, guildhall; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.req("DO-11", "DO-12")
def test_a_run_returns_output_messages_usage_and_cost(scribe: Worker, project: Path) -> None:
    result = scribe.run("write it", mode="approve_all")
    assert result.is_completed
    assert (result.status, result.output, result.error, list(result.asks)) == ("completed", "all done", None, [])
    assert result.run.startswith("r-")
    assert [message["role"] for message in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert result.messages[1]["content"] == "write it"
    call = result.messages[2]["calls"][0]
    assert call["tool"] == "sandbox_write_text"
    assert result.messages[3]["id"] == call["id"]
    assert result.messages[3]["is_error"] is False
    assert result.usage.turns == 2
    assert result.usage.input_tokens > 200
    assert result.cost_usd == result.usage.cost_usd
    assert result.cost_usd is not None
    assert result.cost_usd > 0
    json.dumps(list(result.messages))
    assert (project / "notes" / "a.md").read_text() == "one"


@pytest.mark.req("DO-12")
def test_a_run_can_be_awaited(scribe: Worker) -> None:
    assert asyncio.run(scribe.arun("write it", mode="approve_all")).output == "all done"


@pytest.mark.req("MTG-15")
def test_events_are_streamed(scribe: Worker) -> None:
    async def collect_events() -> list[Event]:
        return [event async for event in scribe.stream("write it", mode="approve_all")]

    events = asyncio.run(collect_events())
    types = [event.type for event in events]
    assert types[0] == "run_started"
    assert types[-1] == "run_ended"
    kinds = [kind for index, kind in enumerate(types[1:-1], 1) if kind != types[index - 1]]
    assert kinds == ["text_delta", "turn_end", "tool_use", "tool_result", "text_delta", "turn_end"]
    use = next(event.data for event in events if event.type == "tool_use")
    result = next(event.data for event in events if event.type == "tool_result")
    assert use["id"] == result["id"]
    assert "".join(event.data["text"] for event in events if event.type == "text_delta") == "I write.all done"
    assert len({event.run for event in events}) == 1
    json.dumps([event.as_dict() for event in events])


def test_a_failure_is_an_event_and_a_result(scribe: Worker, project: Path) -> None:
    put_script(project, {"fail": 400})

    async def collect_events() -> list[Event]:
        return [event async for event in scribe.stream("write it")]

    events = asyncio.run(collect_events())
    assert [event.type for event in events] == ["run_started", "error", "run_ended"]
    assert events[1].data["code"] == "model_failed"
    result = scribe.run("write it")
    assert not result.is_completed
    assert (result.status, result.output) == ("failed", None)
    assert result.error is not None
    assert result.error["code"] == "model_failed"


def test_leaving_the_stream_pauses_the_run(scribe: Worker) -> None:
    async def read_run_id() -> str:
        stream = scribe.stream("write it", mode="approve_all")
        try:
            async for event in stream:
                return event.run
        finally:
            await stream.aclose()
        raise AssertionError

    run = asyncio.run(read_run_id())
    assert asyncio.run(scribe.result(run)).status == "paused"
    assert scribe.resume(run).output == "all done"


@pytest.mark.req("DO-6")
@pytest.mark.parametrize("answer", ["yes", "always", True, Answer(choice="yes", note="fine")])
def test_an_approver_can_approve(scribe: Worker, project: Path, answer: Any) -> None:
    seen: list[Mapping[str, Any]] = []

    def approver(ask: Mapping[str, Any]) -> Any:
        seen.append(ask)
        return answer

    assert scribe.run("write it", approver=approver).output == "all done"
    assert [ask["kind"] for ask in seen] == ["approval"]
    assert "content: one" in seen[0]["body"]
    assert (project / "notes" / "a.md").exists()


@pytest.mark.parametrize("answer", ["no", False, Answer(choice="no", note="not today")])
def test_an_approver_can_deny_and_be_asynchronous(scribe: Worker, project: Path, answer: Any) -> None:
    async def approver(ask: Mapping[str, Any]) -> Any:
        await asyncio.sleep(0.1)
        return answer

    result = scribe.run("write it", approver=approver)
    assert result.output == "all done"
    assert result.messages[3]["is_error"] is True
    assert "The user denied this call." in result.messages[3]["content"]
    assert ("not today" in result.messages[3]["content"]) == isinstance(answer, Answer)
    assert not (project / "notes" / "a.md").exists()


@pytest.mark.parametrize("answer", ["perhaps", None, 5, Answer(choice="maybe"), Answer(choice="no", note="\ud800")])
def test_an_invalid_answer_of_an_approver_pauses_the_run(scribe: Worker, project: Path, answer: Any) -> None:
    runs: list[str] = []

    def approver(ask: Mapping[str, Any]) -> Any:
        runs.append(ask["run"])
        return answer

    with pytest.raises(UsageError):
        scribe.run("write it", approver=approver)
    assert asyncio.run(scribe.result(runs[0])).status == "paused"
    assert scribe.resume(runs[0], approver=lambda ask: "yes").output == "all done"
    assert (project / "notes" / "a.md").exists()


def test_an_exception_of_an_approver_is_raised(scribe: Worker) -> None:
    def approver(ask: Mapping[str, Any]) -> str:
        raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError):
        scribe.run("write it", approver=approver)


@pytest.mark.req("X-5")
def test_a_run_without_an_approver_waits_and_is_answered_later(scribe: Worker, project: Path) -> None:
    waiting = scribe.run("write it")
    assert waiting.status == "waiting"
    assert [ask["status"] for ask in waiting.asks] == ["open"]
    scribe.answer(waiting.asks[0]["ask"], "yes", note="go ahead")
    result = Worker.load("scribe").resume(waiting.run)
    assert result.output == "all done"
    assert (project / "notes" / "a.md").exists()
    with pytest.raises(Conflict, match="already answered"):
        scribe.answer(waiting.asks[0]["ask"], "no")
    with pytest.raises(NotFound):
        scribe.answer("a-2222222222", "yes")
    with pytest.raises(Conflict, match="cannot resume"):
        scribe.resume(waiting.run)
    with pytest.raises(NotFound):
        scribe.resume("r-2222222222")


EXAMPLE = """
from guildhall import RunResult, Worker

worker = Worker.load("reviewer")
result: RunResult = worker.run({"file": "a.py"}, max_turns=3, mode="strict", attachments=["a.md"], budget=0.5)
resumed: RunResult = worker.resume(result.run, max_tokens=5, approver=lambda ask: ask["kind"] == "approval")
called: RunResult = worker.delegate_to("helper", "go", model="test:x", max_budget_usd=None)
"""
WRONG_LINES = (
    'worker.run("go", max_turn=3)',
    'worker.run("go", mode="stirct")',
    'worker.run("go", max_turns="3")',
    'worker.resume("r", model="test:x")',
    'worker.delegate_to("helper", "go", call=1)',
)


def test_a_type_checker_finds_wrong_options(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(EXAMPLE + "\n".join(WRONG_LINES) + "\n")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(file)]
    checked = json.loads(subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout)
    lines = file.read_text().splitlines()
    found = {lines[one["range"]["start"]["line"]] for one in checked["generalDiagnostics"]}
    assert found == set(WRONG_LINES)


@pytest.mark.req("WKR-19")
def test_limits_are_arguments(scribe: Worker) -> None:
    limited = scribe.run("write it", mode="approve_all", max_turns=1)
    assert limited.error is not None
    assert limited.error["code"] == "limit_reached"
    assert scribe.resume(limited.run, max_turns=5).output == "all done"
    poor = scribe.run("write it", mode="approve_all", max_budget_usd=0.000001)
    assert poor.error is not None
    assert poor.error["message"].startswith("max_budget_usd")
    assert scribe.run("write it", mode="approve_all", budget=0.000001).status == "waiting"
    assert scribe.run("write it", mode="strict").messages[3]["is_error"] is True


def test_the_model_is_an_argument(project: Path) -> None:
    put_worker(project, model="script:answers.yaml")
    put_script(project, DONE)
    (project / "other.yaml").write_text(json.dumps({"workers": {"*": [[{"say": "other"}]]}}))
    (project / "guildhall.yaml").unlink()
    worker = Worker.load("scribe")
    assert worker.run("x", model="script:other.yaml").output == "done"
    assert worker.run("x", override_model="script:other.yaml").output == "other"


# Toolboxes


@pytest.mark.req("WKR-6", "DO-12")
def test_a_toolbox_object_provides_tools(project: Path) -> None:
    sent: list[tuple[str, int]] = []

    @tool(capabilities={"net"})
    def send(to: str, copies: int = 1) -> str:
        """Send a letter."""
        sent.append((to, copies))
        return f"sent to {to}"

    @tool
    async def fetch(name: str) -> dict[str, str]:
        """Fetch a letter."""
        await asyncio.sleep(0)
        return {"name": name}

    @tool
    def broken() -> str:
        """Break."""
        raise ValueError("it broke")

    put_worker(project, toolboxes=["mail"], sandboxes=None, tool_rules={"net": {"approval_required": True}})
    calls = [
        {"call": "send", "with": {"to": "ada", "copies": 2}},
        {"call": "fetch", "with": {"name": "x"}},
        {"call": "broken"},
        {"call": "send", "with": {"to": 5}},
    ]
    put_script(project, {"calls": calls}, DONE)
    worker = Worker.load("scribe", toolboxes=[Toolbox("mail", send, fetch, broken)])
    result = worker.run("go", approver=lambda ask: True)
    assert result.is_completed
    assert sent == [("ada", 2)]
    answers = [message["content"] for message in result.messages if message["role"] == "tool"]
    assert answers[:3] == ["sent to ada", '{"name":"x"}', "ValueError: it broke"]
    assert "to:" in answers[3]


@pytest.mark.req("WKR-13")
def test_a_missing_toolbox_object_is_reported(project: Path) -> None:
    put_worker(project, toolboxes=["mail"])
    put_script(project, DONE)
    with pytest.raises(ToolUnavailable, match="unknown toolbox 'mail'"):
        Worker.load("scribe").run("go")
    with pytest.raises(ToolUnavailable, match="unknown toolbox 'mail'") as raised:
        Worker.load("scribe", toolboxes=[Toolbox("male")]).run("go")
    assert raised.value.hint == "Did you mean 'male'?"


def test_two_tools_with_the_same_name_are_refused(project: Path) -> None:
    @tool
    def memory_write() -> str:
        """Another one."""
        return ""

    put_worker(project, toolboxes=["mail"])
    put_script(project, DONE)
    with pytest.raises(ToolUnavailable, match="two tools are named 'memory_write'"):
        Worker.load("scribe", toolboxes=[Toolbox("mail", memory_write)]).run("go")


def test_a_tool_cannot_be_named_final_result(project: Path) -> None:
    @tool
    def final_result() -> str:
        """Not the result."""
        return ""

    (project / "schema.json").write_text('{"type": "object"}')
    put_worker(project, toolboxes=["mail"], output_schema_ref="schema.json")
    put_script(project, DONE)
    with pytest.raises(ToolUnavailable, match="final_result"):
        Worker.load("scribe", toolboxes=[Toolbox("mail", final_result)]).run("go")


# Errors


def test_a_blocking_call_inside_a_running_loop_is_refused(scribe: Worker) -> None:
    async def inside() -> None:
        for verb in (scribe.run, scribe.resume):
            with pytest.raises(UsageError, match="an event loop is running"):
                verb("x")
        with pytest.raises(UsageError, match="an event loop is running"):
            scribe.answer("a-2222222222", "yes")

    asyncio.run(inside())


@pytest.mark.parametrize("input", [None, 5, b"bytes", "\ud800", "a\0b"])
def test_an_input_that_is_not_text_is_refused(scribe: Worker, input: Any) -> None:
    with pytest.raises(UsageError, match="invalid input: not text"):
        scribe.run(input)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("scirbe", NotFound),
        ("", GuildError),
        ("\0", GuildError),
        ("../scribe", GuildError),
        ("x" * 5000, GuildError),
        ("\ud800", GuildError),
        ("nowhere/scribe.yaml", NotFound),
    ],
)
def test_loading_an_unknown_worker_fails(scribe: Worker, name: str, error: type[GuildError]) -> None:
    with pytest.raises(error):
        Worker.load(name)


@pytest.mark.req("DO-1")
def test_loading_an_invalid_file_reports_the_line(scribe: Worker, project: Path) -> None:
    (project / "workers" / "scribe.yaml").write_text("name: scribe\ninstructions: x\ntoolz: []\n")
    with pytest.raises(InvalidFile, match="toolz") as raised:
        Worker.load("scribe")
    assert (raised.value.where or "").endswith("scribe.yaml:3")


def test_a_worker_can_be_loaded_by_file_with_another_home(scribe: Worker, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other home"
    worker = Worker.load(project / "workers" / "scribe.yaml", cwd=project, home=other)
    assert worker.run("go", mode="strict").is_completed
    assert (other / "hall.db").exists()
    assert worker.definition()["name"] == "scribe"


def test_parallel_runs_of_a_program_share_a_hall(scribe: Worker) -> None:
    async def both() -> list[str]:
        results = await asyncio.gather(*(scribe.arun(text, mode="strict") for text in ("one", "two", "three")))
        return [result.status for result in results]

    assert asyncio.run(both()) == ["completed"] * 3


def test_a_second_event_loop_of_a_program_is_refused(scribe: Worker) -> None:
    async def inside() -> None:
        stream = scribe.stream("one", mode="approve_all")
        async for _ in stream:
            with pytest.raises(HallUnavailable, match="another thread or event loop of this program"):
                await asyncio.to_thread(scribe.run, "two")
            break
        await stream.aclose()

    asyncio.run(inside())
    assert scribe.run("three", mode="strict").is_completed


def test_consecutive_runs_share_no_approval(scribe: Worker, project: Path) -> None:
    put_script(project, WRITE, OTHER, DONE)
    first = scribe.run("one", approver=lambda ask: "always")
    second = scribe.run("two")
    assert first.is_completed
    assert second.status == "waiting"  # `always` applies to one run


# Typed results, and code that must be trusted


class Report(BaseModel):
    score: int
    on: date | None = None


class Typed(TypedDict):
    score: int


@dataclass
class Plain:
    score: int


def run_with_output(project: Path, output: Any) -> RunResult:
    (project / "report.json").write_text('{"type": "object"}')
    put_worker(project, output_schema_ref="report.json", sandboxes=None, tool_rules=None)
    put_script(project, {"output": output})
    return Worker.load("scribe").run("go")


@pytest.mark.req("DO-10", "DO-11")
def test_an_output_can_be_converted_to_a_type(project: Path) -> None:
    result = run_with_output(project, {"score": 7, "on": "2026-02-03"})
    assert result.output == {"score": 7, "on": "2026-02-03"}, "plain JSON by default"
    assert result.output_as(Report) == Report(score=7, on=date(2026, 2, 3))
    assert result.output_as(Plain) == Plain(7)
    assert result.output_as(Typed)["score"] == 7
    assert result.output_as(dict[str, Any]) == result.output


def test_an_output_that_does_not_match_the_type_is_reported(project: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid Report: score: Input should be a valid integer"):
        run_with_output(project, {"score": "many"}).output_as(Report)


def test_a_missing_output_cannot_be_converted(scribe: Worker) -> None:
    waiting = scribe.run("write it")
    with pytest.raises(Conflict, match="is waiting and has no output"):
        waiting.output_as(Report)


@pytest.mark.req("X-18")
def test_a_program_cannot_run_untrusted_code(project: Path) -> None:
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "mail.py").write_text("1 / 0\n")
    put_worker(project, toolboxes=["mail"], sandboxes=None, tool_rules=None)
    put_script(project, DONE)
    with pytest.raises(NotTrusted, match=r"toolboxes/mail\.py \(not trusted yet\)"):
        Worker.load("scribe").run("go")
    mail = Toolbox("mail", tool(name="hello")(_hello))
    assert Worker.load("scribe", toolboxes=[mail]).run("go").is_completed, "a toolbox object needs no trust"


def _hello() -> str:
    """Says hello."""
    return "hello"


# delegation


@pytest.mark.req("DO-12", "DO-7")
def test_a_worker_delegates_without_its_model(project: Path) -> None:
    put_tree(project)
    boss = Worker.load("boss")
    result = boss.delegate_to("hand", "write one")
    assert (result.status, result.output) == ("completed", "one is written")
    assert result.usage.turns == 2  # of the called worker only
    assert list_notes(project) == ["a.md"]
    again = asyncio.run(boss.adelegate_to(Worker.load("hand"), {"write": ["one"]}))
    assert again.output == "one is written"
    assert again.run != result.run


@pytest.mark.req("DO-12")
def test_a_delegation_accepts_and_returns_an_object(project: Path) -> None:
    put_boss(project)
    put_worker(project, "hand", output_schema_ref="schema.json")
    (project / "schema.json").write_text('{"type": "object", "properties": {"sum": {"type": "integer"}}}')
    put_answers(project, hand=[[{"expect": '"add"', "output": {"sum": 3}}]])
    assert Worker.load("boss").delegate_to("hand", {"add": [1, 2]}).output == {"sum": 3}


@pytest.mark.req("DO-12", "DO-6")
def test_a_delegated_run_can_ask(project: Path) -> None:
    put_tree(project, asking=True)
    boss = Worker.load("boss")
    waiting = boss.delegate_to("hand", "write one")
    assert (waiting.status, len(waiting.asks), waiting.output) == ("waiting", 1, None)
    assert waiting.asks[0]["root"] == waiting.run
    boss.answer(waiting.asks[0]["ask"], "yes")
    done = boss.resume(waiting.run)
    assert (done.output, list_notes(project)) == ("one is written", ["a.md"])
    heard: list[str] = []

    def approver(ask: Mapping[str, Any]) -> str:
        heard.append(ask["title"])
        return "no"

    assert boss.delegate_to("hand", "write one", approver=approver).is_completed
    assert heard == ["hand wants to call sandbox_write_text"]


@pytest.mark.parametrize(
    ("allowed", "name", "code", "message"),
    [
        (["hand"], "hnad", "runtime_failed", "calling 'hnad' is not allowed"),
        (["gone"], "gone", "runtime_failed", "unknown worker 'gone'"),
        ([], "hand", "refused", "the calling worker has no tool"),
    ],
)
def test_a_delegation_that_is_not_permitted_is_a_result(
    project: Path, allowed: list[str], name: str, code: str, message: str
) -> None:
    put_tree(project, allow_workers=allowed)
    result = Worker.load("boss").delegate_to(name, "write one")
    assert (result.status, result.output) == ("failed", None)
    assert result.error is not None
    assert result.error["code"] == code
    assert message in result.error["message"]
    assert not (project / "notes").exists()


def test_a_delegation_that_fails_is_a_result(project: Path) -> None:
    put_tree(project)
    put_answers(project, hand=[[{"fail": 400}]])
    result = Worker.load("boss").delegate_to("hand", "write one")
    assert result.status == "failed"
    assert result.error is not None
    assert "The worker hand did not finish" in result.error["message"]


def test_a_delegation_does_not_block_a_running_loop(project: Path) -> None:
    put_tree(project)
    boss = Worker.load("boss")

    async def inside() -> None:
        boss.delegate_to("hand", "write one")

    with pytest.raises(UsageError, match="an event loop is running"):
        asyncio.run(inside())


def test_toolbox_objects_are_passed_to_called_workers(project: Path) -> None:
    heard: list[str] = []

    @tool(capabilities={"net"})
    def ring(bell: str) -> str:
        """Ring a bell."""
        heard.append(bell)
        return "rung"

    put_boss(project)
    put_worker(project, "hand", sandboxes=None, tool_rules=None, toolboxes=["bells"])
    hand = [{"call": "ring", "with": {"bell": "door"}}, DONE]
    put_answers(project, boss=[[call("hand"), DONE]], hand=[hand])
    boss = Worker.load("boss", toolboxes=[Toolbox("bells", ring)])
    result = boss.run("ring")
    assert result.is_completed
    assert heard == ["door"]
    assert result.usage.turns == 4


def test_the_result_of_a_delegation_is_that_of_the_root_run(project: Path) -> None:
    put_tree(project, asking=True)
    boss = Worker.load("boss")
    asking_runs: list[str] = []

    async def approver(ask: Mapping[str, Any]) -> bool:
        asking_runs.append(ask["run"])
        return True

    result = boss.run("go", approver=approver)
    assert (result.output, len(set(asking_runs))) == ("both are written", 2)
    assert result.usage.turns == 6
    assert result.run not in asking_runs


# invalid limits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("budget", float("inf")),
        ("budget", float("nan")),
        ("budget", -1),
        ("budget", "5"),
        ("max_budget_usd", float("nan")),
        ("max_budget_usd", 0),
        ("max_turns", 0),
        ("max_turns", -3),
        ("max_turns", "5"),
        ("max_turns", True),
        ("max_tokens", 1.5),
    ],
)
def test_an_invalid_limit_is_refused_and_starts_no_run(scribe: Worker, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}: "):
        scribe.run("write it", **{name: value})
    hall = Hall(scribe.home, environ={}, readonly=True)
    assert hall.history.recent() == []
    hall.release()
