"""Event bus: listeners receive the events of their run from then on, buffered until they are read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict
from guildhall.core.events import Event, EventBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def text_event(text: str, run: str = "r-1") -> Event:
    return Event(type="text_delta", run=run, root=run, at="2026-01-01T00:00:00.000Z", data={"text": text})


async def read_texts(events: AsyncIterator[Event], count: int) -> list[str]:
    return [(await asyncio.wait_for(anext(events), 5)).data["text"] for _ in range(count)]


def test_an_event_as_json_has_its_data_beside_type_run_and_time():
    assert text_event("hi").as_dict() == {
        "type": "text_delta",
        "run": "r-1",
        "root": "r-1",
        "at": "2026-01-01T00:00:00.000Z",
        "text": "hi",
    }


def test_listeners_receive_events_of_their_run_in_order_from_then_on():
    async def scene() -> None:
        bus = EventBus()
        bus.publish(text_event("before"))
        with bus.listening("r-1") as events:
            bus.publish(text_event("one"))
            bus.publish(text_event("of another run", run="r-2"))
            bus.publish(text_event("two"))
            assert await read_texts(events, 2) == ["one", "two"]

    asyncio.run(scene())


def test_two_listeners_each_receive_all_events():
    async def scene() -> None:
        bus = EventBus()
        with bus.listening("r-1") as first:
            with bus.listening("r-1") as second:
                bus.publish(text_event("both"))
                assert await read_texts(second, 1) == ["both"]
            bus.publish(text_event("one of them"))
            assert await read_texts(first, 2) == ["both", "one of them"]
        bus.publish(text_event("no listener"))
        with bus.listening("r-1") as again:
            bus.publish(text_event("again"))
            assert await read_texts(again, 1) == ["again"]

    asyncio.run(scene())


def test_a_listener_that_unsubscribes_during_a_publication_does_not_affect_the_next():
    async def scene() -> None:
        bus = EventBus()
        seen: list[str] = []
        unsubscribing = bus.listening("r-1")
        with bus.listening("r-1") as first:
            unsubscribing.__enter__()
            # The second of three listeners unsubscribes in the middle of a publication.
            bus._listeners["r-1"].insert(0, lambda event: seen.append(event.data["text"]))
            bus._listeners["r-1"].insert(
                1, lambda event: unsubscribing.__exit__(None, None, None) if len(seen) == 1 else None
            )
            with bus.listening("r-1") as last:
                bus.publish(text_event("one"))
                bus.publish(text_event("two"))
                assert await read_texts(first, 2) == ["one", "two"]
                assert await read_texts(last, 2) == ["one", "two"]
        assert seen == ["one", "two"]

    asyncio.run(scene())


def test_waiting_for_an_event_can_be_cancelled():
    async def scene() -> None:
        bus = EventBus()
        with bus.listening("r-1") as events:
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
        assert bus._listeners == {}

    asyncio.run(scene())


def test_a_slow_reader_loses_text_deltas_and_is_disconnected_in_the_end():
    def other() -> Event:
        return Event(type="turn_end", run="r-1", root="r-1", at="")

    async def scene() -> None:
        bus = EventBus()
        with bus.listening("r-1", 3) as slow, bus.listening("r-1") as patient:
            for number in range(5):
                bus.publish(text_event(str(number)))
            assert await read_texts(patient, 5) == ["0", "1", "2", "3", "4"]
            for _ in range(10):
                bus.publish(other())
            kept = [await asyncio.wait_for(anext(slow), 5) for _ in range(6)]
            assert [event.type for event in kept] == ["text_delta"] * 3 + ["turn_end"] * 3
            with pytest.raises(Conflict, match="too slowly"):
                await asyncio.wait_for(anext(slow), 5)
            assert [(await anext(patient)).type for _ in range(10)] == ["turn_end"] * 10

    asyncio.run(scene())


def test_a_fast_reader_misses_nothing():
    async def scene() -> None:
        bus = EventBus()
        with bus.listening("r-1", 2) as events:
            for number in range(100):
                bus.publish(text_event(str(number)))
                assert await read_texts(events, 1) == [str(number)]

    asyncio.run(scene())
