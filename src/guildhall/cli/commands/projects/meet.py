"""`guild meet WORKER|MEETING [MESSAGE]`: sends messages to a worker in a meeting, at a terminal or for a program.

Each turn connects to the hall again, because the hall may have exited since the last turn. Does not answer requests for
meetings (see `cli.commands.runs.answer`).

Invariant: turns share no state except for the recorded meeting.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import LIMITS, limits_of, read_text, worker_name
from guildhall.cli.command import OUTPUT, Context, argument, command, connect, run_interruptible
from guildhall.cli.follow import Follower
from guildhall.cli.format.commissions_and_meetings import print_change, print_exchange, print_meeting
from guildhall.cli.format.jobs import rename_run
from guildhall.cli.format.runs import print_next_steps
from guildhall.cli.prompt import run_trusted
from guildhall.cli.short_ids import ShortId, expand, is_kind, read_id
from guildhall.core.errors import GuildError, Interrupted, UsageError
from guildhall.core.ids import MEETING, is_id
from guildhall.core.text_checks import format_count

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.meetings.model import Exchange, MeetingDetails

_HELP = """\
Type a message and press Enter. A line that ends in \\ continues on the next line. Pasted text is one message.
Ctrl-C interrupts the answer. Ctrl-D or /leave leaves; the meeting stays open: guild meet {id}
/close closes the meeting and writes its notes.   /show prints its state.   /help prints this.
Unknown /commands are not sent. To send text that starts with /, put a space first."""
_COMMANDS = {
    "/leave": "leave",
    "/quit": "leave",
    "/exit": "leave",
    "/help": "help",
    "/?": "help",
    "/show": "show",
    "/close": "close",
}
_PASTE_TIMEOUT_S = 0.05  # wait for the next line of pasted input


@command(
    argument("who", metavar="WORKER|MEETING", help="a worker, or the id of a meeting to continue"),
    argument("message", metavar="MESSAGE", nargs="?", help="the first message; `-` reads standard input"),
    argument("--say", metavar="TEXT", action="append", default=[], help="another message; repeatable"),
    argument("--project", metavar="NAME", help="the project (default: the project of this folder)"),
    argument("--model", metavar="M", help="the model if the worker file names none"),
    *LIMITS,
    argument("--renew", action="store_true", help="continue in a new session, with a summary of the old one"),
    argument("--close", action="store_true", help="close the meeting, with notes and one commit on claude/main"),
    argument("--no-summary", action="store_true", help="with --close: write the notes without a model's summary"),
    argument("--leave-work", action="store_true", help="with --close: leave the work on its branch"),
    OUTPUT,
)
def meet(ctx: Context) -> int:
    args, screen = ctx.args, ctx.screen
    close_options = {"summarise": not args.no_summary, "leave_work": args.leave_work}
    conversation = Conversation(screen, model=args.model, limits=limits_of(args), close_options=close_options)
    who = conversation.expand(read_id(args.who))
    is_meeting = is_id(who, MEETING)
    who = who if is_meeting else worker_name(who)
    if is_meeting and args.project:
        raise UsageError("--project cannot be used with a meeting id", hint="Omit --project.")
    if args.renew and not is_meeting:
        raise UsageError("--renew requires a meeting id", hint="For example: guild meet t-7k2m9x4qpw --renew")
    if (args.no_summary or args.leave_work) and not args.close:
        raise UsageError("--no-summary and --leave-work require --close", hint="Add --close.")
    if is_meeting and args.close and args.message is None and not args.say:
        return conversation.run_turn(lambda: conversation.close(who))
    is_at_terminal = screen.is_interactive and screen.form == "text"
    first = _first_message(args.message, args.say, is_at_terminal=is_at_terminal, is_meeting=is_meeting)
    if is_at_terminal and not args.say and not args.close:
        if is_meeting:
            return conversation.continue_at_terminal(who, first, renew=args.renew)
        return conversation.start(who, first, project=args.project)
    messages = [*([first] if first is not None else []), *args.say]
    if not is_meeting and not messages:
        raise UsageError("no message given", hint='Add one: guild meet WORKER "...", or --say "..."')
    return conversation.run_turn(
        lambda: conversation.send_all(
            who, messages, is_meeting=is_meeting, project=args.project, renew=args.renew, close=args.close
        )
    )


def resume_meeting(id: str, screen: Screen, **limits: Any) -> int:
    """Wait for the answer that is due in a meeting. At a terminal, continue the conversation."""
    conversation = Conversation(screen, limits=limits)
    id = conversation.expand(id)
    if not screen.is_interactive or screen.form != "text":
        return conversation.run_turn(lambda: conversation.send_all(id, (), is_meeting=True))
    return conversation.continue_at_terminal(id, None, renew=False)


def _first_message(given: str | None, more: list[str], *, is_at_terminal: bool, is_meeting: bool) -> str | None:
    """Return the first message from the command line or from standard input, or None."""
    if given is not None:
        return read_text(given, "message")
    if is_at_terminal or more or sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return None
    text = read_text("-", "message")
    return text if text.strip() or not is_meeting else None


class Conversation:
    """A meeting from the side of the user."""

    def __init__(
        self,
        screen: Screen,
        *,
        model: str | None = None,
        limits: Mapping[str, Any] | None = None,
        close_options: Mapping[str, bool] | None = None,
    ) -> None:
        """`limits`: the limits of a new meeting, or raised limits of a meeting that has stopped at a limit."""
        self._screen = screen
        self._close_options: dict[str, bool] = dict(close_options or {})
        self._model = model
        self._limits: dict[str, Any] = dict(limits or {})
        self._id = ""
        self._code = exit_codes.DONE
        self._client: HallClient  # connection of the current turn
        self._frame: Frame

    # at a terminal

    def start(self, worker: str, message: str | None, *, project: str | None) -> int:
        """Open a new meeting and converse in it."""
        while message is None:
            message = self._read_line(f"Your first message to {worker} > ")
            action = "leave" if message is None else self._read_action(message)
            if action == "leave":
                self._screen.note("No meeting was opened.")
                return exit_codes.DONE
            if action != "say":
                message = None
            if action in ("show", "close"):
                self._screen.note("No meeting is open yet. Your first message opens it.", "yellow")
        code = self.run_turn(partial(self._open, worker, [message], project))
        return self._converse() if code == exit_codes.DONE else code

    def continue_at_terminal(self, id: str, message: str | None, *, renew: bool) -> int:
        """Print the last exchange of a meeting, wait for the answer that is due, and converse."""
        messages = [] if message is None else [message]
        code = self.run_turn(partial(self._rejoin, id, messages, renew=renew))
        return self._converse() if code == exit_codes.DONE else code

    async def _rejoin(self, id: str, messages: Sequence[str], *, renew: bool) -> int:
        self._id = id
        details = await self._client.meetings.get(id)
        meeting, screen = details.meeting, self._screen
        screen.note(f"{id}: {meeting.worker} in {meeting.project}, since {meeting.created_at[:10]}", "dim")
        screen.note(screen.one_line(meeting.topic, 200), "dim")
        for path in meeting.linked:
            screen.note(f"linked: {screen.one_line(path, 200)}", "dim")
        if answered := [one for one in details.exchanges if one.answer]:
            print_exchange(answered[-1], meeting, screen)
        await self._send(messages, details.exchanges, renew=renew)
        return self._code if messages else exit_codes.DONE

    def _converse(self) -> int:
        """Read messages and commands until the user leaves or closes the meeting."""
        self._screen.note(f"{self._id} is open. /help explains the commands; Ctrl-D leaves.", "dim")
        while (line := self._read_line("> ")) is not None:
            match self._read_action(line):
                case "leave":
                    break
                case "show":
                    self.run_turn(self._show)
                case "close":
                    if self.run_turn(self._close) == exit_codes.DONE:
                        return exit_codes.DONE
                case "say":
                    self.run_turn(partial(self._say, [line]))
                case _:
                    continue
        self._screen.note(f"{self._id} stays open. Continue: guild meet {self._id}")
        return exit_codes.DONE

    def _read_action(self, line: str) -> str:
        """Return the action of a typed line: leave, show, close, say, or an empty text for no action."""
        typed = line.rstrip()
        word, _, rest = typed.partition(" ")
        if not typed.startswith("/") or "\n" in typed or not (word[1:].isalpha() or word in _COMMANDS):
            return "say" if typed.strip() else ""
        action = _COMMANDS.get(word)
        if action is None:
            self._screen.note(f"Unknown command {word}; nothing was sent. /help lists the commands.", "yellow")
        elif rest:
            self._screen.note(f"{word} accepts no text; nothing was done or sent.", "yellow")
        elif action == "help":
            self._screen.note(_HELP.format(id=self._id or "ID"))
        else:
            return action
        return ""

    def _read_line(self, prompt: str) -> str | None:
        """Return the typed or pasted input, or None if the user leaves. Ctrl-C discards unfinished input."""
        with suppress(ImportError):
            import_module("readline")  # makes the line editable
        self._screen.end_line()
        lines: list[str] = []
        while True:
            try:
                if not lines and not self._screen.out.isatty():  # otherwise `input` prints it
                    self._screen.prompt(prompt.rstrip())
                    self._screen.end_input()
                line = input(prompt if not lines and self._screen.out.isatty() else "")
            except EOFError:
                self._screen.note("")
                return "\n".join(lines) if lines else None
            except KeyboardInterrupt:
                self._screen.note("\nCtrl-D leaves.", "dim")
                lines = []
                continue
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\") and not select.select([sys.stdin], [], [], _PASTE_TIMEOUT_S)[0]:
                return "\n".join(lines)

    # by a program

    async def send_all(
        self,
        who: str,
        messages: Sequence[str],
        *,
        is_meeting: bool,
        project: str | None = None,
        renew: bool = False,
        close: bool = False,
    ) -> int:
        """Send messages one after another. The answers are the result. `who`: a meeting, or the worker of a new one."""
        before: Sequence[Exchange] = ()
        if is_meeting:
            self._id = who
            before = (await self._client.meetings.get(who)).exchanges
            if not await self._send(messages, before, renew=renew) and not close:
                self._print_no_answer_due()
        else:
            await self._open(who, messages, project)
        if close and self._code == exit_codes.DONE:
            await self._close()
        elif close:
            self._screen.note(f"{self._id} stays open. Close it: guild meet {self._id} --close")
        await self._print_result(before)
        return self._code

    def expand(self, text: str) -> str:
        """Return the id that a short id stands for; every other text unchanged."""
        if not isinstance(text, ShortId) or not is_kind(text, MEETING):
            return str(text)
        id = str(text)

        async def find() -> int:
            nonlocal id
            id = await expand(text, self._client)
            return exit_codes.DONE

        self.run_turn(find)
        return id

    async def close(self, id: str) -> int:
        """Close a meeting without joining it."""
        self._id = id
        before = (await self._client.meetings.get(id)).exchanges
        await self._close()
        await self._print_result(before)
        return self._code

    async def follow_answer(self, id: str, client: HallClient, frame: Frame) -> int:
        """Wait for the answer that is due. Used by commands that resume the run of a meeting."""
        self._id, self._client, self._frame = id, client, frame
        before = (await client.meetings.get(id)).exchanges
        if not await self._send((), before):
            self._print_no_answer_due()
        await self._print_result(before)
        return self._code

    async def _print_result(self, before: Sequence[Exchange]) -> None:
        """Print the meeting and the exchanges that are new or have changed."""
        if self._screen.form == "text":
            return
        details = await self._client.meetings.get(self._id)
        new = [one.as_dict() for one in details.exchanges if one not in before]
        run_asks = (await self._client.runs.get(details.meeting.run)).asks if details.meeting.run else ()
        asks = [ask.as_dict() for ask in run_asks if ask.status == "open"]
        data: dict[str, Any] = {
            **details.meeting.as_dict(),
            "exchanges": new,
            "answering": details.answering,
            "asks": asks,
        }
        self._screen.print_final(data)

    # turns

    async def _open(self, worker: str, messages: Sequence[str], project: str | None) -> int:
        """Open a meeting with the first message, and send all messages."""
        client, frame = self._client, self._frame
        open_meeting = partial(client.meetings.open, worker, messages[0], frame, project=project, **self._limits)
        meeting = await run_trusted(open_meeting, client, frame, self._screen, worker=worker)
        self._id, self._limits = meeting.id, {}
        if self._screen.form == "text":
            self._screen.note(f"{self._id}: {worker}", "dim")
        await self._follow(client.meetings.join(self._id, frame, messages=messages[1:]), messages, ())
        return self._code

    async def _say(self, messages: Sequence[str]) -> int:
        await self._send(messages, (await self._client.meetings.get(self._id)).exchanges)
        return self._code

    def _print_no_answer_due(self) -> None:
        self._screen.note(f'No answer is pending in {self._id}. Send a message: guild meet {self._id} "..."')

    async def _send(self, messages: Sequence[str], before: Sequence[Exchange], *, renew: bool = False) -> bool:
        """Send messages and print the answers. Return False if no answer was due. `before`: the earlier exchanges."""
        join = partial(self._client.meetings.join, self._id, self._frame, renew=renew, **self._limits)
        self._limits = {}  # a limit is raised once
        return await self._follow(join(messages=messages), messages, before)

    async def _follow(self, stream: AsyncGenerator[Event], messages: Sequence[str], before: Sequence[Exchange]) -> bool:
        """Follow the answers to messages, and to earlier messages. Print answers that the user did not see arrive."""
        meetings = self._client.meetings
        follower, ended_run_id, has_turn = Follower(self._client, self._screen), "", bool(messages)
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    has_turn, ended_run_id = True, event.run if event.type == "run_ended" else ""
                    if event.type != "run_started" or self._screen.form != "text":
                        await follower.handle(event)
        except GuildError:
            self._print_unanswered(messages, before, (await meetings.get(self._id)).exchanges)
            raise
        self._screen.end_line()
        if not has_turn:
            return False
        details = await meetings.get(self._id)
        if self._screen.form == "text" and not self._screen.is_one_terminal:
            self._print_answers(messages, before, details.exchanges)
        # If the run still listens, an answer that is due now belongs to a message of another client.
        self._code = await self._exit_code(details, ended_run_id) if ended_run_id else exit_codes.DONE
        if self._code != exit_codes.DONE:
            self._print_unanswered(messages, before, details.exchanges)
        return True

    def _print_answers(self, messages: Sequence[str], before: Sequence[Exchange], after: Sequence[Exchange]) -> None:
        """Print the answers to the messages as results. If there are messages, print other answers as notes."""
        own, known = _own_exchanges(messages, before, after), {one.number for one in before}
        for one in after:
            if not one.answer or one in before:
                continue
            if one in own or not messages:
                self._screen.result(one.answer)
            elif one.number in known:  # other new answers belong to messages of other clients
                self._screen.note(one.answer)

    def _print_unanswered(self, messages: Sequence[str], before: Sequence[Exchange], after: Sequence[Exchange]) -> None:
        if count := sum(not one.answer for one in _own_exchanges(messages, before, after)):
            text = f"Recorded {format_count(count, 'message')} without an answer."
            self._screen.note(f"{text} The worker answers when the meeting continues.")

    async def _exit_code(self, details: MeetingDetails, ended_run_id: str) -> int:
        """Return the exit code after a turn, and print the reason for a missing answer."""
        if not details.answering or not details.meeting.run:
            return exit_codes.DONE
        run = await self._client.runs.get(ended_run_id)
        if error := run.run.error:
            self._screen.note(f"guild: {error['message']}", "red")
            if hint := error.get("hint"):
                self._screen.note(rename_run(hint, run.run))
        print_next_steps(run, self._screen)
        return exit_codes.run_exit_code(run.run.status, run.run.error_code)

    async def _close(self) -> int:
        self._screen.note("Closing the meeting and writing its notes.", "dim")
        meeting = await self._client.meetings.close(self._id, self._frame, **self._close_options)
        if self._screen.form == "text":
            print_change(meeting, self._screen)
        return exit_codes.DONE

    async def _show(self) -> int:
        print_meeting(await self._client.meetings.get(self._id), self._screen)
        return exit_codes.DONE

    # the hall

    def run_turn(self, work: Callable[[], Awaitable[int]]) -> int:
        """Connect to the hall and await `work`. In a conversation at a terminal, an error ends only the turn."""
        is_conversing = bool(self._id) and self._screen.is_interactive and self._screen.form == "text"
        try:
            return run_interruptible(self._with_hall(work), self._screen)
        except GuildError as error:
            if not is_conversing:
                raise
            if not isinstance(error, Interrupted):
                self._screen.error(error)
                return exit_codes.FAILED
        with suppress(GuildError):
            asyncio.run(self._with_hall(self._interrupt))
        self._screen.note("The answer was interrupted. Type a new message.", "yellow")
        return exit_codes.DONE

    async def _with_hall(self, work: Callable[[], Awaitable[int]]) -> int:
        self._client, self._frame = await connect(self._screen, model=self._model)
        try:
            return await work()
        finally:
            await self._client.close()

    async def _interrupt(self) -> int:
        await self._client.meetings.interrupt(self._id)
        return exit_codes.DONE


def _own_exchanges(
    messages: Sequence[str], before: Sequence[Exchange], after: Sequence[Exchange]
) -> Sequence[Exchange]:
    """Return the exchanges of messages that this command sent. Other clients may send messages at the same time."""
    rest, known = list(messages), {one.number for one in before}
    own: list[Exchange] = []
    for one in after:
        if one.number not in known and one.user_message in rest:
            rest.remove(one.user_message)
            own.append(one)
    return own
