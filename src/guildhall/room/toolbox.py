"""The room tools of an agent, and the desk at which their calls are carried out.

Who calls is known from the desk: no tool takes it as an argument. Each call has its place in the room's log, and made
again under the same key it has the same result and no second effect: that is what `repeatable` says of these tools.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import Refused, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.room import channel, inbox, records, resources
from guildhall.room.documents import DEFAULT
from guildhall.room.model import Actor, Said, check_line, check_text
from guildhall.room.proposing import ProposalTools
from guildhall.room.rendering import mail_text, message_text, posted_text, team_text
from guildhall.room.shelves import check_path
from guildhall.tools.define import TypedHandler, invoke, tool
from guildhall.tools.model import ToolResult

if TYPE_CHECKING:
    from guildhall.room.room import Room
    from guildhall.room.turn import Turn
    from guildhall.tools.model import Tool, ToolCall

READS = frozenset({"room.read"})
WRITES = frozenset({"room.write"})
TOOLS = {
    "channel_send": WRITES,
    "channel_read": READS,
    "inbox_read": READS,
    "inbox_ack": WRITES,
    "status_set": WRITES,
    "team_list": READS,
    "document_read": READS,
    "document_write": WRITES,
    "document_append": WRITES,
    "document_list": READS,
    "document_create": WRITES,
    "document_suggest": WRITES,
    "proposal_create": WRITES,
    "proposal_vote": WRITES,
    "proposal_status": READS,
    "proposal_cancel": WRITES,
    "resource_create": WRITES,
    "resource_read": READS,
    "no_action": WRITES,
}
VOTING = ("proposal_vote", "proposal_status")  # all that there is during an election
_MOST_READ = 200


def room_tools(room: Room, agent: str, names: tuple[str, ...] = tuple(TOOLS)) -> tuple[Tool, ...]:
    """The room tools as an agent is shown them. Their calls go to its desk."""
    verbs = _Verbs(room, Actor(name=agent))
    return tuple(_tool(verbs, name) for name in names)


def described_tools() -> tuple[Tool, ...]:
    """The same before there is a room, for a plan: nobody calls them."""
    return room_tools(cast("Room", None), "")


def _tool(verbs: _Verbs, name: str) -> Tool:
    return tool(name=name, capabilities=TOOLS[name], repeatable=True, runs_in="run")(getattr(verbs, name))


class Desk:
    """Where the room calls of one run of one agent are carried out."""

    def __init__(self, room: Room, agent: str, run: str) -> None:
        self._room = room
        self._agent = agent
        self._run = run

    async def execute(self, tool: Tool, call: ToolCall) -> ToolResult:
        """The result of a call. The same call, by its key, is made once however often it comes."""
        if tool.name not in TOOLS:
            return ToolResult.error(f"There is no room tool {tool.name!r}. {did_you_mean(tool.name, TOOLS) or ''}")
        verbs = _Verbs(self._room, Actor(name=self._agent, run=self._run, key=call.key))
        bound = getattr(verbs, tool.name)
        known = tool.handler
        # What is known of the tool's form is used again: making it costs more than the call.
        given = replace(tool, handler=TypedHandler(bound, known.form)) if isinstance(known, TypedHandler) else None
        return await invoke(given or _tool(verbs, tool.name), call.arguments or {})


class _Verbs(ProposalTools):
    """One method for each tool; what the model is told of it is its docstring."""

    def __init__(self, room: Room, actor: Actor) -> None:
        super().__init__(room, actor)

    # The channel

    async def channel_send(self, message: str) -> str:
        """Say something in the team's channel. Whoever is mentioned as @name is woken and gets it; @all is everybody.
        Nobody is woken by a message without a mention, nor by names in code or quotations. @person reaches the person
        who watches. Do not answer only to say thanks or that you agree: use no_action.

        Args:
            message: What to say. More than 4,000 characters are kept as a resource, with the beginning shown.
        """

        def send(turn: Turn) -> dict[str, Any]:
            posted = channel.post(turn, Said.own(message))
            return {"text": posted_text(posted), **posted.as_dict()}

        return await self._do("channel_send", {"message": message}, send)

    async def channel_read(self, since: int | None = None, limit: int = 50) -> str:
        """Read the channel: what was said, by whom, when. Without `since`, the newest messages.

        Args:
            since: The number of a message; those after it are shown, oldest first.
            limit: How many messages at most, up to 200.
        """
        if not 1 <= limit <= _MOST_READ:
            raise UsageError(f"limit: {limit} messages cannot be read", hint=f"Between 1 and {_MOST_READ}.")
        if since is not None and not 0 <= since < 2**53:
            raise UsageError(f"since: {since} is no message's number", hint="Give the number of the last you know.")

        def read(turn: Turn) -> dict[str, Any]:
            found = records.channel(turn.connection, turn.room.id, since=since or 0, limit=limit, newest=since is None)
            last = records.count_messages(turn.connection, turn.room.id)
            if not found:
                return {"text": f"There is nothing after message {since}." if since else "Nothing has been said yet."}
            more = f"\n\n... {last - found[-1].id} newer ones." if found[-1].id < last else ""
            return {"text": "\n\n".join(map(message_text, found)) + more}

        return await self._do("channel_read", {"since": since, "limit": limit}, read)

    # The inbox

    async def inbox_read(self) -> str:
        """Read your unread mentions. Reading leaves them unread: they are handled when your run ends well."""

        def read(turn: Turn) -> dict[str, Any]:
            batch = inbox.unread(turn.connection, turn.room.id, turn.actor.name)
            left = inbox.waiting(turn.connection, turn.room.id).get(turn.actor.name, 0) - len(batch)
            return {"text": mail_text(batch, left), **inbox.marks(batch)}

        return await self._do("inbox_read", {}, read)

    async def inbox_ack(self, until: int) -> str:
        """Mark mentions as handled now, instead of when your run ends well: they will not be delivered again.

        Args:
            until: The number of the last message that you have handled; older ones are handled with it.
        """

        def acknowledge(turn: Turn) -> dict[str, Any]:
            run = turn.actor.run
            shown = inbox.seen(turn.connection, turn.room.id, run).until if run else 0
            if not 1 <= until <= shown:
                known = f"You have seen your inbox up to {shown}." if shown else "Read it first with inbox_read."
                raise UsageError(f"until: you have not seen message {until} in your inbox", hint=known)
            mine = records.shown(turn.connection, turn.room.id, run) if run else ()
            done = records.mark(
                turn.connection, turn.room.id, turn.actor.name, was="unread", now="done", until=until, only=mine
            )
            return {"text": f"{len(done)} handled.", "messages": [number for _, number in done]}

        return await self._do("inbox_ack", {"until": until}, acknowledge)

    async def no_action(self, reason: str | None = None) -> str:
        """Say that there is nothing for you to do. Wakes nobody; use it instead of a message that only acknowledges.

        Args:
            reason: Why, in a line.
        """
        why = None if reason is None else check_line(reason, "the reason")

        def note(turn: Turn) -> dict[str, Any]:
            turn.tell("no_action", reason=why)
            return {"text": "Noted. Nobody is woken."}

        return await self._do("no_action", {"reason": reason}, note)

    # The team

    async def status_set(self, task: str | None = None, state: str | None = None) -> str:
        """Tell the team what you are at; team_list shows it. What you leave out stays; an empty text clears it.

        Args:
            task: What you are working on.
            state: How it stands, such as "waiting for review".
        """
        given = {"task": task, "state": state}
        values = {
            name: (check_line(text, name) if text.strip() else None) for name, text in given.items() if text is not None
        }
        if not values:
            raise UsageError("neither task nor state is given", hint="Give at least one of them.")

        def change(turn: Turn) -> dict[str, Any]:
            records.change_seat(turn.connection, turn.room.id, turn.actor.name, turn.at, **values)
            turn.tell("status", **values)
            return {"text": "The team can see it."}

        return await self._do("status_set", given, change)

    async def team_list(self) -> str:
        """List the team: who is in the room, what they are at, who has which role."""

        def look(turn: Turn) -> dict[str, Any]:
            seats = records.seats_of(turn.connection, turn.room.id)
            return {"text": team_text(seats, turn.room, turn.actor.name)}

        return await self._do("team_list", {}, look)

    # Documents

    async def document_read(self, file: str | None = DEFAULT) -> str:
        """Read a document of the team. The first line names its base, which document_write takes.

        Args:
            file: Its path, such as notes.md or plan/week-1.md.
        """
        found = await self._room.documents.read(self._actor, file)
        return f"[{found['path']}, base {found['digest']}]\n{found['content']}"

    async def document_write(self, content: str, file: str | None = DEFAULT, base: str | None = None) -> str:
        """Write a document of the team: all of it is replaced. Read it first, unless it is new.

        Args:
            content: The whole new text.
            file: Its path, such as notes.md or plan/week-1.md.
            base: The base that document_read showed; if the document has changed since, you are told how.
        """
        return _written(await self._room.documents.write(self._actor, file, content, base))

    async def document_append(self, content: str, file: str | None = DEFAULT) -> str:
        """Add to the end of a document of the team; it is made if there is none.

        Args:
            content: What to add.
            file: Its path, such as notes.md or plan/week-1.md.
        """
        return _written(await self._room.documents.append(self._actor, file, content))

    async def document_create(self, file: str, content: str) -> str:
        """Make a new document of the team.

        Args:
            file: Its path, such as notes.md or plan/week-1.md. Folders are made as needed.
            content: Its text.
        """
        return _written(await self._room.documents.create(self._actor, file, content))

    async def document_list(self) -> str:
        """List the documents of the team, with their sizes."""
        found = await self._room.documents.list(self._actor)
        lines = [f"{one['path']}  {one['size']:,} bytes" for one in found["documents"]]
        return "\n".join(lines) or "There are no documents yet."

    async def document_suggest(self, suggestion: str, file: str | None = DEFAULT) -> str:
        """Suggest a change of a document to its owner, who is told and decides.

        Args:
            suggestion: What to change, and why.
            file: The document that it is about.
        """
        path = check_path(file or DEFAULT)
        check_text(suggestion, "the suggestion")

        def suggest(turn: Turn) -> dict[str, Any]:
            owner = turn.room.owner
            if owner is None or owner == turn.actor.name:
                why = "the documents have no owner" if owner is None else "you are the owner of the documents"
                raise Refused(f"{why}: there is nobody to suggest it to", hint="Write it yourself: document_write.")
            said = Said.quote(f"A suggestion for {path}:\n{suggestion}")
            posted = channel.post(turn, said, kind="suggestion", to=[owner])
            return {"text": f"Suggested to {owner} as message {posted.id}.", **posted.as_dict()}

        return await self._do("document_suggest", {"suggestion": suggestion, "file": file}, suggest)

    # Resources

    async def resource_create(self, content: str, type: str = resources.PLAIN) -> str:
        """Keep a large text for the team under an id, to refer to it instead of repeating it.

        Args:
            content: The text.
            type: What it is, such as text/plain or text/x-diff.
        """

        def keep(turn: Turn) -> dict[str, Any]:
            id = resources.keep(turn, content, type)
            return {"text": f"Kept as resource {id}.", "id": id}

        return await self._do("resource_create", {"content": content, "type": type}, keep)

    async def resource_read(self, id: str) -> str:
        """Read a resource, whole.

        Args:
            id: Its id, as a message or resource_create named it.
        """

        def fetch(turn: Turn) -> dict[str, Any]:
            content, _ = resources.fetch(turn, id)
            return {"text": content}

        return await self._do("resource_read", {"id": id}, fetch)


def _written(result: Any) -> str:
    verb = "made" if result["new"] else "written"
    return f"{result['path']} was {verb} ({result['size']:,} bytes), base {result['digest']}."
