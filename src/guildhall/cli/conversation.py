"""A conversation at the terminal, or by a program: words in, answers out, turn by turn.

Each turn reaches the hall anew: between two of them the person thinks, and the hall may have left, or died, and be
another one by then. What was said is on record; nothing else connects one turn with the next.
"""

from __future__ import annotations

import asyncio
import select
import sys
from contextlib import aclosing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.connection import connect, run_interruptible
from guildhall.cli.follow import Follower
from guildhall.cli.format.meetings import print_change, print_exchange, print_meeting
from guildhall.cli.format.runs import how_to_go_on
from guildhall.cli.trust_prompt import run_trusted
from guildhall.core.errors import GuildError, Interrupted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient
    from guildhall.projects.meetings.model import Exchange, MeetingShown

_HELP = """\
Say something and press Enter; a line that ends in \\ goes on in the next one, and what is pasted is one message.
Ctrl-C ends the answer under way. Ctrl-D or /leave leaves: the meeting stays open, and `guild meet {id}` comes back.
/close closes the meeting and writes its notes.   /show says how it stands.   /help prints this.
What begins with a / and is none of these is not said; with a space before it, it is."""
_SLASHED = {
    "/leave": "leave",
    "/quit": "leave",
    "/exit": "leave",
    "/help": "help",
    "/?": "help",
    "/show": "show",
    "/close": "close",
}
_PASTED = 0.05  # seconds in which the rest of what was pasted comes


class Conversation:
    """One user in one meeting."""

    def __init__(self, screen: Screen, *, model: str | None = None, more: Mapping[str, Any] | None = None) -> None:
        """`more`: what the meeting may use up from now on, where it has stopped at a limit."""
        self._screen = screen
        self._model = model
        self._more: dict[str, Any] = dict(more or {})
        self._id = ""
        self._code = exit_codes.DONE

    @property
    def is_open(self) -> bool:
        """Whether there is a meeting."""
        return bool(self._id)

    # at a terminal

    def begin(self, worker: str, words: str | None, *, project: str | None) -> int:
        """A new meeting."""
        while words is None:
            words = self._line(f"What is it about? ({worker} hears it) > ")
            meant = "leave" if words is None else self._meant(words)
            if meant == "leave":
                self._screen.note("Nothing was opened.")
                return exit_codes.DONE
            if meant != "say":
                words = None
            if meant in ("show", "close"):
                self._screen.note("No meeting is open yet; it is once you have said something.", "yellow")
        return self._turn(lambda client, frame: self._opened(client, frame, worker, words, project))

    def come_back(self, id: str, words: str | None, *, renew: bool) -> int:
        """A meeting that there is: where it was, then on from there."""

        async def work(client: HallClient, frame: Frame) -> int:
            self._id = id
            shown = await client.meeting(id)
            self._say_where_it_was(shown)
            await self._told(client, client.meeting_come(id, frame, renew=renew, **self._more))
            return exit_codes.DONE

        code = self._turn(work)
        return self._turn(lambda client, frame: self._said(client, frame, words)) if words and not code else code

    def go_on(self) -> int:
        """Turn by turn, until the person leaves or closes."""
        self._screen.note(f"{self._id} is open. /help says how this works; Ctrl-D leaves.", "dim")
        while (words := self._line("> ")) is not None:
            match self._meant(words):
                case "leave":
                    break
                case "show":
                    self._turn(self._show)
                case "close":
                    if self._turn(self._close) == exit_codes.DONE:
                        return exit_codes.DONE
                case "say":
                    self._turn(lambda client, frame, words=words: self._said(client, frame, words))
                case _:
                    continue
        self._screen.note(f"{self._id} stays open. Come back with: guild meet {self._id}")
        return exit_codes.DONE

    def _meant(self, words: str) -> str:
        """What a person means by what they type: leave, show, close, say; empty: nothing is left to be done."""
        typed = words.rstrip()
        word, _, rest = typed.partition(" ")
        if not typed.startswith("/") or "\n" in typed or not (word[1:].isalpha() or word in _SLASHED):
            return "say" if typed.strip() else ""
        meant = _SLASHED.get(word)
        if meant is None:
            self._screen.note(f"There is no {word}, and it was not said. /help says what there is.", "yellow")
        elif rest:
            self._screen.note(f"{word} stands alone: nothing was done, and nothing was said.", "yellow")
        elif meant == "help":
            self._screen.note(_HELP.format(id=self._id or "ID"))
        else:
            return meant
        return ""

    def _line(self, prompt: str) -> str | None:
        """What the person types or pastes; None: they leave. Ctrl-C takes back what is half typed."""
        with suppress(ImportError):
            import_module("readline")  # it is what makes a line editable
        self._screen.end_line()
        told: list[str] = []
        while True:
            try:
                line = input(self._prompt(prompt if not told else ""))
            except EOFError:
                self._screen.note("")
                return "\n".join(told) if told else None
            except KeyboardInterrupt:
                self._screen.note("\nCtrl-D leaves.", "dim")
                told = []
                continue
            told.append(line.removesuffix("\\"))
            if not line.endswith("\\") and not select.select([sys.stdin], [], [], _PASTED)[0]:
                return "\n".join(told)

    def _prompt(self, text: str) -> str:
        """What `input` is to print: it prints to standard output, which may be no terminal."""
        if self._screen.out.isatty() or not text:
            return text
        self._screen.prompt(text.rstrip())
        self._screen.entered()
        return ""

    # by a program

    def scripted(
        self, who: str, said: Sequence[str], *, back: bool, project: str | None, renew: bool, close: bool
    ) -> int:
        """All that is said, one after another; the answers are the result."""

        async def work(client: HallClient, frame: Frame) -> int:
            rest = list(said)
            if back:
                self._id = (await client.meeting(who)).meeting.id
                before = len((await client.meeting(who)).exchanges)
                come = client.meeting_come(who, frame, renew=renew, **self._more)
                seen = await self._told(client, come, told=self._screen.note if rest else self._screen.result)
                if not seen and not rest and not close:
                    self._say_nothing_is_due()
            else:
                before = 0
                await self._opened(client, frame, who, rest.pop(0), project)
            while rest and self._code == exit_codes.DONE:
                await self._said(client, frame, rest.pop(0))
            if close and self._code == exit_codes.DONE:
                await self._close(client, frame)
            await self._print_result(client, before)
            return self._code

        return self._turn(work)

    async def once(self, id: str, client: HallClient, frame: Frame) -> int:
        """What is left to be answered in a meeting, and nothing more; for commands that let its run go on."""
        self._id = id
        before = sum(bool(one.answer) for one in (await client.meeting(id)).exchanges)
        if not await self._told(client, client.meeting_come(id, frame, **self._more)):
            self._say_nothing_is_due()
        await self._print_result(client, before)
        return self._code

    async def _print_result(self, client: HallClient, before: int) -> None:
        shown = await client.meeting(self._id)
        if self._screen.wanted.form == "text":
            return
        new = [one.as_dict() for one in shown.exchanges[before:]]
        of_run = (await client.show(shown.meeting.run)).asks if shown.meeting.run else ()
        asks = [ask.as_dict() for ask in of_run if ask.status == "open"]
        told: dict[str, Any] = {**shown.meeting.as_dict(), "exchanges": new, "answering": shown.answering, "asks": asks}
        self._screen.last(told)

    # turns

    async def _opened(self, client: HallClient, frame: Frame, worker: str, words: str, project: str | None) -> int:
        meeting = await run_trusted(
            lambda: client.meeting_open(worker, words, frame, project=project),
            client,
            frame,
            self._screen,
            worker=worker,
        )
        self._id = meeting.id
        if self._screen.wanted.form == "text":
            self._screen.note(f"{self._id}: {worker}", "dim")
        await self._told(client, client.meeting_come(self._id, frame))
        return self._code

    async def _said(self, client: HallClient, frame: Frame, words: str) -> int:
        known = len((await client.meeting(self._id)).exchanges)  # others may say something at the same time
        await self._told(client, client.meeting_say(self._id, words, frame), said=(words, known))
        return self._code

    def _say_nothing_is_due(self) -> None:
        self._screen.note(f'{self._id} owes no answer. Say something: guild meet {self._id} "..."')

    async def _told(
        self,
        client: HallClient,
        stream: AsyncIterator[Event],
        *,
        said: tuple[str, int] | None = None,
        told: Callable[[str], None] | None = None,
    ) -> bool:
        """One turn: its events as they come, and in the end the answer where it was not seen while it was written.

        `said`: the words that it answers, and how many exchanges there were before; None: what was due. `told`: how the
        answer is printed. Whether there was anything.
        """
        follower = Follower(client, self._screen)
        ended, seen = "", said is not None
        async with aclosing(cast("AsyncGenerator[Event]", stream)) as events:
            async for event in events:
                seen, ended = True, event.run if event.type == "run_ended" else ""
                if event.type != "run_started" or self._screen.wanted.form != "text":
                    await follower.tell(event)
        self._screen.end_line()
        if not seen:
            return False
        shown = await client.meeting(self._id)
        if self._screen.wanted.form == "text" and not self._screen.one_terminal:
            answer = _answer(shown.exchanges, said, over=bool(ended))
            (told or self._screen.result)(answer) if answer else None
        # It listens again: whatever is due now was said by others meanwhile.
        self._code = await self._standing(client, shown, ended) if ended else exit_codes.DONE
        return True

    async def _standing(self, client: HallClient, shown: MeetingShown, ended: str) -> int:
        """The exit code after a turn; what keeps an answer from coming is said."""
        if not shown.answering or not shown.meeting.run:
            return exit_codes.DONE
        run = await client.show(ended)
        if error := run.run.error:
            self._screen.note(f"guild: {error.get('message')}", "red")
            if error.get("hint"):
                self._screen.note(str(error["hint"]).replace(run.run.id, self._id))
        for line in how_to_go_on(run, self._screen):
            self._screen.note(line.replace(run.run.id, self._id))
        return exit_codes.of_run(run.run.status, (run.run.error or {}).get("code"))

    async def _close(self, client: HallClient, frame: Frame) -> int:
        self._screen.note("Closing; the notes are being written.", "dim")
        meeting = await client.meeting_close(self._id, frame)
        if self._screen.wanted.form == "text":
            print_change(meeting, self._screen)
        return exit_codes.DONE

    async def _show(self, client: HallClient, frame: Frame) -> int:
        print_meeting(await client.meeting(self._id), self._screen)
        return exit_codes.DONE

    def _say_where_it_was(self, shown: MeetingShown) -> None:
        meeting = shown.meeting
        self._screen.note(
            f"{meeting.id}: {meeting.worker} in {meeting.project}, since {meeting.created_at[:10]}", "dim"
        )
        self._screen.note(self._screen.one_line(meeting.topic, 200), "dim")
        for path in meeting.linked:
            self._screen.note(f"linked: {self._screen.one_line(path, 200)}", "dim")
        answered = [one for one in shown.exchanges if one.answer]
        if answered:
            print_exchange(answered[-1], meeting, self._screen)

    # the hall

    def _turn(self, work: Callable[[HallClient, Frame], Awaitable[int]]) -> int:
        """Does something with the hall. What goes wrong in a turn at a terminal ends the turn, not the conversation."""
        conversing = bool(self._id) and self._screen.interactive and self._screen.wanted.form == "text"
        try:
            return run_interruptible(self._with_hall(work), self._screen)
        except Interrupted:
            if not conversing:
                raise
            return self._interrupted()
        except GuildError as error:
            if not conversing:
                raise
            self._screen.error(error)
            return exit_codes.FAILED

    async def _with_hall(self, work: Callable[[HallClient, Frame], Awaitable[int]]) -> int:
        client, frame = await connect(self._screen, model=self._model)
        try:
            return await work(client, frame)
        finally:
            await client.close()

    def _interrupted(self) -> int:
        """Ctrl-C while the worker answers: the answer ends, the meeting does not."""

        async def work(client: HallClient, frame: Frame) -> int:
            await client.meeting_interrupt(self._id)
            return exit_codes.DONE

        with suppress(GuildError):
            asyncio.run(self._with_hall(work))
        self._screen.note("The answer was cut off; say what you want instead.", "yellow")
        return exit_codes.DONE


def _answer(exchanges: Sequence[Exchange], said: tuple[str, int] | None, *, over: bool) -> str:
    """The answer to what was said; where nothing was, to what was last said. `over`: no other one is to come."""
    if said is None:
        return next((one.answer for one in reversed(exchanges) if one.answer or over), "")
    words, known = said
    return next((one.answer for one in exchanges[known:] if one.words == words), "")
