"""A table at which a conversation is held with the worker of a bench: what every meeting needs of a runtime.

The table gives the run its seat, and what is said there is the person's. It is kept in a file, so that whoever holds
the conversation next, in another hall or another process, hears the same.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.core.clock import stamp
from guildhall.core.request_frame import Frame
from guildhall.runs.hooks import RunHooks, replay_hooks
from guildhall.runs.model import RunRequest
from guildhall.runs.record.records import complete_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.hall.composition.hall import Hall
    from guildhall.runs.model import Run
    from guildhall.runs.record.entries import Entry, Payload


class Table:
    """Holds one conversation in a hall of this process."""

    def __init__(self, hall: Hall, project: Path, *, held: bool = False) -> None:
        """`held`: somebody sits at a terminal, so that the run is not put away while it listens."""
        self.hall = hall
        self.frame = Frame.here(project, {}, interactive=held)
        self.run = ""
        self._file = project / "said.json"
        self._said = asyncio.Event()
        self._left = ExitStack()
        self._events: AsyncIterator[Event] | None = None

    @property
    def words(self) -> list[str]:
        """What was said after the first message."""
        return json.loads(self._file.read_text()) if self._file.exists() else []

    @property
    def state(self) -> Run:
        return self.hall.history.get(self.run)

    def record(self, *kinds: str) -> list[Entry[Payload]]:
        entries = self.hall.history.entries(self.run)
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    @property
    def expects(self) -> int | None:
        """The number of the words that the conversation waits for; None while it owes an answer to the last ones."""
        last = self.record("listening", "said")[-1:]
        return int(str(last[0].key)[1:]) if last and last[0].kind == "listening" else None

    def hooks(self) -> RunHooks:
        """The run's place: it brings no tools."""

        def never(*_: object) -> NoReturn:
            raise AssertionError

        return RunHooks(executor=never, next_message=self._hear)

    async def _hear(self, number: int) -> str:
        while len(self.words) < number:
            self._said.clear()
            await self._said.wait()
        return self.words[number - 1]

    async def begin(self, worker: str, text: str, **options: Any) -> list[Event]:
        """A conversation that begins with this; what happens until it listens, or stops."""
        request = RunRequest(worker=worker, input=text, **options)
        prepared = await self.hall.runs.prepare(request, self.frame, hooks=self.hooks())
        self._follow(prepared.run)
        self.hall.runs.launch(prepared)
        return await self.turn()

    async def go_on(self, run: str = "") -> None:
        """A conversation that was put away, or has stopped, lives again."""
        self._follow(run or self.run)
        prepared = await self.hall.runs.prepare_resume(self.run, self.frame, hooks=self.hooks())
        self.hall.runs.launch(prepared)

    async def say(self, words: str, run: str = "") -> list[Event]:
        """Says something; what happens until that is answered, or the run stops."""
        self.put(words)
        run = run or self.run
        if not self.hall.runs.is_alive(run):
            await self.go_on(run)
        return await self.turn()

    def put(self, words: str) -> None:
        """Something is said, and nobody waits for the answer."""
        said = [*self.words, words]
        self._file.with_suffix(".new").write_text(json.dumps(said))
        self._file.with_suffix(".new").replace(self._file)
        self._said.set()

    async def turn(self) -> list[Event]:
        """What happens until all that was said is answered, or the run stops. One that can be put away is, then."""
        assert self._events is not None
        found: list[Event] = []
        async for event in self._events:
            found.append(event)
            if event.type == "run_ended" and event.run == self.run:
                await self.hall.runs.wait_stopped(self.run)
                break
            if event.type == "listening" and event.data["number"] > len(self.words) and self.frame.interactive:
                break
        return found

    async def conclude(self, output: Any) -> None:
        """Ends the conversation with what has come of it, also in the middle of an answer."""
        await self.hall.runs.pause(self.run)
        now = stamp(self.hall.clock.now())
        await self.hall.store.write(lambda connection: complete_run(connection, self.run, output, now))

    async def is_replayed(self) -> bool:
        """Whether the conversation, gone through once more on its record, is the same."""
        played = await self.hall.main.recordings.replay_one(
            self.state, self.frame, hooks=replay_hooks((), is_conversation=True)
        )
        return played.matches

    def close(self) -> None:
        self._left.close()

    def _follow(self, run: str) -> None:
        self._left.close()
        self.run = run
        self._events = self._left.enter_context(self.hall.bus.listening(run))
