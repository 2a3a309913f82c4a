"""Python API: loads workers as objects, runs them, and returns typed results.

from guildhall import Worker

result = Worker.load("reviewer").run("Look at the last change")
print(result.output, result.cost_usd)

A worker runs in the home's hall process if that is running, else in a hall inside this process. Toolboxes that are
Python objects require a hall inside this process.
Does not implement operations: it calls the interface in `hall.client.interface`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from guildhall.core.config import load_settings
from guildhall.core.errors import Conflict, ErrorInfo, HallGone, HallUnavailable, UsageError
from guildhall.core.events import AskOpenedData, Event
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.core.text import did_you_mean
from guildhall.hall.client.discovery import find, is_embedded, same_version
from guildhall.hall.client.remote import RemoteHall
from guildhall.models.credentials import travelling
from guildhall.policy.rules import Mode
from guildhall.runs.model import Answer, RunRequest, Usage
from guildhall.runs.purpose import PLAIN, CallPurpose

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import Shown
    from guildhall.hall.services.embedded import EmbeddedHall
    from guildhall.tools.model import Toolbox

    # Is shown an ask as JSON; says yes, no, session (or another of its choices), or an Answer with a note.
    Said = str | bool | Answer
    Approver = Callable[[Mapping[str, Any]], Said | Awaitable[Said]]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came of a run."""

    run: str
    status: str
    output: Any
    error: ErrorInfo | None
    messages: Sequence[Mapping[str, Any]]
    usage: Usage
    cost_usd: float | None
    asks: Sequence[Mapping[str, Any]]

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    def output_as(self, kind: type[T]) -> T:
        """The output as a typed object: a pydantic model, a dataclass, a TypedDict, or any type that JSON can fill."""
        from pydantic import TypeAdapter, ValidationError

        if not self.completed:
            said = self.error["message"] if self.error else None
            raise Conflict(f"the run {self.run} is {self.status}: it has no output", hint=str(said) if said else None)
        try:
            return TypeAdapter[T](kind).validate_json(json.dumps(self.output))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            name = getattr(kind, "__name__", str(kind))
            raise UsageError(
                f"the output does not fit {name}: {f'{place}: ' if place else ''}{first['msg']}",
                hint="The worker's `output_schema_ref` says what its output looks like.",
            ) from None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that can be run. Loading it looks at its file; every run looks again."""

    name: str
    cwd: Path
    home: Home
    toolboxes: tuple[Toolbox, ...] = field(default=())

    @staticmethod
    def load(
        name: str | Path,
        *,
        cwd: Path | str | None = None,
        home: Path | str | None = None,
        toolboxes: Sequence[Toolbox] = (),
    ) -> Worker:
        """The worker of a name or of a file; an error at once if there is none, or if its file is wrong.

        `toolboxes` are Python objects for the toolboxes that the worker names. Their handlers run in this process.
        """
        worker = Worker(name=str(name), **_place(cwd, home), toolboxes=tuple(toolboxes))
        worker.definition()
        return worker

    @staticmethod
    def create(spec: Mapping[str, Any], *, cwd: Path | str | None = None, home: Path | str | None = None) -> Worker:
        """A new worker: name, instructions, and if wanted description, model and output_schema.

        It has the rights that `worker_creation` in the settings gives, and is saved as a draft below
        `workers/generated/`. One that is there is not overwritten.
        """
        from guildhall.hall.composition.hall import Hall
        from guildhall.workers.create import draft, spec_of

        new = Worker(name="", **_place(cwd, home))
        frame = new._frame(interactive=False)
        hall = Hall(new.home, environ=os.environ, readonly=True)
        try:
            taken = [listed.name for listed in hall.workers.listed(frame)]
            made = draft(spec_of(spec), hall.settings(frame).worker_creation, frame, taken=taken, by="a program")
        finally:
            hall.release()
        made.save()
        return replace(new, name=made.worker.name)

    def definition(self) -> Mapping[str, Any]:
        """What its file says now."""
        from guildhall.hall.composition.hall import Hall

        hall = Hall(self.home, environ=os.environ, readonly=True)
        try:
            return hall.workers.find(self.name, self._frame(interactive=False)).as_dict()
        finally:
            hall.release()

    def run(self, input: str, **options: Any) -> RunResult:
        """Runs the worker to the end of a stretch. Options as for `arun`."""
        return _synchronously(self.arun(input, **options))

    async def arun(self, input: str, *, approver: Approver | None = None, **options: Any) -> RunResult:
        """The same, awaited. `approver` answers what the run asks; without one, a run that asks ends waiting."""
        run = ""
        async with aclosing(self.stream(input, approver=approver, **options)) as events:
            async for event in events:
                run = event.root
        return await self.result(run)

    async def stream(
        self,
        input: str,
        *,
        approver: Approver | None = None,
        attachments: Sequence[str | Path] = (),
        model: str | None = None,
        override_model: str | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        max_budget_usd: float | None = None,
        budget: float | None = None,
        mode: Mode = "ask",
        call: CallPurpose | None = None,
    ) -> AsyncGenerator[Event]:
        """Runs the worker and gives its events as they come. Leaving the loop early parks the run.

        `attachments` are files, as `guild run --attach` takes them.
        """
        if mode not in get_args(Mode):
            raise UsageError(f"there is no mode {mode!r}", hint=did_you_mean(mode, get_args(Mode)))
        request = RunRequest(
            worker=self.name,
            input=input,
            attachments=_names(attachments),
            model=model,
            override_model=override_model,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_budget_usd=max_budget_usd,
            budget=budget,
            mode=mode,
            purpose=call or PLAIN,
        )
        frame = self._frame(approver is not None)
        async with _opened(self) as hall, aclosing(hall.runs.run(request, frame, *self._given())) as events:
            async for event in _answering(hall, events, approver):
                yield event

    def delegate_to(self, worker: str | Worker, input: str | Mapping[str, Any], **options: Any) -> RunResult:
        """Has the worker call another one, without asking its own model. Options as for `adelegate_to`."""
        return _synchronously(self.adelegate_to(worker, input, **options))

    async def adelegate_to(
        self,
        worker: str | Worker,
        input: str | Mapping[str, Any],
        *,
        approver: Approver | None = None,
        attachments: Sequence[str | Path] = (),
        **options: Any,
    ) -> RunResult:
        """The same, awaited. It is a call like one of its model's: by its allow-list, its rules, from its sandboxes."""
        name = worker.name if isinstance(worker, Worker) else worker
        call = CallPurpose(worker_name=name, input_data=input, attachments=_names(attachments))
        text = input if isinstance(input, str) else json.dumps(input, ensure_ascii=False)
        return await self.arun(text, approver=approver, call=call, **options)

    def resume(self, run: str, **options: Any) -> RunResult:
        """Goes on with a run that waits, was parked, lost, or stopped at a limit. Options as for `aresume`."""
        return _synchronously(self.aresume(run, **options))

    async def aresume(
        self,
        run: str,
        *,
        approver: Approver | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> RunResult:
        """The same, awaited."""
        frame = self._frame(approver is not None)
        async with (
            _opened(self) as hall,
            aclosing(
                hall.runs.resume(run, frame, *self._given(), max_turns=max_turns, max_tokens=max_tokens, budget=budget)
            ) as events,
        ):
            async for _ in _answering(hall, events, approver):
                pass
        return await self.result(run)

    def answer(self, ask: str, choice: str, note: str | None = None) -> None:
        """Answers an ask of a run that waits; `resume` then goes on."""

        async def tell() -> None:
            async with _opened(self) as hall:
                await hall.asks.answer(ask, Answer(choice=choice, note=note))

        _synchronously(tell())

    async def result(self, run: str) -> RunResult:
        """How a run stands."""
        from guildhall.hall.services.embedded import open_hall

        hall = await open_hall(self.home, os.environ, readonly=True)
        try:
            shown = await hall.runs.get(run)
        finally:
            await hall.close()
        return RunResult(
            run=run,
            status=shown.run.status,
            output=_output(shown),
            error=shown.run.error,
            messages=shown.messages,
            usage=shown.usage,
            cost_usd=shown.usage.cost_usd,
            asks=[ask.as_dict() for ask in shown.asks if ask.status == "open"],
        )

    def _given(self) -> tuple[Any, ...]:
        """Its toolboxes, where it has some: then the hall is in this process, and can take them."""
        return (self.toolboxes,) if self.toolboxes else ()

    def _frame(self, interactive: bool) -> Frame:
        bare = Frame.here(self.cwd, os.environ, caller="library")
        allowed = frozenset(load_settings(self.home, bare.root).env)
        more: Any = {"allowed": allowed, "interactive": interactive, "keys": travelling()}
        return Frame.here(self.cwd, os.environ, caller="library", **more)


def _place(cwd: Path | str | None, home: Path | str | None) -> Any:
    """Where a worker is looked for, and where its runs are on record."""
    here = Path(cwd).absolute() if cwd else Path.cwd()
    return {"cwd": here, "home": Home.at(Path(home).absolute()) if home else Home.locate(dict(os.environ))}


class _opened:  # noqa: N801 - used like a function
    """A hall for the length of a block: the home's own process where it is running, else one inside this process.

    Blocks that overlap in one event loop share one: a home has only one.
    """

    _shared: ClassVar[dict[tuple[Path, int], tuple[EmbeddedHall | RemoteHall, int]]] = {}
    _opening: ClassVar[dict[tuple[Path, int], asyncio.Lock]] = {}

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._key = (worker.home.path, id(asyncio.get_running_loop()))

    async def __aenter__(self) -> EmbeddedHall | RemoteHall:
        async with self._opening.setdefault(self._key, asyncio.Lock()):
            hall, users = self._shared.get(self._key, (None, 0))
            if hall is None:
                hall = await self._open()
            elif self._worker.toolboxes and isinstance(hall, RemoteHall):
                raise HallUnavailable(
                    "the hall is a process of its own, which cannot take toolboxes of this program",
                    hint="End it with `guild hall stop`; then the hall is inside this program.",
                )
            self._shared[self._key] = (hall, users + 1)
            return hall

    async def _open(self) -> EmbeddedHall | RemoteHall:
        from guildhall.hall.services.embedded import open_hall

        home = self._worker.home
        wanted = not self._worker.toolboxes and not is_embedded(os.environ)
        if wanted and (address := find(home)) is not None:
            remote = RemoteHall(same_version(address))
            try:
                await remote.hall.hello(self._worker.cwd)
            except HallGone:  # it leaves just now
                await remote.close()
            else:
                return remote
        return await open_hall(home, os.environ)

    async def __aexit__(self, *_: object) -> None:
        async with self._opening[self._key]:
            hall, users = self._shared.pop(self._key)
            if users > 1:
                self._shared[self._key] = (hall, users - 1)
                return
            await hall.close()
            del self._opening[self._key]


def _names(attachments: Sequence[str | Path]) -> tuple[str, ...]:
    if isinstance(attachments, str | Path):
        raise UsageError("attachments is one name", hint="Give a list of them.")
    return tuple(map(str, attachments))


def _output(shown: Shown) -> Any:
    """What came out: of a run that only called another one, what came out of that one."""
    if shown.run.kind == "call" and shown.run.status == "completed":
        return shown.below[0].output
    return shown.run.output


async def _answering(
    hall: HallClient, events: AsyncGenerator[Event], approver: Approver | None
) -> AsyncGenerator[Event]:
    async for event in events:
        yield event
        if approver is not None and (opened := event.read(AskOpenedData)) is not None:
            ask = opened["ask"]
            said = approver(ask)
            said = await said if inspect.isawaitable(said) else said
            with suppress(Conflict):  # too late: the run has been told that nobody answered in time
                await hall.asks.answer(ask["ask"], replace(_as_answer(said), by="approver"))


def _as_answer(said: object) -> Answer:
    if isinstance(said, Answer):
        return said
    if isinstance(said, bool):
        return Answer(choice="yes" if said else "no")
    if isinstance(said, str):
        return Answer(choice=said)
    raise UsageError(
        f"the approver gave a {type(said).__name__}", hint="It gives yes, no, session (or True, False), or an Answer."
    )


def _synchronously(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        coroutine.close()
        raise UsageError(
            "this call would block a running event loop",
            hint="Await its async twin: arun, adelegate_to, aresume, result.",
        )
    return asyncio.run(coroutine)
