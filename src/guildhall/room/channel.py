"""The channel: what is said is added, delivered to those whom it mentions, and never changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.room import mentions, records
from guildhall.room.model import ALL, HIGH, LONG, LOW, NORMAL, PERSON, SYSTEM, Posted, Said, check_text
from guildhall.room.resources import keep

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from guildhall.room.model import MessageKind
    from guildhall.room.turn import Turn

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
    resource = None
    content = text
    if len(text) > LONG:
        resource = keep(turn, text, "text/plain")
        content = f"{text[:_BEGINNING]}\n[...] The whole text has {len(text):,} characters: resource {resource}"
    held = bool(to_agents) and _held(turn, hops, kind, sender, content, reached)
    number = records.add_message(
        turn.connection,
        turn.room.id,
        {
            "kind": kind,
            "sender": sender,
            "content": content,
            "mentions": list(reached),
            "resource": resource,
            "hops": hops,
            "run": turn.actor.run,
            "key": turn.actor.key,
            "at": turn.at,
        },
    )
    priority = _priority(sender, kind, everyone=found.everyone and not addressed)
    records.deliver(turn.connection, turn.room.id, number, to_agents, priority, "held" if held else "unread")
    if not held:
        turn.wakes.update(to_agents)
    posted = Posted(
        id=number, reached=reached, missed=found.missed, overlooked=found.overlooked, held=held, resource=resource
    )
    turn.tell("held" if held else "message", kind=kind, content=content, **posted.as_dict())
    return posted


def _held(turn: Turn, hops: int, kind: MessageKind, sender: str, content: str, reached: Sequence[str]) -> bool:
    """Whether a message does not go out: it has come too far, or those who talk are to be stopped."""
    if hops > turn.room.max_hops or (turn.room.holding and hops > 0 and kind == "message"):
        return True
    return _said_too_often(turn, sender, content, reached)


def _said_too_often(turn: Turn, sender: str, text: str, reached: Sequence[str]) -> bool:
    """Whether an agent has said this to the same agents as often as it may, since somebody from outside spoke."""
    if turn.actor.run is None or sender in (PERSON, SYSTEM):
        return False
    before = records.since_outside(turn.connection, turn.room.id, _LOOKED_AT, sender)
    wording = _wording(text)
    same = [one for one in before if set(one.mentions) == set(reached) and _wording(one.content) == wording]
    return len(same) >= turn.room.max_repeats


def _wording(text: str) -> str:
    """What is said, without what does not count: capitals, signs, spaces."""
    return " ".join(_WORDS.findall(text.casefold())) or text.strip()


def tell(turn: Turn, text: str, to: Sequence[str], hops: int) -> dict[str, Any]:
    """The room itself says something to some, quoting what it says."""
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
