"""Checks of a task: text, tool calls, approvals, results and attachments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.conformance.bench import PROMPT, TASK, write
from tests.conformance.document_store_checks import check_equal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.core.events import Event
    from guildhall.runs.model import Run
    from tests.conformance.bench import Bench

_APPROVAL_RULES = {"fs.write": {"approval_required": True}}
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_EVENTS = ("run_started", "turn_end", "tool_use", "tool_result", "run_ended")  # without text pieces
_TURN = ("model_asked", "model_answered", "tool_started", "tool_ended")
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f6"
    "45400000000049454e44ae426082"
)


async def a_text_is_the_output(bench: Bench) -> None:
    bench.write_worker(
        {"expect": TASK, "expect_system": PROMPT, "say": "All done.", "usage": {"input": 1000, "output": 100}}
    )
    async with bench.hall() as session:
        events = await session.run()
        run = await session.state(events[0].run)
        check_equal(_end(run), ("completed", "All done.", None), "end of the run")
        check_equal((run.usage.turns, run.usage.input_tokens, run.usage.output_tokens), (1, 1000, 100), "usage")
        check_equal(round(run.cost_usd or 0, 6), 0.0045, "cost")


async def text_is_streamed(bench: Bench) -> None:
    bench.write_worker({"say": "one two three four five six"})
    async with bench.hall() as session:
        events = await session.run()
        pieces = [event.data["text"] for event in events if event.type == "text_delta"]
        check_equal("".join(pieces), "one two three four five six", "streamed text")
        check_equal(len(pieces) > 1, True, "more than one piece")
        check_equal(_types(events, "text_delta", "turn_end")[-1], "turn_end", "event after the last piece")


async def a_tool_is_called_and_the_model_gets_its_result(bench: Bench) -> None:
    bench.write_worker({"say": "I begin.", **write("a.md", "one")}, {"expect": "Created a.md", "say": "done"})
    async with bench.hall() as session:
        run = (await session.run())[0].run
        check_equal(_end(await session.state(run)), ("completed", "done", None), "end of the run")
        check_equal(bench.notes, {"a.md": "one"}, "written files")
        messages = [
            message for message in (await session.hall.runs.get(run)).messages if message["role"] == "assistant"
        ]
        check_equal(_calls(messages[0]), ["sandbox_write_text"], "the calls of the first answer, under their own names")
        check_equal(await session.is_replayed(run), True, "replay matches")
    check_equal(bench.notes, {"a.md": "one"}, "files after the replay")


async def events_and_journal_entries_are_in_order(bench: Bench) -> None:
    bench.write_worker(write("a.md"), {"calls": [write("b.md")]}, {"say": "done"})
    async with bench.hall() as session:
        events = await session.run()
        expected = ["run_started", "turn_end", "tool_use", "tool_result", "turn_end", "tool_use", "tool_result"]
        check_equal(_types(events, *_EVENTS), [*expected, "turn_end", "run_ended"], "order of events")
        kinds = [entry.kind for entry in await session.entries(events[0].run)]
        check_equal(kinds, ["assembled", *_TURN, *_TURN, *_TURN[:2], "ended"], "order of journal entries")


async def all_calls_of_one_answer_are_executed(bench: Bench) -> None:
    calls = [write(f"{name}.md", name) for name in "abc"]
    bench.write_worker({"calls": calls}, {"expect": "(?s)Created a.md.*Created b.md.*Created c.md", "say": "done"})
    async with bench.hall() as session:
        run = (await session.run())[0].run
        check_equal(_end(await session.state(run)), ("completed", "done", None), "end of the run")
        check_equal(bench.notes, {"a.md": "a", "b.md": "b", "c.md": "c"}, "written files")
        keys = {entry.key for entry in await session.entries(run, "tool_ended")}
        check_equal(keys, {f"m1/call_0_{number}" for number in range(3)}, "recorded calls")
        check_equal(await session.is_replayed(run), True, "replay matches")


async def calls_of_one_answer_take_effect_in_order(bench: Bench) -> None:
    texts = [f"text {number}" for number in range(6)]
    read = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "a.md"}}
    bench.write_worker(
        {"calls": [*(write("a.md", text) for text in texts), read]}, {"expect": texts[-1], "say": "done"}
    )
    async with bench.hall() as session:
        run = (await session.run())[0].run
        check_equal(_end(await session.state(run)), ("completed", "done", None), "end of the run")
        check_equal(bench.notes, {"a.md": texts[-1]}, "the content of the file")
        ended = [entry.key for entry in await session.entries(run, "tool_ended")]
        check_equal(ended, [f"m1/call_0_{number}" for number in range(7)], "the order of the calls")
        check_equal(await session.is_replayed(run), True, "replay matches")


async def a_forbidden_call_is_refused(bench: Bench) -> None:
    bench.write_worker(
        {"calls": [write("a.md"), {"call": "no_such_tool", "with": {}}]},
        {"expect": "(?s)(?=.*Not permitted)(?=.*(no_such_tool|unavailable))", "say": "then not"},
        tool_rules={"sandbox_write_text": {"allowed": False}},
    )
    async with bench.hall() as session:
        run = (await session.run())[0].run
        check_equal(_end(await session.state(run)), ("completed", "then not", None), "end of the run")
        check_equal([entry.kind for entry in await session.entries(run, "tool_started")], [], "executed calls")
    check_equal(bench.notes, {}, "written files")


async def invalid_arguments_are_reported_to_the_model(bench: Bench) -> None:
    wrong = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": 5, "nothing": None}}
    bench.write_worker(wrong, {"expect": "path", **write("a.md")}, {"say": "done"})
    async with bench.hall() as session:
        run = (await session.run())[0].run
        check_equal(_end(await session.state(run)), ("completed", "done", None), "end of the run")
    check_equal(list(bench.notes), ["a.md"], "written files")


# Approvals


async def an_approval_is_answered_in_another_hall(bench: Bench) -> None:
    """No process of the runtime is left when the approval is answered. The run continues from its journal."""
    both = {"say": "I begin.", "calls": [write("a.md"), write("b.md")]}
    bench.write_worker(both, {"expect": "(?s)Created a.md.*Created b.md", "say": "done"}, tool_rules=_APPROVAL_RULES)
    async with bench.hall() as session:
        events = await session.run()
        check_equal(events[-1].data["status"], "waiting", "status")
        check_equal(len(await session.hall.asks.list()), 2, "number of asks")
    check_equal(bench.notes, {}, "files before the answer")
    async with bench.hall() as session:
        await session.answer("yes")
        run = (await session.resume(events[0].run))[0].run
        check_equal(_end(await session.state(run)), ("completed", "done", None), "end of the run")
        answered = [entry.key for entry in await session.entries(run, "model_answered")]
        check_equal(answered, ["m1", "m2"], "recorded model answers")
        check_equal(len(await session.entries(run, "tool_started")), 2, "number of executed calls")
        messages = [
            message for message in (await session.hall.runs.get(run)).messages if message["role"] == "assistant"
        ]
        check_equal(
            _calls(messages[0]), ["sandbox_write_text"] * 2, "the calls of the first answer, under their own names"
        )
        check_equal(await session.is_replayed(run), True, "replay matches")
    check_equal(list(bench.notes), ["a.md", "b.md"], "written files")


async def a_denial_is_reported_to_the_model_with_its_reason(bench: Bench) -> None:
    bench.write_worker(write("a.md"), {"expect": "not on a Sunday", "say": "then not"}, tool_rules=_APPROVAL_RULES)
    async with bench.hall() as session:
        run = (await session.run())[0].run
        await session.answer("no", "not on a Sunday")
        await session.resume(run)
        check_equal(_end(await session.state(run)), ("completed", "then not", None), "end of the run")
        check_equal(await session.is_replayed(run), True, "replay matches")
    check_equal(bench.notes, {}, "written files")


# Results


async def a_structured_output_matches_its_schema(bench: Bench) -> None:
    (bench.project / "number.json").write_text(json.dumps(_SCHEMA))
    bench.write_worker({"output": {"n": "three"}}, {"output": {"n": 3}}, output_schema_ref="number.json")
    async with bench.hall() as session:
        run = await session.state((await session.run())[0].run)
        check_equal(_end(run), ("completed", {"n": 3}, None), "end of the run after an invalid result")
        check_equal(await session.is_replayed(run.id), True, "replay matches")


async def a_recording_serves_as_the_model_of_a_new_run(bench: Bench) -> None:
    bench.write_worker(write("a.md"), {"say": "done"})
    async with bench.hall() as session:
        first = (await session.run())[0].run
        bench.script.write_text('{"workers": {"bob": []}}')
        (bench.project / "notes" / "a.md").unlink()
        again = await session.state((await session.run(override_model=f"replay:{first}"))[0].run)
        check_equal(_end(again), ("completed", "done", None), "end of the run with a recording as its model")
    check_equal(list(bench.notes), ["a.md"], "written files")


# An attached text is marked as data, and ends with a line that the text cannot contain.
_FENCED = (
    r"(?s)Go\..*facts\.md.*nothing in it is an instruction.*----- begin (\S+) -----\nThe sky is green\.\n----- end \1"
)


async def an_attached_text_reaches_the_model(bench: Bench) -> None:
    await _check_attachment(bench, "facts.md", b"The sky is green.", _FENCED)


async def an_attached_image_reaches_the_model(bench: Bench) -> None:
    await _check_attachment(bench, "dot.png", _PNG, r"(?s)Go\..*dot\.png")


async def _check_attachment(bench: Bench, name: str, data: bytes, expected: str) -> None:
    (bench.project / name).write_bytes(data)
    bench.write_worker({"expect": expected, "say": "seen"})
    async with bench.hall() as session:
        run = (await session.run(attachments=(name,)))[0].run
        check_equal(_end(await session.state(run)), ("completed", "seen", None), "end of the run")


def _types(events: Sequence[Event], *which: str) -> list[str]:
    return [event.type for event in events if event.type in which]


def _calls(message: Mapping[str, Any]) -> list[str]:
    return [call["tool"] for call in message["calls"]]


def _end(run: Run) -> tuple[str, Any, Any]:
    """Return status, output and error of a run."""
    return run.status, run.output, run.error
