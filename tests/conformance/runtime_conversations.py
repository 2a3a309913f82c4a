"""Checks of conversations: each turn is answered once, with the whole conversation as input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.testing.scripted_server import ScriptedServer
from tests.conformance.bench import TASK, WORKER, write
from tests.conformance.document_store_checks import check_equal
from tests.conformance.runtime_input import model_messages, user_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.core.events import Event
    from tests.conformance.bench import Bench
    from tests.conformance.conversation import Conversation

_ANSWERS = ({"say": "I listen."}, {"say": "I write."} | write("a.md"), {"say": "Written."}, {"say": "/bye"})
_SECOND, _THIRD = "Write it down.\n", "/clear"  # it looks like a command of the program
_TURN_EVENTS = ("tool_use", "tool_result", "turn_end", "error", "listening")  # events of a turn without text pieces


async def the_model_gets_the_whole_conversation(bench: Bench) -> None:
    """With the user attached, each turn is reported once, and the provider gets all turns in order."""
    bench.write_worker(*_ANSWERS, model=bench.real_model)
    with ScriptedServer(bench.script) as server:
        url = server.anthropic_url if bench.provider == "anthropic" else server.openai_url
        name, key = bench.provider.upper(), f"script-{WORKER}"
        async with bench.conversation({f"{name}_BASE_URL": url, f"{name}_API_KEY": key}, held=True) as conversation:
            _check_events(await conversation.start(WORKER, TASK), ["turn_end", "listening"])
            events = await conversation.send(_SECOND)
            _check_events(events, ["turn_end", "tool_use", "tool_result", "turn_end", "listening"])
            use, result = (event for event in events if event.type in ("tool_use", "tool_result"))
            check_equal(result.data["id"], use.data["id"], "the call that a result belongs to")
            check_equal(_text(events), "I write.Written.", "streamed text")
            _check_events(await conversation.send(_THIRD), ["turn_end", "listening"])
            _check_conversation(bench, conversation)
    check_equal([exchange.answered for exchange in server.requests], [True] * 4, "requests to the provider")
    last = server.requests[-1].body or {}
    check_equal(
        [text.strip() for text in user_messages(last)],
        [TASK, _SECOND.strip(), _THIRD],
        "user messages in the last request",
    )
    check_equal(model_messages(last), ["I listen.", "I write.", "Written."], "model messages in the last request")


async def a_conversation_is_resumed_in_another_hall(bench: Bench) -> None:
    """Without the user attached, the run is paused. The next hall replays it and continues."""
    bench.write_worker(*_ANSWERS)
    async with bench.conversation() as conversation:
        await conversation.start(WORKER, TASK)
        check_equal((conversation.state.status, conversation.state.reason), ("waiting", "person"), "status")
        run = conversation.run
    async with bench.conversation(held=True) as conversation:
        events = await conversation.send(_SECOND, run)
        _check_events(events, ["turn_end", "tool_use", "tool_result", "turn_end", "listening"])
        _check_events(await conversation.send(_THIRD), ["turn_end", "listening"])
        _check_conversation(bench, conversation)
        await conversation.complete("over")
        check_equal((conversation.state.status, conversation.state.output), ("completed", "over"), "end of the run")
        check_equal(await conversation.is_replayed(), True, "replay matches")


def _check_conversation(bench: Bench, conversation: Conversation) -> None:
    check_equal(conversation.state.error, None, "error")
    check_equal(bench.notes, {"a.md": "x"}, "written files")
    kinds = ("model_answered", "tool_started", "said")
    keys = [entry.key for entry in conversation.entries(*kinds)]
    call = next((entry.key for entry in conversation.entries("tool_started")), None)
    check_equal(keys, ["m1", "u1", "m2", call, "m3", "u2", "m4"], "journal keys in order")
    check_equal([entry.data.words for entry in conversation.entries("said")], [_SECOND, _THIRD], "messages of the user")


def _check_events(events: Sequence[Event], expected: list[str]) -> None:
    check_equal([event.type for event in events if event.type in _TURN_EVENTS], expected, "events of a turn")


def _text(events: Sequence[Event]) -> str:
    return "".join(event.data["text"] for event in events if event.type == "text_delta")
