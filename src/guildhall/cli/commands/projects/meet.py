"""`guild meet WORKER|MEETING [MESSAGE]`: talks with a worker in a meeting, at a terminal or for a program.

Each turn connects to the hall again, because the hall may have exited or been replaced while the user was thinking.
Does not answer requests for meetings (see `cli.commands.runs.answer`).

Invariant: only the recorded meeting connects two turns.
"""

from __future__ import annotations

import asyncio
import select
import sys
from contextlib import aclosing, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.arguments import read_text, worker_name
from guildhall.cli.command import OUTPUT, Context, argument, command, connect, run_interruptible
from guildhall.cli.follow import Follower
from guildhall.cli.format.jobs import rename_run
from guildhall.cli.format.projects import print_change, print_exchange, print_meeting
from guildhall.cli.format.runs import print_next_steps
from guildhall.cli.prompt import run_trusted
from guildhall.cli.short_ids import ShortId, expand, is_kind, read_id
from guildhall.core.errors import GuildError, Interrupted, UsageError
from guildhall.core.ids import MEETING, is_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

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
_PASTE_TIMEOUT_S = 0.05  # for the rest of pasted input


@command(
    argument("who", metavar="WORKER|MEETING", help="a worker, or the id of a meeting to continue"),
    argument("words", metavar="MESSAGE", nargs="?", help="the first message; `-` reads standard input"),
    argument("--say", metavar="TEXT", action="append", default=[], help="another message; repeatable"),
    argument("--project", metavar="NAME", help="the project (default: the project of this folder)"),
    argument("--model", metavar="M", help="the model if the worker file names none"),
    argument("--renew", action="store_true", help="continue in a new session, with a summary of the old one"),
    argument("--close", action="store_true", help="close the meeting, with notes and one commit on claude/main"),
    argument("--no-summary", action="store_true", help="with --close: write the notes without a model's summary"),
    argument("--leave-work", action="store_true", help="with --close: leave the work on its branch"),
    OUTPUT,
)
def meet(ctx: Context) -> int:
    args, screen = ctx.args, ctx.screen
    how = {"summarise": not args.no_summary, "leave_work": args.leave_work}
    conversation = Conversation(screen, model=args.model, how_to_close=how)
    who = conversation.expand(read_id(args.who))
    back = is_id(who, MEETING)
    who = who if back else worker_name(who)
    if back and args.project:
        raise UsageError("--project cannot be used with a meeting id", hint="Omit --project.")
    if args.renew and not back:
        raise UsageError("--renew requires a meeting id", hint="For example: guild meet t-7k2m9x4qpw --renew")
    if (args.no_summary or args.leave_work) and not args.close:
        raise UsageError("--no-summary and --leave-work require --close", hint="Add --close.")
    if back and args.close and args.words is None and not args.say:
        return conversation.run_turn(lambda: conversation.close(who))
    at_terminal = screen.is_interactive and screen.form == "text"
    words = _first_words(args.words, args.say, at_terminal=at_terminal, back=back)
    if at_terminal and not args.say and not args.close:
        if back:
            return conversation.continue_at_terminal(who, words, renew=args.renew)
        return conversation.start(who, words, project=args.project)
    said = [*([words] if words is not None else []), *args.say]
    if not back and not said:
        raise UsageError("no message given", hint='Add one: guild meet WORKER "...", or --say "..."')
    return conversation.run_turn(
        lambda: conversation.send_all(who, said, back=back, project=args.project, renew=args.renew, close=args.close)
    )


def resume_meeting(id: str, screen: Screen, **more: Any) -> int:
    """Resume a meeting: wait for the answer that is due; at a terminal, continue the conversation."""
    conversation = Conversation(screen, more=more)
    id = conversation.expand(id)
    if not screen.is_interactive or screen.form != "text":
        return conversation.run_turn(lambda: conversation.send_all(id, (), back=True))
    return conversation.continue_at_terminal(id, None, renew=False)


def _first_words(given: str | None, more: list[str], *, at_terminal: bool, back: bool) -> str | None:
    """Return the first words from the command line or from the standard input of a program, or None."""
    if given is not None:
        return read_text(given, "text")
    if at_terminal or more or sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return None
    text = read_text("-", "text")
    return text if text.strip() or not back else None


class Conversation:
    """One user in one meeting."""

    def __init__(
        self,
        screen: Screen,
        *,
        model: str | None = None,
        more: Mapping[str, Any] | None = None,
        how_to_close: Mapping[str, bool] | None = None,
    ) -> None:
        """`more`: raised limits, for a meeting that has stopped at a limit."""
        self._screen = screen
        self._how_to_close: dict[str, bool] = dict(how_to_close or {})
        self._model = model
        self._more: dict[str, Any] = dict(more or {})
        self._id = ""
        self._code = exit_codes.DONE
        self._client: HallClient  # of the current turn
        self._frame: Frame

    # at a terminal

    def start(self, worker: str, words: str | None, *, project: str | None) -> int:
        """Open a new meeting and continue it."""
        while words is None:
            words = self._read_line(f"Your first message to {worker} > ")
            meant = "leave" if words is None else self._meaning_of(words)
            if meant == "leave":
                self._screen.note("No meeting was opened.")
                return exit_codes.DONE
            if meant != "say":
                words = None
            if meant in ("show", "close"):
                self._screen.note("No meeting is open yet. Your first message opens it.", "yellow")
        code = self.run_turn(partial(self._open, worker, words, project))
        return self._converse() if code == exit_codes.DONE else code

    def continue_at_terminal(self, id: str, words: str | None, *, renew: bool) -> int:
        """Return to a meeting: print its last exchange, wait for the answer that is due, and continue it."""
        code = self.run_turn(partial(self._rejoin, id, renew=renew))
        if words and code == exit_codes.DONE:
            code = self.run_turn(partial(self._say, words))
        return self._converse() if code == exit_codes.DONE else code

    async def _rejoin(self, id: str, *, renew: bool) -> int:
        self._id = id
        shown = await self._client.meetings.get(id)
        meeting, screen = shown.meeting, self._screen
        screen.note(f"{id}: {meeting.worker} in {meeting.project}, since {meeting.created_at[:10]}", "dim")
        screen.note(screen.one_line(meeting.topic, 200), "dim")
        for path in meeting.linked:
            screen.note(f"linked: {screen.one_line(path, 200)}", "dim")
        if answered := [one for one in shown.exchanges if one.answer]:
            print_exchange(answered[-1], meeting, screen)
        await self._follow_turn(self._client.meetings.join(id, self._frame, renew=renew, **self._more))
        return exit_codes.DONE

    def _converse(self) -> int:
        """Read and answer words until the user leaves or closes the meeting."""
        self._screen.note(f"{self._id} is open. /help explains the commands; Ctrl-D leaves.", "dim")
        while (words := self._read_line("> ")) is not None:
            match self._meaning_of(words):
                case "leave":
                    break
                case "show":
                    self.run_turn(self._show)
                case "close":
                    if self.run_turn(self._close) == exit_codes.DONE:
                        return exit_codes.DONE
                case "say":
                    self.run_turn(partial(self._say, words))
                case _:
                    continue
        self._screen.note(f"{self._id} stays open. Continue: guild meet {self._id}")
        return exit_codes.DONE

    def _meaning_of(self, words: str) -> str:
        """Return the meaning of the input: leave, show, close or say; empty if nothing is left to do."""
        typed = words.rstrip()
        word, _, rest = typed.partition(" ")
        if not typed.startswith("/") or "\n" in typed or not (word[1:].isalpha() or word in _COMMANDS):
            return "say" if typed.strip() else ""
        meant = _COMMANDS.get(word)
        if meant is None:
            self._screen.note(f"Unknown command {word}; nothing was sent. /help lists the commands.", "yellow")
        elif rest:
            self._screen.note(f"{word} accepts no text; nothing was done or sent.", "yellow")
        elif meant == "help":
            self._screen.note(_HELP.format(id=self._id or "ID"))
        else:
            return meant
        return ""

    def _read_line(self, prompt: str) -> str | None:
        """Return the typed or pasted input, or None if the user leaves. Ctrl-C discards unfinished input."""
        with suppress(ImportError):
            import_module("readline")  # it is what makes a line editable
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
        said: Sequence[str],
        *,
        back: bool,
        project: str | None = None,
        renew: bool = False,
        close: bool = False,
    ) -> int:
        """Say several things, one after another. The answers are the result."""
        rest, before = list(said), 0
        if back:
            shown = await self._client.meetings.get(who)
            self._id, before = shown.meeting.id, len(shown.exchanges)
            come = self._client.meetings.join(who, self._frame, renew=renew, **self._more)
            seen = await self._follow_turn(come, print_answer=self._screen.note if rest else self._screen.result)
            if not seen and not rest and not close:
                self._print_no_answer_due()
        else:
            await self._open(who, rest.pop(0), project)
        while rest and self._code == exit_codes.DONE:
            await self._say(rest.pop(0))
        if close and self._code == exit_codes.DONE:
            await self._close()
        await self._print_result(before)
        return self._code

    def expand(self, text: str) -> str:
        """Return the id that a short id stands for; every other text unchanged."""
        if not isinstance(text, ShortId) or not is_kind(text, MEETING):
            return str(text)
        found = text

        async def find() -> int:
            nonlocal found
            found = await expand(text, self._client)
            return exit_codes.DONE

        self.run_turn(find)
        return found

    async def close(self, id: str) -> int:
        """Close a meeting without joining it."""
        self._id = id
        before = len((await self._client.meetings.get(id)).exchanges)
        await self._close()
        await self._print_result(before)
        return self._code

    async def follow_answer(self, id: str, client: HallClient, frame: Frame) -> int:
        """Wait for the answer that is due, for commands that resume the run of a meeting."""
        self._id, self._client, self._frame = id, client, frame
        before = sum(bool(one.answer) for one in (await client.meetings.get(id)).exchanges)
        if not await self._follow_turn(client.meetings.join(id, frame, **self._more)):
            self._print_no_answer_due()
        await self._print_result(before)
        return self._code

    async def _print_result(self, before: int) -> None:
        if self._screen.form == "text":
            return
        shown = await self._client.meetings.get(self._id)
        new = [one.as_dict() for one in shown.exchanges[before:]]
        of_run = (await self._client.runs.get(shown.meeting.run)).asks if shown.meeting.run else ()
        asks = [ask.as_dict() for ask in of_run if ask.status == "open"]
        data: dict[str, Any] = {**shown.meeting.as_dict(), "exchanges": new, "answering": shown.answering, "asks": asks}
        self._screen.print_final(data)

    # turns

    async def _open(self, worker: str, words: str, project: str | None) -> int:
        client, frame = self._client, self._frame
        open_meeting = partial(client.meetings.open, worker, words, frame, project=project)
        meeting = await run_trusted(open_meeting, client, frame, self._screen, worker=worker)
        self._id = meeting.id
        if self._screen.form == "text":
            self._screen.note(f"{self._id}: {worker}", "dim")
        await self._follow_turn(client.meetings.join(self._id, frame))
        return self._code

    async def _say(self, words: str) -> int:
        meetings = self._client.meetings
        known = len((await meetings.get(self._id)).exchanges)  # others may say something at the same time
        await self._follow_turn(meetings.say(self._id, words, self._frame), said=(words, known))
        return self._code

    def _print_no_answer_due(self) -> None:
        self._screen.note(f'No answer is pending in {self._id}. Send a message: guild meet {self._id} "..."')

    async def _follow_turn(
        self,
        stream: AsyncGenerator[Event],
        *,
        said: tuple[str, int] | None = None,
        print_answer: Callable[[str], None] | None = None,
    ) -> bool:
        """Follow one turn and print its answer, unless the user saw it being written. Return True if there was one.

        `said`: the words that are answered, and the number of exchanges before them; None for an answer that was due.
        `print_answer`: by default, the answer is a result.
        """
        follower = Follower(self._client, self._screen)
        ended, seen = "", said is not None
        async with aclosing(stream) as events:
            async for event in events:
                seen, ended = True, event.run if event.type == "run_ended" else ""
                if event.type != "run_started" or self._screen.form != "text":
                    await follower.handle(event)
        self._screen.end_line()
        if not seen:
            return False
        shown = await self._client.meetings.get(self._id)
        if self._screen.form == "text" and not self._screen.is_one_terminal:
            answer = _answer(shown.exchanges, said, over=bool(ended))
            (print_answer or self._screen.result)(answer) if answer else None
        # It listens again: whatever is due now was said by others meanwhile.
        self._code = await self._exit_code(shown, ended) if ended else exit_codes.DONE
        return True

    async def _exit_code(self, shown: MeetingDetails, ended: str) -> int:
        """Return the exit code after a turn, and print the reason for a missing answer."""
        if not shown.answering or not shown.meeting.run:
            return exit_codes.DONE
        run = await self._client.runs.get(ended)
        if error := run.run.error:
            self._screen.note(f"guild: {error['message']}", "red")
            if hint := error.get("hint"):
                self._screen.note(rename_run(hint, run.run))
        print_next_steps(run, self._screen)
        return exit_codes.run_exit_code(run.run.status, run.run.error_code)

    async def _close(self) -> int:
        self._screen.note("Closing the meeting and writing its notes.", "dim")
        meeting = await self._client.meetings.close(self._id, self._frame, **self._how_to_close)
        if self._screen.form == "text":
            print_change(meeting, self._screen)
        return exit_codes.DONE

    async def _show(self) -> int:
        print_meeting(await self._client.meetings.get(self._id), self._screen)
        return exit_codes.DONE

    # the hall

    def run_turn(self, work: Callable[[], Awaitable[int]]) -> int:
        """Do something with the hall. At a terminal, an error ends the turn but not the conversation."""
        conversing = bool(self._id) and self._screen.is_interactive and self._screen.form == "text"
        try:
            return run_interruptible(self._with_hall(work), self._screen)
        except GuildError as error:
            if not conversing:
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


def _answer(exchanges: Sequence[Exchange], said: tuple[str, int] | None, *, over: bool) -> str:
    """Return the answer to a message, or the last answer. `over`: no other answer will come."""
    if said is None:
        return next((one.answer for one in reversed(exchanges) if one.answer or over), "")
    words, known = said
    return next((one.answer for one in exchanges[known:] if one.words == words), "")
