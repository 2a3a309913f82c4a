"""The channel of a room: posts and delivers messages, and stores resources and the status of agents.

A message that exceeds `max_hops` or `max_repeats` is held.
Does not parse mentions (`mentions.py`), acknowledge mail (`inbox.py`) or start agents (`workflow/team.py`).

Invariant: the text of a message never changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.text_checks import did_you_mean
from guildhall.room import document_records, mentions, records
from guildhall.room.model import (
    ALL,
    HIGH,
    LOW,
    MAX_OWN_CHARS,
    MAX_QUOTE_CHARS,
    NORMAL,
    PERSON,
    SYSTEM,
    MessageKind,
    MessageText,
    PostResult,
    TextPart,
    check_line,
    check_text,
    content_hash,
)
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import message_text, posted_text, team_text

PLAIN_TEXT = "text/plain"
MAX_PAGE_CHARS = 20_000  # in one result of resource_read


def store_resource(turn: Turn, content: str, type: str = PLAIN_TEXT) -> str:
    """Store a text and return its id. Equal texts share one resource."""
    check_text(content, "the content")
    if not content:
        raise UsageError("invalid content: empty", hint="Pass the text to store.")
    mime_type = check_line(type, "the type")
    id = content_hash(content)
    if document_records.find_resource(turn.connection, turn.room.id, id) is None:
        document_records.add_resource(turn.connection, turn.room.id, id, content, mime_type, turn.actor, turn.at)
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
def resource_read(turn: Turn, id: str, offset: int = 0, limit: int = MAX_PAGE_CHARS) -> dict[str, Any]:
    """Read a page of a resource.

    Args:
        id: The id of the resource, from a message or from resource_create.
        offset: The number of characters to skip.
        limit: The length of the page in characters, at most 20000.
    """
    id = check_line(id, "the id")
    resource = document_records.find_resource(turn.connection, turn.room.id, id)
    if resource is None:
        known = document_records.resource_ids(turn.connection, turn.room.id)
        raise NotFound(f"unknown resource {id[:80]!a}", hint=did_you_mean(id[:80], known))
    content = resource[0]
    if not 0 <= offset < len(content):
        message = f"invalid offset: {offset} (the resource has {len(content)} characters)"
        raise UsageError(message, hint=f"Use 0 to {len(content) - 1}.")
    if not 1 <= limit <= MAX_PAGE_CHARS:
        raise UsageError(f"invalid limit: {limit}", hint=f"Use 1 to {MAX_PAGE_CHARS}.")
    page, end = content[offset : offset + limit], offset + limit
    more = f"\n[Characters {offset} to {end} of {len(content)}. Next page: {_page_call(id, end)}]"
    return {"text": page + more if end < len(content) else page}


def _page_call(id: str, offset: int) -> str:
    return f'resource_read(id="{id}", offset={offset})'


_MAX_READ_MESSAGES = 200  # in one call
_REPEAT_WINDOW = 100  # messages that are searched for repetitions
_WORDS = re.compile(r"\w+")
_EXCERPT_CHARS = 1_000  # start of a long text that stays in the message


def post(
    turn: Turn,
    message: MessageText,
    *,
    kind: MessageKind = "message",
    to: Sequence[str] = (),
    sender: str | None = None,
    hops: int | None = None,
) -> PostResult:
    """Post a message, and deliver it to the mentioned agents and to the agents in `to`.

    The room passes `sender` and `hops` for its own messages.
    """
    text = message.text
    check_text(text, "the message")
    if not text.strip():
        raise UsageError("invalid message: empty", hint="Write a text.")
    agents = records.agent_names(turn.connection, turn.room.id)
    parsed = mentions.find(message, agents)
    sender = sender or turn.actor.name
    addressed = _resolve_recipients(to, agents, lenient=sender == SYSTEM)
    if parsed.missed and not parsed.reached and not addressed:
        names = ", ".join(f"@{name[:80]}" for name in parsed.missed[:5])
        hint = did_you_mean(parsed.missed[0], [name for name in (*agents, PERSON, ALL) if name != sender])
        raise NotFound(f"message not delivered: no agent named {names}", hint=hint)
    reached = tuple(name for name in dict.fromkeys((*addressed, *parsed.reached)) if name != sender)
    hops = next_hops(turn) if hops is None else hops
    to_agents = [name for name in reached if name != PERSON]
    content = "".join(_shorten(turn, part) for part in message.parts)
    resource = None if content == text else store_resource(turn, text)
    is_held = bool(to_agents) and _must_hold(turn, hops, kind, sender, content, reached)
    columns = {"kind": kind, "sender": sender, "content": content, "mentions": list(reached), "resource": resource}
    origin = {"hops": hops, "run": turn.actor.run, "key": turn.actor.key, "at": turn.at}
    number = records.add_message(turn.connection, turn.room.id, **columns, **origin)
    priority = LOW if parsed.has_all and not addressed else NORMAL
    if sender == PERSON or kind == "assignment":
        priority = HIGH
    records.deliver(turn.connection, turn.room.id, number, to_agents, priority, "held" if is_held else "unread")
    if not is_held:
        turn.wakes.update(to_agents)
    posted = PostResult(
        id=number, reached=reached, missed=parsed.missed, overlooked=parsed.overlooked, held=is_held, resource=resource
    )
    turn.add_event("held" if is_held else "message", kind=kind, content=content, **posted.as_dict())
    return posted


def _shorten(turn: Turn, part: TextPart) -> str:
    """Return a part of a message. The middle of a long part is replaced by the id of a resource.

    The end of a text by the sender stays, because it often has the instruction.
    """
    text = part.text
    if len(text) <= (MAX_QUOTE_CHARS if part.is_quoted else MAX_OWN_CHARS):
        return text
    call = _page_call(store_resource(turn, text), _EXCERPT_CHARS)
    note = f"[... This text has {len(text):,} characters. Read the rest in pages: {call}]"
    return f"{text[:_EXCERPT_CHARS]}\n{note}\n{'' if part.is_quoted else text[-_EXCERPT_CHARS:]}"


def _must_hold(turn: Turn, hops: int, kind: MessageKind, sender: str, content: str, reached: Sequence[str]) -> bool:
    """Return True if a message exceeds `max_hops` or `max_repeats`, or if the room holds messages between agents."""
    if hops > turn.room.max_hops or (turn.room.is_holding and hops > 0 and kind in ("message", "answer")):
        return True
    if turn.actor.run is None or sender in (PERSON, SYSTEM):
        return False
    earlier = records.talk_since_input(turn.connection, turn.room.id, _REPEAT_WINDOW, sender)
    words = _normalise(content)
    to_same_agents = (message for message in earlier if set(message.mentions) == set(reached))
    return sum(_normalise(message.content) == words for message in to_same_agents) >= turn.room.max_repeats


def _normalise(text: str) -> str:
    """Return the words of a text without case, punctuation and whitespace, to compare messages."""
    return " ".join(_WORDS.findall(text.casefold())) or text.strip()


@operation()
def send(turn: Turn, parts: list[list[Any]], to: Sequence[str]) -> dict[str, Any]:
    """Post a user message, the kickoff or a scheduled message. `to` addresses agents without a mention."""
    return post(turn, MessageText.from_list(parts), to=to).as_dict()


@operation()
def post_notice(turn: Turn, text: str, to: Sequence[str], hops: int) -> dict[str, Any]:
    """Post a message of the room itself. Names in the text do not count as mentions."""
    return post(turn, MessageText.quote(text), kind="system", to=to, hops=hops).as_dict()


def _resolve_recipients(to: Sequence[str], agents: Collection[str], *, lenient: bool) -> list[str]:
    """Return the agents in `to`. Raise NotFound for an unknown agent, unless `lenient` skips it."""
    if ALL in to:
        return list(agents)
    if lenient:  # the recipient may have been removed from the team
        return [name for name in to if name in agents or name == PERSON]
    for name in to:
        if name not in agents and name != PERSON:
            raise NotFound(f"unknown agent {name[:80]!r}", hint=did_you_mean(name, (*agents, PERSON, ALL)))
    return list(to)


def next_hops(turn: Turn) -> int:
    """Return the hops of a new message: one more than the messages that the run has read, or 0 for outside senders."""
    if turn.actor.run is None or turn.actor.name in (PERSON, SYSTEM):
        return 0
    hops = records.shown_inbox(turn.connection, turn.room.id, turn.actor.run).hops
    return 0 if hops is None else hops + 1


@operation(WRITES)
def channel_send(turn: Turn, message: str, to: str | None = None) -> dict[str, Any]:
    """Send a message to an agent, which starts working on it, or to the user. Do not send thanks or agreement.

    Args:
        message: The text. Each agent that it mentions as @name is notified, too.
        to: The recipient: an agent, person (the user) or all (every agent).
    """
    name = (to or "").strip().removeprefix("@")
    known = {agent.lower(): agent for agent in (*records.agent_names(turn.connection, turn.room.id), PERSON, ALL)}
    posted = post(turn, MessageText.own(message), to=[known.get(name.lower(), name)] if name else ())
    return {"text": posted_text(posted), **posted.as_dict()}


@operation()
def post_answer(turn: Turn, text: str) -> dict[str, Any] | None:
    """Post the final answer of a run that has posted no message, to the senders of the messages that the run has read.

    An answer to an answer goes to the user, so that two agents do not answer each other for ever.
    """
    run = turn.actor.run or ""
    if records.has_posted(turn.connection, turn.room.id, run):
        return {}
    read = records.messages_read(turn.connection, turn.room.id, run)
    agents = records.agent_names(turn.connection, turn.room.id)
    from_agents = [message for message in read if message.sender in agents]
    senders = dict.fromkeys(message.sender for message in from_agents if message.kind == "message")
    is_from_user = len(from_agents) < len(read) or not senders
    to = [*senders, *([PERSON] if is_from_user else [])]
    return post(turn, MessageText.own(text), kind="answer", to=to).as_dict()


@operation(READS)
def more_tools(turn: Turn) -> dict[str, Any]:
    """Get more tools: shared documents, votes, your inbox and status, resources."""
    return {"text": "You have more tools now."}


@operation(READS)
def channel_read(turn: Turn, since: int | None = None, limit: int = 50) -> dict[str, Any]:
    """Read earlier messages of the team.

    Args:
        since: The number of a message. Only later messages are returned. Default: the newest messages.
        limit: The maximum number of messages, at most 200.
    """
    if not 1 <= limit <= _MAX_READ_MESSAGES:
        raise UsageError(f"invalid limit: {limit}", hint=f"Use 1 to {_MAX_READ_MESSAGES}.")
    if since is not None and not 0 <= since < 2**53:
        raise UsageError(f"invalid message number: {since}", hint="Pass the number of the last message that you know.")
    messages = records.list_messages(turn.connection, turn.room.id, since=since or 0, limit=limit, newest=since is None)
    if not messages:
        return {"text": f"No messages after message {since}." if since else "No messages yet."}
    newer_count = records.count_messages(turn.connection, turn.room.id) - messages[-1].id
    more = f"\n\n... {newer_count} newer messages." if newer_count else ""
    return {"text": "\n\n".join(map(message_text, messages)) + more}


@operation(WRITES)
def no_action(turn: Turn, reason: str | None = None) -> dict[str, Any]:
    """End your turn without a reply, because no action is needed.

    Args:
        reason: The reason, in one line.
    """
    turn.add_event("no_action", reason=None if reason is None else check_line(reason, "the reason"))
    return {"text": "Your turn has ended."}


@operation(WRITES)
def status_set(turn: Turn, task: str | None = None, state: str | None = None) -> dict[str, Any]:
    """Set your status for team_list. An empty text clears a field.

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
