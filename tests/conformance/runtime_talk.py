"""Conversations with a runtime: it goes on with what is said, and with all that was said before. See
runtime_conformance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.testing.scripted_server import ScriptedServer
from tests.conformance.bench import TASK, WORKER, write
from tests.conformance.runtime_shown import answered_in, said_to
from tests.conformance.shelf_checks import same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.core.events import Event
    from tests.conformance.bench import Bench
    from tests.conformance.table import Table

_ANSWERS = ({"say": "I listen."}, {"say": "I write."} | write("a.md"), {"say": "Written."}, {"say": "/bye"})
_SECOND, _THIRD = "Write it down.\n", "/clear"  # as a command of the program's own looks
_TOLD = ("tool_use", "tool_result", "turn_end", "error", "listening")  # of a turn, all but pieces of text


async def a_conversation_is_shown_to_the_model_whole(bench: Bench) -> None:
    """While somebody stays: each turn is told once, and the provider gets all of it, in order."""
    bench.put(*_ANSWERS, model=bench.real_model)
    with ScriptedServer(bench.script) as server:
        url = server.anthropic_url if bench.provider == "anthropic" else server.openai_url
        name, key = bench.provider.upper(), f"script-{WORKER}"
        async with bench.table({f"{name}_BASE_URL": url, f"{name}_API_KEY": key}, held=True) as table:
            _is_told(await table.begin(WORKER, TASK), ["turn_end", "listening"])
            told = await table.say(_SECOND)
            _is_told(told, ["turn_end", "tool_use", "tool_result", "turn_end", "listening"])
            use, result = (event for event in told if event.type in ("tool_use", "tool_result"))
            same(result.data["id"], use.data["id"], "the call that a result belongs to")
            same(_text(told), "I write.Written.", "the text that is told")
            _is_told(await table.say(_THIRD), ["turn_end", "listening"])
            _is_whole(bench, table)
    same([exchange.answered for exchange in server.requests], [True] * 4, "the requests that the provider got")
    last = server.requests[-1].body or {}
    same([said.strip() for said in said_to(last)], [TASK, _SECOND.strip(), _THIRD], "what the person is shown to say")
    same(answered_in(last), ["I listen.", "I write.", "Written."], "what the model is shown that it said")


async def a_conversation_goes_on_in_another_hall(bench: Bench) -> None:
    """While nobody stays it is put away; the next hall walks through all of it, and it goes on from there."""
    bench.put(*_ANSWERS)
    async with bench.table() as table:
        await table.begin(WORKER, TASK)
        same((table.state.status, table.state.reason), ("waiting", "person"), "how it stands")
        run = table.run
    async with bench.table(held=True) as table:
        told = await table.say(_SECOND, run)
        _is_told(told, ["turn_end", "tool_use", "tool_result", "turn_end", "listening"])
        _is_told(await table.say(_THIRD), ["turn_end", "listening"])
        _is_whole(bench, table)
        await table.conclude("over")
        same((table.state.status, table.state.output), ("completed", "over"), "how it ended")
        same(await table.is_replayed(), True, "whether it is the same when it is played again")


def _is_whole(bench: Bench, table: Table) -> None:
    same(table.state.error, None, "what went wrong")
    same(bench.notes, {"a.md": "x"}, "what was written")
    kinds = ("model_answered", "tool_started", "said")
    keys = [entry.key for entry in table.record(*kinds)]
    call = next((entry.key for entry in table.record("tool_started")), None)
    same(keys, ["m1", "u1", "m2", call, "m3", "u2", "m4"], "the record, in order")
    same([entry.data.words for entry in table.record("said")], [_SECOND, _THIRD], "what was said")


def _is_told(events: Sequence[Event], expected: list[str]) -> None:
    same([event.type for event in events if event.type in _TOLD], expected, "what is told of a turn")


def _text(events: Sequence[Event]) -> str:
    return "".join(event.data["text"] for event in events if event.type == "text_delta")
