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
    LOW,
    MAX_INLINE_CHARS,
    NORMAL,
    PERSON,
    SYSTEM,
    MessageKind,
    MessageText,
    PostResult,
    check_line,
    check_text,
    content_hash,
)
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import message_text, posted_text, team_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PLAIN_TEXT = "text/plain"


def store_resource(turn: Turn, content: str, type: str = PLAIN_TEXT) -> str:
    """Store a text and return its id. Equal texts are one resource."""
    check_text(content, "the content")
    if not content:
        raise UsageError("invalid content: empty", hint="Pass the text to store.")
    kind = check_line(type, "the type")
    id = content_hash(content)
    if shared_records.find_resource(turn.connection, turn.room.id, id) is None:
        shared_records.add_resource(turn.connection, turn.room.id, id, content, kind, turn.actor, turn.at)
    return id


@operation(WRITES)
def resource_create(turn: Turn, content: str, type: str = PLAIN_TEXT) -> dict[str, Any]:
    """Store a long text and return its id, so that messages can refer to it.

    Args:
        content: The text.
        type: Its media type, such as text/plain or text/x-diff.
    """
    id = store_resource(turn, content, type)
    return {"text": f"Stored as resource {id}.", "id": id}


@operation(READS)
def resource_read(turn: Turn, id: str) -> dict[str, Any]:
    """Read a resource in full.

    Args:
        id: The id of the resource, from a message or from resource_create.
    """
    id = check_line(id, "the id")
    found = shared_records.find_resource(turn.connection, turn.room.id, id)
    if found is None:
        known = shared_records.resource_ids(turn.connection, turn.room.id)
        raise NotFound(f"unknown resource {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return {"text": found[0]}


_MAX_READ = 200  # messages in one call
_REPEAT_WINDOW = 100  # messages that are searched for repetitions
_WORDS = re.compile(r"\w+")
_EXCERPT_CHARS = 1_000  # characters of a long message that stay in the channel


def post(
    turn: Turn,
    said: MessageText,
    *,
    kind: MessageKind = "message",
    to: Sequence[str] = (),
    sender: str | None = None,
    hops: int | None = None,
) -> PostResult:
    """Post a message, and deliver it to the mentioned agents and to the agents in `to`.

    Messages of the room itself pass `sender` and the `hops` of the message that caused them.
    """
    text = said.text
    check_text(text, "the message")
    if not text.strip():
        raise UsageError("the message is empty", hint="Write a text, or call no_action if no action is needed.")
    agents = records.agent_names(turn.connection, turn.room.id)
    found = mentions.find(said, agents)
    sender = sender or turn.actor.name
    addressed = _resolve_recipients(to, agents, lenient=sender == SYSTEM)
    if found.missed and not found.reached and not addressed:
        names = ", ".join(f"@{name[:80]}" for name in found.missed[:5])
        hint = did_you_mean(found.missed[0], [name for name in (*agents, PERSON, ALL) if name != sender])
        raise NotFound(f"message not delivered: no agent named {names}", hint=hint)
    reached = tuple(name for name in dict.fromkeys((*addressed, *found.reached)) if name != sender)
    hops = next_hops(turn) if hops is None else hops
    to_agents = [name for name in reached if name != PERSON]
    resource, content = None, text
    if len(text) > MAX_INLINE_CHARS:
        resource = store_resource(turn, text)
        content = f"{text[:_EXCERPT_CHARS]}\n[...] The whole text has {len(text):,} characters: resource {resource}"
    held = bool(to_agents) and _is_held(turn, hops, kind, sender, content, reached)
    message = {"kind": kind, "sender": sender, "content": content, "mentions": list(reached), "resource": resource}
    origin = {"hops": hops, "run": turn.actor.run, "key": turn.actor.key, "at": turn.at}
    number = records.add_message(turn.connection, turn.room.id, **message, **origin)
    priority = LOW if found.has_all and not addressed else NORMAL
    if sender == PERSON or kind == "assignment":
        priority = HIGH
    records.deliver(turn.connection, turn.room.id, number, to_agents, priority, "held" if held else "unread")
    if not held:
        turn.wakes.update(to_agents)
    posted = PostResult(
        id=number, reached=reached, missed=found.missed, overlooked=found.overlooked, held=held, resource=resource
    )
    turn.add_event("held" if held else "message", kind=kind, content=content, **posted.as_dict())
    return posted


def _is_held(turn: Turn, hops: int, kind: MessageKind, sender: str, content: str, reached: Sequence[str]) -> bool:
    """Return True if a message is held: it exceeds `max_hops` or `max_repeats`, or agents have only talked too long."""
    if hops > turn.room.max_hops or (turn.room.is_holding and hops > 0 and kind == "message"):
        return True
    if turn.actor.run is None or sender in (PERSON, SYSTEM):
        return False
    before = records.talk_since_input(turn.connection, turn.room.id, _REPEAT_WINDOW, sender)
    wording = _normalise(content)
    same = [one for one in before if set(one.mentions) == set(reached) and _normalise(one.content) == wording]
    return len(same) >= turn.room.max_repeats


def _normalise(text: str) -> str:
    """Return the words of a text without case, punctuation and whitespace, to compare messages."""
    return " ".join(_WORDS.findall(text.casefold())) or text.strip()


@operation()
def send(turn: Turn, said: list[list[Any]], to: Sequence[str]) -> dict[str, Any]:
    """Post a message of the user, the kickoff or a schedule. `to` addresses agents without a mention."""
    return post(turn, MessageText.from_list(said), to=to).as_dict()


@operation()
def tell(turn: Turn, text: str, to: Sequence[str], hops: int) -> dict[str, Any]:
    """Post a message of the room itself. Names in it are quoted, not mentioned."""
    return post(turn, MessageText.quote(text), kind="system", to=to, hops=hops).as_dict()


def _resolve_recipients(to: Sequence[str], agents: Collection[str], *, lenient: bool) -> list[str]:
    """Return the agents in `to`. Raise NotFound for an unknown agent, unless `lenient` skips it."""
    if ALL in to:
        return list(agents)
    if lenient:  # the recipient of a message of the room may have been removed
        return [name for name in to if name in agents or name == PERSON]
    for name in to:
        if name not in agents and name != PERSON:
            raise NotFound(f"unknown agent {name[:80]!r}", hint=did_you_mean(name, agents))
    return list(to)


def next_hops(turn: Turn) -> int:
    """Return the hops of a new message: one more than the messages that the run was shown, or 0 for outside senders."""
    if turn.actor.run is None or turn.actor.name in (PERSON, SYSTEM):
        return 0
    before = records.shown_inbox(turn.connection, turn.room.id, turn.actor.run).hops
    return 0 if before is None else before + 1


@operation(WRITES)
def channel_send(turn: Turn, message: str) -> dict[str, Any]:
    """Post a message to the team channel. Each agent mentioned as @name is notified and starts working; @all notifies
    every agent, @person the user. A message without a mention notifies no agent. Names in code or quotes do not count.
    Do not post only to say thanks or to agree: use no_action.

    Args:
        message: The text. More than 4,000 characters become a resource, and the channel shows the beginning.
    """
    posted = post(turn, MessageText.own(message))
    return {"text": posted_text(posted), **posted.as_dict()}


@operation(READS)
def channel_read(turn: Turn, since: int | None = None, limit: int = 50) -> dict[str, Any]:
    """Read the messages of the team channel. Without `since`, read the newest messages.

    Args:
        since: The number of a message. Only later messages are returned, oldest first.
        limit: The maximum number of messages, at most 200.
    """
    if not 1 <= limit <= _MAX_READ:
        raise UsageError(f"invalid limit: {limit}", hint=f"Use 1 to {_MAX_READ}.")
    if since is not None and not 0 <= since < 2**53:
        raise UsageError(f"invalid message number: {since}", hint="Pass the number of the last message that you know.")
    found = records.list_messages(turn.connection, turn.room.id, since=since or 0, limit=limit, newest=since is None)
    last = records.count_messages(turn.connection, turn.room.id)
    if not found:
        return {"text": f"No messages after message {since}." if since else "No messages yet."}
    more = f"\n\n... {last - found[-1].id} newer messages." if found[-1].id < last else ""
    return {"text": "\n\n".join(map(message_text, found)) + more}


@operation(WRITES)
def no_action(turn: Turn, reason: str | None = None) -> dict[str, Any]:
    """Report that no action is needed. Notifies no one. Use it instead of a "thanks" or "agreed" message.

    Args:
        reason: The reason, in one line.
    """
    turn.add_event("no_action", reason=None if reason is None else check_line(reason, "the reason"))
    return {"text": "Recorded. No agent was notified."}


@operation(WRITES)
def status_set(turn: Turn, task: str | None = None, state: str | None = None) -> dict[str, Any]:
    """Set your status for team_list. Omitted fields keep their value; an empty string clears a field.

    Args:
        task: Your current task.
        state: Its state, such as "waiting for review".
    """
    given = {name: text for name, text in (("task", task), ("state", state)) if text is not None}
    if not given:
        raise UsageError("missing argument: task or state", hint="Pass at least one of them.")
    values = {name: check_line(text, name) if text.strip() else None for name, text in given.items()}
    records.change_agent(turn.connection, turn.room.id, turn.actor.name, turn.at, **values)
    turn.add_event("status", **values)
    return {"text": "Status updated."}


@operation(READS)
def team_list(turn: Turn) -> dict[str, Any]:
    """List the agents of the team with their roles, tasks and states."""
    return {"text": team_text(records.list_agents(turn.connection, turn.room.id), turn.room, turn.actor.name)}
