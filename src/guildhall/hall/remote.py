"""A hall in a process of its own, behind the same interface as one inside this process."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, HallGone, Interrupted
from guildhall.hall.codec import decode, encode, error_of, verb
from guildhall.hall.commission_remote import RemoteCommissions
from guildhall.hall.job_remote import RemoteJobs
from guildhall.hall.meeting_remote import RemoteMeetings
from guildhall.hall.package_remote import RemotePackages
from guildhall.hall.project_remote import RemoteProjects
from guildhall.hall.roster_remote import RemoteRoster
from guildhall.hall.team_remote import RemoteTeams

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.client import Check, Checked, Shown, Tested, Trusting
    from guildhall.hall.postcard import Postcard
    from guildhall.hall.start import Address
    from guildhall.hall.wire import Wire
    from guildhall.memory.model import EntryHistory, Listing, MemoryEntry, Scope
    from guildhall.runs.fork import Forked
    from guildhall.runs.model import Answer, Ask, Run, RunRequest
    from guildhall.runs.plan import Plan
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay import Replayed
    from guildhall.workers.model import Listed, Worker
    from guildhall.workers.trust import Pin, Seen
    from guildhall.workflow.plan import WorkflowPlan

_TO_BEGIN = 10.0  # seconds that a person who interrupts waits for a run that is just beginning, to park it


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """What a hall says to a caller that comes in."""

    env: tuple[str, ...]  # names of variables that may travel with a request from there
    problem: GuildError | None = None  # the settings cannot be read, so that none may


class RemoteHall(
    RemoteTeams, RemoteJobs, RemoteRoster, RemoteProjects, RemotePackages, RemoteCommissions, RemoteMeetings
):
    """The verbs of a hall, asked for over HTTP."""

    def __init__(self, address: Address, postcard: Postcard | None = None) -> None:
        """With a `postcard` each verb is asked for at once, and no stream can be had."""
        self.address = address
        self._postcard = postcard

    @cached_property
    def _wire(self) -> Wire:
        from guildhall.hall.wire import Wire

        return Wire(self.address)

    async def hello(self, root: Path) -> Welcome:
        """Comes in: from now on the hall does not leave by itself. HallGone: there is none, and nothing was done."""
        return decode(Welcome, await self._asked("hello", {"root": str(root)}))

    async def status(self) -> dict[str, Any]:
        """How the hall itself stands."""
        return await self._asked("status", {})

    async def _asked(self, name: str, body: Any) -> Any:
        status, told = await (self._postcard or self._wire).ask(f"/api/{name}", body)
        if status != 200:
            raise error_of(told.get("error"))
        return told["result"]

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        told = await self._asked(name, {part: encode(value) for part, value in arguments.items()})
        return decode(verb(name, RemoteHall).gives, told)

    async def _stream(self, name: str, /, **arguments: Any) -> AsyncGenerator[Any]:
        kind, body = verb(name, RemoteHall).gives, {part: encode(value) for part, value in arguments.items()}
        async with self._wire.stream(f"/api/{name}", body) as (status, lines), aclosing(lines):
            async for told in lines:
                if status != 200 or "error" in told:
                    raise error_of(told.get("error"))
                yield decode(kind, told["item"])

    async def _followed(self, name: str, /, **arguments: Any) -> AsyncGenerator[Event]:
        """The events of a run. Whoever leaves them early parks it; one that is only cut off lets it go on."""
        import asyncio

        async with aclosing(self._stream(name, **arguments)) as events:
            first = asyncio.ensure_future(anext(events))
            try:
                event: Event = await asyncio.shield(first)
            except asyncio.CancelledError:
                if (parked := await self._park_beginning(first)) is not None:
                    yield parked  # whoever follows is to know what it was
                raise
            run = event.run
            try:
                yield event
                async for event in events:
                    yield event
            except (asyncio.CancelledError, GeneratorExit):
                if event.type != "run_ended" or event.run != run:
                    await self._park(run)
                raise

    async def _park_beginning(self, first: asyncio.Future[Event]) -> Event | None:
        """Parks a run that is just beginning; its first event, or None where it was refused."""
        import asyncio

        try:
            async with asyncio.timeout(_TO_BEGIN):
                event = await first
        except (TimeoutError, HallGone):
            hint = "A run may have begun: `guild ls` shows it."
            raise Interrupted("interrupted before the hall had answered", hint=hint) from None
        except GuildError:
            return None
        await self._park(event.run)
        return event

    async def _park(self, run: str) -> None:
        with suppress(HallGone):
            await self._call("park", run=run)

    # runs

    def run(self, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        return self._followed("run", request=request, frame=frame)

    async def plan_workflow(
        self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
    ) -> WorkflowPlan:
        return await self._call("plan_workflow", request=request, frame=frame, tag=tag, params=params)

    def resume(
        self,
        run: str,
        frame: Frame,
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        more = {"max_turns": max_turns, "max_tokens": max_tokens, "budget": budget}
        return self._followed("resume", run=run, frame=frame, **more)

    def follow(self, run: str, frame: Frame) -> AsyncGenerator[Event]:
        return self._stream("follow", run=run, frame=frame)

    async def park(self, run: str) -> None:
        await self._call("park", run=run)

    async def stop(self, run: str) -> list[str]:
        return await self._call("stop", run=run)

    async def replay(self, run: str, frame: Frame) -> Replayed:
        return await self._call("replay", run=run, frame=frame)

    async def fork(self, run: str, at: int, frame: Frame, *, model: str | None = None) -> Forked:
        return await self._call("fork", run=run, at=at, frame=frame, model=model)

    async def script(self, run: str) -> str:
        return await self._call("script", run=run)

    def test(self, files: Sequence[Path], *, update: bool = False) -> AsyncGenerator[Tested]:
        return self._stream("test", files=[file.absolute() for file in files], update=update)

    async def show(self, run: str) -> Shown:
        return await self._call("show", run=run)

    async def runs(self, *, everything: bool = False, called: bool = False) -> list[Run]:
        return await self._call("runs", everything=everything, called=called)

    async def journal(self, run: str, after: int = -1) -> list[Entry[Payload]]:
        return await self._call("journal", run=run, after=after)

    # asks

    async def asks(self) -> list[Ask]:
        return await self._call("asks")

    async def ask(self, ask: str) -> Ask:
        return await self._call("ask", ask=ask)

    async def answer(self, ask: str, answer: Answer) -> Ask:
        return await self._call("answer", ask=ask, answer=answer)

    # workers

    async def workers(self, frame: Frame) -> list[Listed]:
        return await self._call("workers", frame=frame)

    async def worker(self, name: str, frame: Frame) -> Worker:
        return await self._call("worker", name=name, frame=frame)

    async def worker_check(self, name: str, frame: Frame) -> Checked:
        return await self._call("worker_check", name=name, frame=frame)

    async def worker_new(self, name: str, frame: Frame, *, force: bool = False) -> Path:
        return await self._call("worker_new", name=name, frame=frame, force=force)

    async def worker_lock(self, name: str, frame: Frame) -> Worker:
        return await self._call("worker_lock", name=name, frame=frame)

    async def worker_unlock(self, name: str, frame: Frame) -> Worker:
        return await self._call("worker_unlock", name=name, frame=frame)

    async def worker_promote(self, name: str, frame: Frame) -> Worker:
        return await self._call("worker_promote", name=name, frame=frame)

    async def worker_retire(self, name: str, frame: Frame) -> Worker:
        return await self._call("worker_retire", name=name, frame=frame)

    # plan and trust

    async def plan(self, request: RunRequest, frame: Frame) -> Plan:
        return await self._call("plan", request=request, frame=frame)

    async def trust_look(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> Trusting:
        return await self._call("trust_look", frame=frame, at=at, worker=worker)

    async def untrusted_of_all(self, worker: str, frame: Frame) -> list[str]:
        return await self._call("untrusted_of_all", worker=worker, frame=frame)

    async def trust(self, files: Sequence[Seen]) -> None:
        await self._call("trust", files=files)

    async def trust_forget(self, folder: Path) -> list[Pin]:
        return await self._call("trust_forget", folder=folder)

    # memory

    async def memory_ls(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing:
        return await self._call("memory_ls", frame=frame, scope=scope, worker=worker)

    async def memory_show(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await self._call("memory_show", key=key, frame=frame, scope=scope, worker=worker)

    async def memory_write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> MemoryEntry:
        return await self._call("memory_write", key=key, content=content, frame=frame, scope=scope, worker=worker)

    async def memory_rm(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await self._call("memory_rm", key=key, frame=frame, scope=scope, worker=worker)

    async def memory_blame(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> EntryHistory:
        return await self._call("memory_blame", key=key, frame=frame, scope=scope, worker=worker)

    async def memory_revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> MemoryEntry:
        return await self._call("memory_revert", key=key, frame=frame, scope=scope, worker=worker, to=to)

    # the place itself

    async def doctor(self, frame: Frame) -> list[Check]:
        return await self._call("doctor", frame=frame)

    async def settle(self) -> list[Event]:
        """What goes on in the background goes on in the hall: nobody has to wait for it."""
        return []

    async def close(self) -> None:
        if self._postcard is not None:
            await self._postcard.close()
        if "_wire" in vars(self):
            await self._wire.close()
