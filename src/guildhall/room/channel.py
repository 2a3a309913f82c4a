"""The channel: posts messages, delivers them to the mentioned agents, and keeps agents' status and resources.

A message longer than 4,000 characters becomes a resource, and its beginning stays in the channel. A message that
exceeds `max_hops` or `max_repeats` is held.
Does not parse mentions (`mentions.py`), acknowledge mail (`inbox.py`) or start agents (`workflow/scheduler.py`).

Invariant: the text of a message never changes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.text import did_you_mean
from guildhall.room import mentions, records, shared_records
from guildhall.room.model import (
    ALL,
    HIGH,
    LONG,
    LOW,
    NORMAL,
    PERSON,
    SYSTEM,
    MessageKind,
    Posted,
    Said,
    check_line,
    check_text,
    pin,
)
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import message_text, posted_text, team_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


PLAIN = "text/plain"


def keep(turn: Turn, content: str, type: str = PLAIN) -> str:
    """Store a text and return its id. Equal texts are one resource."""
    check_text(content, "the content")
    if not content:
        raise UsageError("the content is empty", hint="A resource holds something.")
    kind = check_line(type, "the type")
    id = pin(content)
    if shared_records.resource(turn.connection, turn.room.id, id) is None:
        shared_records.add_resource(turn.connection, turn.room.id, id, content, kind, turn.actor, turn.at)
    return id


@operation(WRITES)
def resource_create(turn: Turn, content: str, type: str = PLAIN) -> dict[str, Any]:
    """Keep a large text for the team under an id, to refer to it instead of repeating it.

    Args:
        content: The text.
        type: What it is, such as text/plain or text/x-diff.
    """
    id = keep(turn, content, type)
    return {"text": f"Kept as resource {id}.", "id": id}


@operation(READS)
def resource_read(turn: Turn, id: str) -> dict[str, Any]:
    """Read a resource, whole.

    Args:
        id: Its id, as a message or resource_create named it.
    """
    id = check_line(id, "the id")
    found = shared_records.resource(turn.connection, turn.room.id, id)
    if found is None:
        known = shared_records.resource_ids(turn.connection, turn.room.id)
        raise NotFound(f"there is no resource {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return {"text": found[0]}


_MAX_READ = 200  # messages in one call
_LOOKED_AT = 100  # messages: what was said before those is no exchange any more
_WORDS = re.compile(r"\w+")
_BEGINNING = 1_000  # characters of a long message that stay in the channel


def post(
    turn: Turn,
    said: Said,
    *,
    kind: MessageKind = "message",
    to: Sequence[str] = (),
    sender: str | None = None,
    hops: int | None = None,
) -> Posted:
    """Says something in the channel. It reaches those whom it mentions, and those whom `to` names beside them.

    What the room itself says has it as its `sender`, and as many `hops` as what it follows from.
    """
    text = said.text
    check_text(text, "the message")
    if not text.strip():
        raise UsageError("the message is empty", hint="Say something, or call no_action if there is nothing to say.")
    seated = records.agents_of(turn.connection, turn.room.id)
    found = mentions.find(said, seated)
    sender = sender or turn.actor.name
    addressed = _addressed(to, seated, lenient=sender == SYSTEM)
    if found.missed and not found.reached and not addressed:
        raise _nobody(found.missed, [name for name in (*seated, PERSON, ALL) if name != sender])
    reached = tuple(name for name in dict.fromkeys((*addressed, *found.reached)) if name != sender)
    hops = hops_of(turn) if hops is None else hops
    to_agents = [name for name in reached if name != PERSON]
    resource, content = None, text
    if len(text) > LONG:
        resource = keep(turn, text)
        content = f"{text[:_BEGINNING]}\n[...] The whole text has {len(text):,} characters: resource {resource}"
    held = bool(to_agents) and _held(turn, hops, kind, sender, content, reached)
    number = records.add_message(
        turn.connection,
        turn.room.id,
        kind=kind,
        sender=sender,
        content=content,
        mentions=list(reached),
        resource=resource,
        hops=hops,
        run=turn.actor.run,
        key=turn.actor.key,
        at=turn.at,
    )
    priority = _priority(sender, kind, everyone=found.everyone and not addressed)
    records.deliver(turn.connection, turn.room.id, number, to_agents, priority, "held" if held else "unread")
    if not held:
        turn.wakes.update(to_agents)
    posted = Posted(
        id=number, reached=reached, missed=found.missed, overlooked=found.overlooked, held=held, resource=resource
    )
    turn.add_event("held" if held else "message", kind=kind, content=content, **posted.as_dict())
    return posted


def _held(turn: Turn, hops: int, kind: MessageKind, sender: str, content: str, reached: Sequence[str]) -> bool:
    """Return True if a message is held: it exceeds `max_hops` or `max_repeats`, or agents have only talked too long."""
    if hops > turn.room.max_hops or (turn.room.holding and hops > 0 and kind == "message"):
        return True
    if turn.actor.run is None or sender in (PERSON, SYSTEM):
        return False
    before = records.since_outside(turn.connection, turn.room.id, _LOOKED_AT, sender)
    wording = _wording(content)
    same = [one for one in before if set(one.mentions) == set(reached) and _wording(one.content) == wording]
    return len(same) >= turn.room.max_repeats


def _wording(text: str) -> str:
    """What is said, without what does not count: capitals, signs, spaces."""
    return " ".join(_WORDS.findall(text.casefold())) or text.strip()


@operation()
def send(turn: Turn, said: list[list[Any]], to: Sequence[str]) -> dict[str, Any]:
    """Post a message of the user, the kickoff or a schedule. `to` addresses agents without a mention."""
    return post(turn, Said.from_list(said), to=to).as_dict()


@operation()
def tell(turn: Turn, text: str, to: Sequence[str], hops: int) -> dict[str, Any]:
    """Post a message of the room itself. Names in it are quoted, not mentioned."""
    return post(turn, Said.quote(text), kind="system", to=to, hops=hops).as_dict()


def _addressed(to: Sequence[str], seated: Collection[str], *, lenient: bool) -> list[str]:
    if ALL in to:
        return list(seated)
    if lenient:  # what the room says is for those who are still here
        return [name for name in to if name in seated or name == PERSON]
    for name in to:
        if name not in seated and name != PERSON:
            raise NotFound(f"there is no agent {name[:80]!r} in this room", hint=did_you_mean(name, seated))
    return list(to)


def _nobody(missed: Sequence[str], names: Collection[str]) -> NotFound:
    shown = ", ".join(f"@{name[:80]}" for name in missed[:5])
    hint = did_you_mean(missed[0], names)
    verb = "is" if len(missed) == 1 else "are"
    return NotFound(f"nobody was told: {shown} {verb} not in this room", hint=hint)


def hops_of(turn: Turn) -> int:
    """How far a message has come from what somebody outside said: one more than what the run was shown."""
    if turn.actor.run is None or turn.actor.name in (PERSON, SYSTEM):
        return 0
    before = records.seen(turn.connection, turn.room.id, turn.actor.run).hops
    return 0 if before is None else before + 1


def _priority(sender: str, kind: MessageKind, *, everyone: bool) -> int:
    if sender == PERSON or kind == "assignment":
        return HIGH
    return LOW if everyone else NORMAL


@operation(WRITES)
def channel_send(turn: Turn, message: str) -> dict[str, Any]:
    """Say something in the team's channel. Whoever is mentioned as @name is woken and gets it; @all is everybody.
    Nobody is woken by a message without a mention, nor by names in code or quotations. @person reaches the person
    who watches. Do not answer only to say thanks or that you agree: use no_action.

    Args:
        message: What to say. More than 4,000 characters are kept as a resource, with the beginning shown.
    """
    posted = post(turn, Said.own(message))
    return {"text": posted_text(posted), **posted.as_dict()}


@operation(READS)
def channel_read(turn: Turn, since: int | None = None, limit: int = 50) -> dict[str, Any]:
    """Read the channel: what was said, by whom, when. Without `since`, the newest messages.

    Args:
        since: The number of a message; those after it are shown, oldest first.
        limit: How many messages at most, up to 200.
    """
    if not 1 <= limit <= _MAX_READ:
        raise UsageError(f"limit: {limit} messages cannot be read", hint=f"Between 1 and {_MAX_READ}.")
    if since is not None and not 0 <= since < 2**53:
        raise UsageError(f"since: {since} is no message's number", hint="Give the number of the last you know.")
    found = records.channel(turn.connection, turn.room.id, since=since or 0, limit=limit, newest=since is None)
    last = records.count_messages(turn.connection, turn.room.id)
    if not found:
        return {"text": f"There is nothing after message {since}." if since else "Nothing has been said yet."}
    more = f"\n\n... {last - found[-1].id} newer ones." if found[-1].id < last else ""
    return {"text": "\n\n".join(map(message_text, found)) + more}


@operation(WRITES)
def no_action(turn: Turn, reason: str | None = None) -> dict[str, Any]:
    """Say that there is nothing for you to do. Wakes nobody; use it instead of a message that only acknowledges.

    Args:
        reason: Why, in a line.
    """
    turn.add_event("no_action", reason=None if reason is None else check_line(reason, "the reason"))
    return {"text": "Noted. Nobody is woken."}


@operation(WRITES)
def status_set(turn: Turn, task: str | None = None, state: str | None = None) -> dict[str, Any]:
    """Tell the team what you are at; team_list shows it. What you leave out stays; an empty text clears it.

    Args:
        task: What you are working on.
        state: How it stands, such as "waiting for review".
    """
    given = {name: text for name, text in (("task", task), ("state", state)) if text is not None}
    if not given:
        raise UsageError("neither task nor state is given", hint="Give at least one of them.")
    values = {name: check_line(text, name) if text.strip() else None for name, text in given.items()}
    records.change_seat(turn.connection, turn.room.id, turn.actor.name, turn.at, **values)
    turn.add_event("status", **values)
    return {"text": "The team can see it."}


@operation(READS)
def team_list(turn: Turn) -> dict[str, Any]:
    """List the team: who is in the room, what they are at, who has which role."""
    return {"text": team_text(records.seats_of(turn.connection, turn.room.id), turn.room, turn.actor.name)}
