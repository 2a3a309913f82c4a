"""The channel and inboxes: a message is delivered once, and stays unread until a run has handled it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.room import inbox, records
from guildhall.room.channel import post_notice
from guildhall.room.model import Actor, MessageText, TextPart
from guildhall.room.operation import begin_turn
from guildhall.room.service import Rooms, RoomSettings
from tests.room.conftest import PERSON, TEAM, RecordingListener, agent
from tests.room.tool_calls import count_unread, perform, unread_mail

if TYPE_CHECKING:
    from guildhall.room.service import Room
    from guildhall.store.engine import Store


def open_room(rooms: Rooms, *agents: str, **settings: Any) -> Room:
    return asyncio.run(rooms.open("/project", "review", "main", agents or TEAM, RoomSettings(**settings)))


def unread_ids(room: Room, name: str) -> list[int]:
    return [mail.message.id for mail in unread_mail(room, name)]


@pytest.mark.req("AW-5", "AW-6")
def test_a_mention_is_delivered_and_stays_unread_until_it_is_acknowledged(
    rooms: Rooms, store: Store, listener: RecordingListener
):
    room = open_room(rooms)
    posted = asyncio.run(room.send("@reviewer look, then @coder", PERSON))
    assert posted.reached == ("reviewer", "coder")
    assert listener.woken_agents == [{"reviewer", "coder"}]
    assert unread_ids(room, "reviewer") == unread_ids(room, "reviewer") == [1]
    asyncio.run(room.send("@reviewer more", PERSON))
    moved = perform(store, room, "acknowledge", Actor(name="reviewer"), agent="reviewer", until=1).result["messages"]
    assert moved == [1]
    assert unread_ids(room, "reviewer") == [2]
    assert unread_ids(room, "coder") == [1]
    assert count_unread(room) == {"reviewer": 1, "coder": 1}
    (first, _) = room.list_messages()
    assert (first.sender, first.content, first.mentions, first.kind) == (
        "person",
        "@reviewer look, then @coder",
        ("reviewer", "coder"),
        "message",
    )


@pytest.mark.req("AW-24")
def test_all_reaches_every_agent_except_the_sender(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms)
    posted = asyncio.run(room.send("@all sync up", agent("coder")))
    assert posted.reached == ("coordinator", "reviewer")
    assert [mail.urgency for mail in unread_mail(room, "reviewer")] == ["low"]
    asyncio.run(room.send("sync up", PERSON, to=["all"]))
    assert listener.woken_agents[-1] == set(TEAM)
    assert [mail.urgency for mail in unread_mail(room, "coder")] == ["high"]


@pytest.mark.req("AW-24")
def test_a_message_without_a_known_agent_is_refused_with_the_nearest_name(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms)
    with pytest.raises(NotFound, match="no agent named @cdoer") as caught:
        asyncio.run(room.send("@cdoer fix it", agent("reviewer")))
    assert caught.value.hint == "Did you mean 'coder'?"
    assert room.list_messages() == []
    assert listener.wakes == []
    posted = asyncio.run(room.send("@cdoer @coder fix it", agent("reviewer")))
    assert (posted.reached, posted.missed) == (("coder",), ("cdoer",))


def test_an_addressed_agent_need_not_be_mentioned(rooms: Rooms):
    room = open_room(rooms)
    assert asyncio.run(room.send("fix the bug", PERSON, to=["coder"])).reached == ("coder",)
    with pytest.raises(NotFound, match="unknown agent 'cder'"):
        asyncio.run(room.send("fix the bug", PERSON, to=["cder"]))


def test_a_system_message_in_another_transaction_reaches_the_agents_of_the_room(rooms: Rooms, store: Store):
    room = open_room(rooms)

    def write(connection: Any) -> Any:
        turn = begin_turn(connection, room.id, Actor.system(run="w-1"), room.now())
        return turn, post_notice(turn, "@coder could not handle #1", ["reviewer", "gone", "person"], 3)

    turn, posted = store.submit(write).result(5)
    assert posted["reached"] == ["reviewer", "person"]
    assert turn.wakes == {"reviewer"}
    (message,) = room.list_messages()
    assert (message.kind, message.sender, message.hops) == ("system", "system", 3)


def test_a_message_to_the_user_to_oneself_or_without_a_mention_wakes_no_agent(
    rooms: Rooms, listener: RecordingListener
):
    room = open_room(rooms)
    assert asyncio.run(room.send("@person done", agent("coder"))).reached == ("person",)
    assert asyncio.run(room.send("@coder I go on", agent("coder"))).reached == ()
    assert asyncio.run(room.send("just saying", agent("coder"))).reached == ()
    assert listener.wakes == []
    assert count_unread(room) == {}
    assert [event.data["id"] for event in listener.events] == [1, 2, 3]


@pytest.mark.req("AW-24")
def test_quoted_text_wakes_no_agent(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms)
    text = MessageText(
        (TextPart("Diff:\n"), TextPart("+@coder\n@all\n@scope/x a@b.c", is_quoted=True), TextPart("\n@reviewer look"))
    )
    assert asyncio.run(room.send(text, PERSON)).reached == ("reviewer",)
    assert listener.woken_agents == [{"reviewer"}]
    assert room.list_messages()[0].content == "Diff:\n+@coder\n@all\n@scope/x a@b.c\n@reviewer look"


def test_a_repeated_call_has_the_same_result_and_no_second_effect(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms)
    call = agent("coder", "r-1", "m1/c1")
    first = asyncio.run(room.send("@reviewer done", call))
    assert asyncio.run(room.send("@reviewer done", call)) == first
    assert len(room.list_messages()) == len(listener.wakes) == 1
    missing = agent("coder", "r-1", "m2/c1")
    for _ in range(2):
        with pytest.raises(NotFound, match="@revewer") as caught:
            asyncio.run(room.send("@revewer", missing))
        assert caught.value.hint == "Did you mean 'reviewer'?"


def test_hops_are_counted_from_the_messages_that_a_run_was_shown(
    rooms: Rooms, store: Store, listener: RecordingListener
):
    room = open_room(rooms, max_hops=2)

    def turn(name: str, run: str, text: str) -> bool:
        batch = unread_mail(room, name)
        perform(store, room, "inbox_shown", agent(name, run, "inbox"), left=0, **inbox.describe_batch(batch))
        posted = asyncio.run(room.send(text, agent(name, run)))
        until = store.read(lambda c: records.shown_inbox(c, room.id, run)).last_message_number
        perform(store, room, "acknowledge", agent(name, run), agent=name, until=until)
        return posted.held

    asyncio.run(room.send("@coder go", PERSON))
    assert not turn("coder", "r-1", "@reviewer thanks")
    assert not turn("reviewer", "r-2", "@coder thank you")
    assert listener.woken_agents == [{"coder"}, {"reviewer"}, {"coder"}]
    assert turn("coder", "r-3", "@reviewer thank you too")
    assert len(listener.wakes) == 3
    assert listener.events[-1].type == "held"
    assert count_unread(room) == {}
    assert [message.hops for message in room.list_messages()] == [0, 1, 2, 3]
    assert [name for name, _ in store.read(lambda c: records.mail_by_status(c, room.id, "held"))] == ["reviewer"]
    released = perform(store, room, "release_messages", PERSON).turn
    assert released is not None
    asyncio.run(room.announce(released))
    assert listener.woken_agents[-1] == {"reviewer"}
    assert count_unread(room) == {"reviewer": 1}
    assert not turn("reviewer", "r-4", "@coder once more")


def test_dead_letters_are_not_unread_until_they_are_redelivered(rooms: Rooms, store: Store):
    room = open_room(rooms)
    for text in ("@coder one", "@coder two", "@coder three"):
        asyncio.run(room.send(text, agent("reviewer")))
    buried = perform(store, room, "mark_dead", Actor.system(), agent="coder", until=2).result["messages"]
    assert buried == [1, 2]
    assert unread_ids(room, "coder") == [3]
    dead = store.read(lambda c: records.mail_by_status(c, room.id, "dead"))
    assert [(mail.message.id, mail.message.sender) for _, mail in dead] == [(1, "reviewer"), (2, "reviewer")]
    again = perform(store, room, "redeliver", PERSON, agent="coder").turn
    assert again is not None
    assert again.wakes == {"coder"}
    assert unread_ids(room, "coder") == [1, 2, 3]
    before = store.read(lambda c: records.log_entries(c, room.id))
    perform(store, room, "redeliver", PERSON, agent="coder")
    assert store.read(lambda c: records.log_entries(c, room.id)) == before  # without a change there is no log entry


def test_an_inbox_is_shown_in_batches_from_the_oldest_message(rooms: Rooms):
    room = open_room(rooms)

    async def fill_inboxes() -> None:
        for number in range(150):
            await room.send(f"@coder {number}", agent("reviewer"))
        for number in range(30):
            await room.send(f"@reviewer {number} " + "x" * 3_900, agent("coder"))

    asyncio.run(fill_inboxes())
    assert unread_ids(room, "coder") == list(range(1, 101))
    assert unread_ids(room, "reviewer") == list(range(151, 161))


@pytest.mark.req("AW-11")
def test_a_long_message_becomes_a_resource(rooms: Rooms):
    room = open_room(rooms)
    text = "x" * 17_000 + " @coder"
    posted = asyncio.run(room.send(text, PERSON))
    assert posted.reached == ("coder",)
    (message,) = room.list_messages()
    assert message.resource == posted.resource is not None
    assert len(message.content) < 2_200
    assert message.content.endswith("@coder")
    assert f'resource_read(id="{posted.resource}", offset=1000)' in message.content


@pytest.mark.parametrize("text", ["", " \n ", "a\0b", "half \ud800", "x" * 1_000_001, "é" * 600_000])
def test_invalid_messages_are_refused(rooms: Rooms, text: str):
    room = open_room(rooms)
    with pytest.raises(UsageError):
        asyncio.run(room.send(text, agent("coder", "r-1", "m1/c1")))
    assert room.list_messages() == []


@pytest.mark.req("AW-12")
def test_no_message_of_parallel_senders_is_lost(rooms: Rooms):
    room = open_room(rooms)

    async def send_messages(name: str) -> None:
        for number in range(40):
            await room.send(f"@coordinator {name} {number}", agent(name, f"r-{name}", f"m{number}"))

    async def send_in_parallel() -> None:
        await asyncio.gather(*(send_messages(name) for name in ("reviewer", "coder") for _ in range(2)))

    asyncio.run(send_in_parallel())
    contents = [message.content for message in room.list_messages()]
    assert len(contents) == len(set(contents)) == 80
    assert [message.id for message in room.list_messages()] == list(range(1, 81))
    assert count_unread(room) == {"coordinator": 80}


def test_the_message_of_a_cancelled_sender_wakes_its_agent(rooms: Rooms, listener: RecordingListener):
    room = open_room(rooms)

    async def cancel_sender() -> None:
        sending = asyncio.create_task(room.send("@coder go", PERSON))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        for _ in range(100):
            if listener.wakes:
                break
            await asyncio.sleep(0.01)

    asyncio.run(cancel_sender())
    assert listener.woken_agents == [{"coder"}]


@pytest.mark.req("AW-23")
def test_two_tags_share_nothing_and_a_room_is_found_again(rooms: Rooms, store: Store, clock: Any):
    one = asyncio.run(rooms.open("/project", "review", "pr-1", TEAM))
    two = asyncio.run(rooms.open("/project", "review", "pr-2", TEAM))
    asyncio.run(one.send("@coder one", PERSON))
    assert (len(one.list_messages()), len(two.list_messages())) == (1, 0)
    assert (count_unread(one), count_unread(two)) == ({"coder": 1}, {})
    asyncio.run(two.send("@coder two", PERSON))
    assert two.list_messages()[0].id == 1
    again = Rooms(store, clock)
    found = again.find("/project", "review", "pr-1")
    assert found is not None
    assert found.id == one.id
    assert found.list_messages() == one.list_messages()
    assert again.find("/project", "review", "pr-3") is None


def test_a_closed_room_refuses_messages_and_the_next_room_is_empty(rooms: Rooms):
    old = open_room(rooms)
    asyncio.run(old.send("@coder one", PERSON))
    asyncio.run(rooms.close(old.id))
    assert rooms.find("/project", "review", "main") is None
    with pytest.raises(Conflict, match="closed"):
        asyncio.run(old.send("@coder two", PERSON))
    new = open_room(rooms)
    assert new.id != old.id
    assert new.list_messages() == []
    assert len(old.list_messages()) == 1


def test_a_reopened_room_has_the_current_agents_of_the_file(rooms: Rooms):
    room = open_room(rooms, "a", "b", "c", owner="b")
    asyncio.run(room.send("@a @b", PERSON))
    again = open_room(rooms, "c", "a")
    assert again.id == room.id
    assert [one.agent for one in again.list_agents()] == ["c", "a"]
    assert count_unread(again) == {"a": 1}
    assert again.read_record().owner is None


@pytest.mark.parametrize("name", ["person", "all", "System", "", "a b", "../x", "x" * 65, "a@b"])
def test_invalid_agent_names_are_refused(rooms: Rooms, name: str):
    with pytest.raises(UsageError):
        open_room(rooms, "ok", name)


def test_names_that_differ_only_in_case_are_refused(rooms: Rooms):
    with pytest.raises(UsageError, match="duplicate agent name"):
        open_room(rooms, "coder", "Coder")
    with pytest.raises(NotFound, match="unknown document owner"):
        open_room(rooms, "coder", owner="codr")


def test_an_unknown_room_is_refused(rooms: Rooms):
    with pytest.raises(NotFound):
        asyncio.run(rooms.room("m-2222222222").send("x", Actor.person()))
    with pytest.raises(NotFound):
        rooms.room("m-2222222222").read_record()


def test_unread_mail_is_found_by_the_key_of_the_call_that_posted_it(rooms: Rooms, store: Store):
    room = asyncio.run(rooms.open("/project", "keys", "main", ("a_b", "axb")))

    def has_unread(agent: str, key: str) -> bool:
        return store.read(lambda c: records.has_unread_from_call(c, room.id, agent, key))

    asyncio.run(room.send("go", Actor.system("w-1", "schedule/a_b/2026/0"), to=["a_b"]))
    asyncio.run(room.send("go", Actor.system("w-1", "schedule/axb/2026/0"), to=["axb"]))
    asyncio.run(room.send("go", agent("axb"), to=["a_b"]))
    assert has_unread("a_b", "schedule/a_b/")
    assert not has_unread("a_b", "schedule/*/")
    assert not has_unread("axb", "schedule/a_b/")  # `_` is not a wildcard
    perform(store, room, "acknowledge", Actor.system(), agent="a_b", until=3)
    assert not has_unread("a_b", "schedule/a_b/")
