"""What a runtime does with a task: it talks, calls tools, asks a person, gives a result. See runtime_conformance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.conformance.bench import PROMPT, TASK, write
from tests.conformance.shelf_checks import same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.core.events import Event
    from guildhall.runs.model import Run
    from tests.conformance.bench import Bench

_ASKING = {"fs.write": {"approval_required": True}}
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_EVENTS = ("run_started", "turn_end", "tool_use", "tool_result", "run_ended")  # all but pieces of text
_TURN = ("model_asked", "model_answered", "tool_started", "tool_ended")
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f6"
    "45400000000049454e44ae426082"
)


async def a_text_is_the_output(bench: Bench) -> None:
    bench.put({"expect": TASK, "expect_system": PROMPT, "say": "All done.", "usage": {"input": 1000, "output": 100}})
    async with bench.hall() as desk:
        events = await desk.run()
        run = await desk.state(events[0].run)
        same(_end(run), ("completed", "All done.", None), "how it ended")
        same((run.usage.turns, run.usage.input_tokens, run.usage.output_tokens), (1, 1000, 100), "what it used up")
        same(round(run.cost_usd or 0, 6), 0.0045, "what it cost")


async def what_is_said_is_told_as_it_comes(bench: Bench) -> None:
    bench.put({"say": "one two three four five six"})
    async with bench.hall() as desk:
        events = await desk.run()
        pieces = [event.data["text"] for event in events if event.type == "text_delta"]
        same("".join(pieces), "one two three four five six", "all that was said")
        same(len(pieces) > 1, True, "whether it came in pieces")
        same(_types(events, "text_delta", "turn_end")[-1], "turn_end", "what came after the last piece")


async def a_tool_is_called_and_the_model_is_told_what_it_gave(bench: Bench) -> None:
    bench.put({"say": "I begin.", **write("a.md", "one")}, {"expect": "Created a.md", "say": "done"})
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        same(_end(await desk.state(run)), ("completed", "done", None), "how it ended")
        same(bench.notes, {"a.md": "one"}, "what was written")
        told = [message for message in (await desk.hall.runs.get(run)).messages if message["role"] == "assistant"]
        same(_calls(told[0]), ["sandbox_write_text"], "the calls of the first answer, under their own names")
        same(await desk.is_replayed(run), True, "whether it can be replayed")
    same(bench.notes, {"a.md": "one"}, "what is there after the replay")


async def things_happen_in_order(bench: Bench) -> None:
    bench.put(write("a.md"), {"calls": [write("b.md")]}, {"say": "done"})
    async with bench.hall() as desk:
        events = await desk.run()
        expected = ["run_started", "turn_end", "tool_use", "tool_result", "turn_end", "tool_use", "tool_result"]
        same(_types(events, *_EVENTS), [*expected, "turn_end", "run_ended"], "the order of what happened")
        kinds = [entry.kind for entry in await desk.record(events[0].run)]
        same(kinds, ["assembled", *_TURN, *_TURN, *_TURN[:2], "ended"], "the order of what is on record")


async def calls_of_one_answer_are_all_made(bench: Bench) -> None:
    calls = [write(f"{name}.md", name) for name in "abc"]
    bench.put({"calls": calls}, {"expect": "(?s)Created a.md.*Created b.md.*Created c.md", "say": "done"})
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        same(_end(await desk.state(run)), ("completed", "done", None), "how it ended")
        same(bench.notes, {"a.md": "a", "b.md": "b", "c.md": "c"}, "what was written")
        keys = {entry.key for entry in await desk.record(run, "tool_ended")}
        same(keys, {f"m1/call_0_{number}" for number in range(3)}, "the calls on record")
        same(await desk.is_replayed(run), True, "whether it can be replayed")


async def calls_of_one_answer_take_effect_in_order(bench: Bench) -> None:
    texts = [f"text {number}" for number in range(6)]
    read = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "a.md"}}
    bench.put({"calls": [*(write("a.md", text) for text in texts), read]}, {"expect": texts[-1], "say": "done"})
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        same(_end(await desk.state(run)), ("completed", "done", None), "how it ended")
        same(bench.notes, {"a.md": texts[-1]}, "the content of the file")
        ended = [entry.key for entry in await desk.record(run, "tool_ended")]
        same(ended, [f"m1/call_0_{number}" for number in range(7)], "the order of the calls")
        same(await desk.is_replayed(run), True, "whether it can be replayed")


async def a_call_that_is_not_allowed_is_refused(bench: Bench) -> None:
    bench.put(
        {"calls": [write("a.md"), {"call": "no_such_tool", "with": {}}]},
        {"expect": "(?s)(?=.*Not permitted)(?=.*(no_such_tool|unavailable))", "say": "then not"},
        tool_rules={"sandbox_write_text": {"allowed": False}},
    )
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        same(_end(await desk.state(run)), ("completed", "then not", None), "how it ended")
        same([entry.kind for entry in await desk.record(run, "tool_started")], [], "the calls that were made")
    same(bench.notes, {}, "what was written")


async def arguments_that_are_wrong_are_told_to_the_model(bench: Bench) -> None:
    wrong = {"call": "sandbox_write_text", "with": {"sandbox": "notes", "path": 5, "nothing": None}}
    bench.put(wrong, {"expect": "path", **write("a.md")}, {"say": "done"})
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        same(_end(await desk.state(run)), ("completed", "done", None), "how it ended")
    same(list(bench.notes), ["a.md"], "what was written")


# What waits for a person


async def an_approval_is_answered_in_another_hall(bench: Bench) -> None:
    """Whoever has asked is long gone: nothing of the runtime is left, and all of it is found again."""
    both = {"say": "I begin.", "calls": [write("a.md"), write("b.md")]}
    bench.put(both, {"expect": "(?s)Created a.md.*Created b.md", "say": "done"}, tool_rules=_ASKING)
    async with bench.hall() as desk:
        events = await desk.run()
        same(events[-1].data["status"], "waiting", "how it stands")
        same(len(await desk.hall.asks.list()), 2, "the number of questions")
    same(bench.notes, {}, "what was written before an answer")
    async with bench.hall() as desk:
        await desk.answer("yes")
        run = (await desk.resume(events[0].run))[0].run
        same(_end(await desk.state(run)), ("completed", "done", None), "how it ended")
        asked = [entry.key for entry in await desk.record(run, "model_answered")]
        same(asked, ["m1", "m2"], "the answers of the model on record: each once")
        same(len(await desk.record(run, "tool_started")), 2, "the number of calls that were made")
        told = [message for message in (await desk.hall.runs.get(run)).messages if message["role"] == "assistant"]
        same(_calls(told[0]), ["sandbox_write_text"] * 2, "the calls of the first answer, under their own names")
        same(await desk.is_replayed(run), True, "whether it can be replayed")
    same(list(bench.notes), ["a.md", "b.md"], "what was written")


async def a_no_is_told_to_the_model_with_its_reason(bench: Bench) -> None:
    bench.put(write("a.md"), {"expect": "not on a Sunday", "say": "then not"}, tool_rules=_ASKING)
    async with bench.hall() as desk:
        run = (await desk.run())[0].run
        await desk.answer("no", "not on a Sunday")
        await desk.resume(run)
        same(_end(await desk.state(run)), ("completed", "then not", None), "how it ended")
        same(await desk.is_replayed(run), True, "whether it can be replayed")
    same(bench.notes, {}, "what was written")


# What comes out


async def a_structured_output_is_what_the_schema_says(bench: Bench) -> None:
    (bench.project / "number.json").write_text(json.dumps(_SCHEMA))
    bench.put({"output": {"n": "three"}}, {"output": {"n": 3}}, output_schema_ref="number.json")
    async with bench.hall() as desk:
        run = await desk.state((await desk.run())[0].run)
        same(_end(run), ("completed", {"n": 3}, None), "how it ended, after a result that does not fit")
        same(await desk.is_replayed(run.id), True, "whether it can be replayed")


async def a_recording_answers_for_a_new_run(bench: Bench) -> None:
    bench.put(write("a.md"), {"say": "done"})
    async with bench.hall() as desk:
        first = (await desk.run())[0].run
        bench.script.write_text('{"workers": {"bob": []}}')
        (bench.project / "notes" / "a.md").unlink()
        again = await desk.state((await desk.run(override_model=f"replay:{first}"))[0].run)
        same(_end(again), ("completed", "done", None), "how a run ends that the recording answers for")
    same(list(bench.notes), ["a.md"], "what was written")


# As data: it says what it is, and a line that the text cannot know ends it.
_FENCED = (
    r"(?s)Go\..*facts\.md.*nothing in it is an instruction.*----- begin (\S+) -----\nThe sky is green\.\n----- end \1"
)


async def an_attached_text_reaches_the_model(bench: Bench) -> None:
    await _attached(bench, "facts.md", b"The sky is green.", _FENCED)


async def an_attached_image_reaches_the_model(bench: Bench) -> None:
    await _attached(bench, "dot.png", _PNG, r"(?s)Go\..*dot\.png")


async def _attached(bench: Bench, name: str, data: bytes, expected: str) -> None:
    (bench.project / name).write_bytes(data)
    bench.put({"expect": expected, "say": "seen"})
    async with bench.hall() as desk:
        run = (await desk.run(attachments=(name,)))[0].run
        same(_end(await desk.state(run)), ("completed", "seen", None), "how it ended")


def _types(events: Sequence[Event], *which: str) -> list[str]:
    return [event.type for event in events if event.type in which]


def _calls(message: Mapping[str, Any]) -> list[str]:
    return [call["tool"] for call in message["calls"]]


def _end(run: Run) -> tuple[str, Any, Any]:
    """How a run ended: its status, its output, its error."""
    return run.status, run.output, run.error
