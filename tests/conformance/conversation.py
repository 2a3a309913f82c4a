"""A conversation with the worker of a bench, as a meeting has it with a runtime.

The messages of the user are kept in a file, so that another hall or another process can continue the conversation.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.core.clock import stamp
from guildhall.core.request_frame import Frame
from guildhall.runs.model import RunRequest
from guildhall.runs.owner_hooks import RunHooks, replay_hooks
from guildhall.runs.record.records import complete_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.hall.composition.hall import Hall
    from guildhall.runs.model import Run
    from guildhall.runs.record.entries import Entry, Payload


class Conversation:
    """A conversation in a hall of this process."""

    def __init__(self, hall: Hall, project: Path, *, held: bool = False) -> None:
        """With `held`, a terminal is attached, so that the run is not paused while it waits for a message."""
        self.hall = hall
        self.frame = Frame.here(project, {}, interactive=held)
        self.run = ""
        self._file = project / "messages.json"
        self._has_message = asyncio.Event()
        self._listener = ExitStack()
        self._events: AsyncIterator[Event] | None = None

    @property
    def messages(self) -> list[str]:
        """Return the user messages after the first one."""
        return json.loads(self._file.read_text()) if self._file.exists() else []

    @property
    def state(self) -> Run:
        return self.hall.history.get(self.run)

    def entries(self, *kinds: str) -> list[Entry[Payload]]:
        entries = self.hall.history.entries(self.run)
        return [entry for entry in entries if not kinds or entry.kind in kinds]

    @property
    def expects(self) -> int | None:
        """Return the number of the message that the run waits for, or None while it answers."""
        last = self.entries("listening", "said")[-1:]
        return int(str(last[0].key)[1:]) if last and last[0].kind == "listening" else None

    def hooks(self) -> RunHooks:
        """Return hooks without tools that pass on the user messages."""

        def fail(*_: object) -> NoReturn:
            raise AssertionError

        return RunHooks(executor=fail, next_message=self._next_message)

    async def _next_message(self, number: int) -> str:
        while len(self.messages) < number:
            self._has_message.clear()
            await self._has_message.wait()
        return self.messages[number - 1]

    async def start(self, worker: str, text: str, **options: Any) -> list[Event]:
        """Start a run with its first message, and return the events until it listens or stops."""
        request = RunRequest(worker=worker, input=text, **options)
        prepared = await self.hall.runs.prepare(request, self.frame, hooks=self.hooks())
        self._follow(prepared.run_id)
        self.hall.runs.launch(prepared)
        return await self.wait_for_turn()

    async def resume(self, run: str = "") -> None:
        """Resume a paused or stopped run."""
        self._follow(run or self.run)
        prepared = await self.hall.runs.prepare_resume(self.run, self.frame, hooks=self.hooks())
        self.hall.runs.launch(prepared)

    async def send(self, words: str, run: str = "") -> list[Event]:
        """Send a message, and return the events until it is answered or the run stops."""
        self.post(words)
        run = run or self.run
        if not self.hall.runs.is_alive(run):
            await self.resume(run)
        return await self.wait_for_turn()

    def post(self, words: str) -> None:
        """Store a message without waiting for the answer."""
        messages = [*self.messages, words]
        self._file.with_suffix(".new").write_text(json.dumps(messages))
        self._file.with_suffix(".new").replace(self._file)
        self._has_message.set()

    async def wait_for_turn(self) -> list[Event]:
        """Return the events until all messages are answered or the run stops.

        Without a terminal, the run is paused then.
        """
        assert self._events is not None
        found: list[Event] = []
        async for event in self._events:
            found.append(event)
            if event.type == "run_ended" and event.run == self.run:
                await self.hall.runs.wait_stopped(self.run)
                break
            if event.type == "listening" and event.data["number"] > len(self.messages) and self.frame.interactive:
                break
        return found

    async def complete(self, output: Any) -> None:
        """Complete the run with an output, also in the middle of an answer."""
        await self.hall.runs.pause(self.run)
        now = stamp(self.hall.clock.now())
        await self.hall.store.write(lambda connection: complete_run(connection, self.run, output, now))

    async def is_replayed(self) -> bool:
        """Return True if a replay of the conversation matches its journal."""
        played = await self.hall.main.recordings.replay_one(
            self.state, self.frame, hooks=replay_hooks((), is_conversation=True)
        )
        return played.matches

    def close(self) -> None:
        self._listener.close()

    def _follow(self, run: str) -> None:
        self._listener.close()
        self.run = run
        self._events = self._listener.enter_context(self.hall.bus.listening(run))
