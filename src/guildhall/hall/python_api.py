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
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar, Unpack, cast, get_args

from guildhall.core.config import load_settings
from guildhall.core.errors import Conflict, ErrorInfo, HallGone, HallUnavailable, UsageError
from guildhall.core.events import AskOpenedData, Event
from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.core.text_checks import did_you_mean
from guildhall.hall.client.discovery import check_same_version, find_hall, is_embedded
from guildhall.hall.client.remote import RemoteHall
from guildhall.models.credentials import forwarded_variables
from guildhall.policy.rules import Mode
from guildhall.runs.model import NO_INPUT, Answer, RunRequest, Usage
from guildhall.runs.purpose import PLAIN, CallPurpose, Purpose

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.services.embedded import EmbeddedHall
    from guildhall.tools.model import Toolbox

    # Gets an ask as JSON. Returns one of its choices, such as yes or no, a bool, or an Answer with a note.
    Decision = str | bool | Answer
    Approver = Callable[[Mapping[str, Any]], Decision | Awaitable[Decision]]

T = TypeVar("T")


class ResumeOptions(TypedDict, total=False):
    """Options of a resumed run. `approver` answers asks; without it, a run that asks waits."""

    approver: Approver | None
    max_turns: int | None
    max_tokens: int | None
    budget: float | None


class RunOptions(ResumeOptions, total=False):
    """Options of a new run. `attachments` are files, as for `guild run --attach`."""

    attachments: Sequence[str | Path]
    model: str | None
    override_model: str | None
    max_budget_usd: float | None
    mode: Mode


@dataclass(frozen=True, kw_only=True)
class RunResult:
    run: str
    status: str
    output: Any
    error: ErrorInfo | None
    messages: Sequence[Mapping[str, Any]]
    usage: Usage
    cost_usd: float | None
    asks: Sequence[Mapping[str, Any]]

    @property
    def is_completed(self) -> bool:
        return self.status == "completed"

    def output_as(self, kind: type[T]) -> T:
        """Return the output as a typed object: a pydantic model, a dataclass, a TypedDict, or any JSON type."""
        from pydantic import TypeAdapter, ValidationError

        if not self.is_completed:
            reason = f": {self.error['message']}" if self.error else ""
            message = f"the run {self.run} is {self.status} and has no output{reason}"
            raise Conflict(message, hint="Check `is_completed` first.")
        try:
            return TypeAdapter[T](kind).validate_json(json.dumps(self.output))
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(map(str, first["loc"]))
            name = getattr(kind, "__name__", str(kind))
            raise UsageError(
                f"the output is not a valid {name}: {f'{location}: ' if location else ''}{first['msg']}",
                hint="Compare the type with the schema in the worker's `output_schema_ref`.",
            ) from None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker that can be run. Loading it reads its file, and every run reads it again."""

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
        """Return the worker with a name or a file. Raise if it does not exist or its file is invalid.

        `toolboxes` are Python objects for the toolboxes that the worker names. Their handlers run in this process.
        """
        worker = Worker(name=str(name), **_location(cwd, home), toolboxes=tuple(toolboxes))
        worker.definition()
        return worker

    @staticmethod
    def create(spec: Mapping[str, Any], *, cwd: Path | str | None = None, home: Path | str | None = None) -> Worker:
        """Create a worker from name and instructions, and optionally description, model and output_schema.

        It has the permissions of `worker_creation` in the settings, and is saved as a draft below
        `workers/generated/`. An existing worker is not overwritten.
        """
        from guildhall.workers.generated_workers import draft, parse_spec

        new = Worker(name="", **_location(cwd, home))
        frame = new._frame(interactive=False)
        with _open_read_only(new.home) as hall:
            defaults, existing = hall.settings(frame).worker_creation, hall.workers.list_workers(frame)
            worker_draft = draft(parse_spec(spec), defaults, frame, existing=existing, author="a program")
        worker_draft.save()
        return replace(new, name=worker_draft.worker.name)

    def definition(self) -> Mapping[str, Any]:
        """Return the current content of the worker's file."""
        with _open_read_only(self.home) as hall:
            return hall.workers.find(self.name, self._frame(interactive=False)).as_dict()

    def run(self, input: str | Mapping[str, Any] = NO_INPUT, **options: Unpack[RunOptions]) -> RunResult:
        """Run the worker until it ends or waits."""
        return _run_synchronously(self.arun(input, **options))

    async def arun(self, input: str | Mapping[str, Any] = NO_INPUT, **options: Unpack[RunOptions]) -> RunResult:
        """Run the worker until it ends or waits."""
        return await self._finish(self.stream(input, **options))

    def stream(self, input: str | Mapping[str, Any] = NO_INPUT, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run the worker and yield its events. Closing the stream early pauses the run.

        `input`: text, or a mapping that is sent as JSON.
        """
        return self._stream(input, PLAIN, options)

    async def _finish(self, stream: AsyncGenerator[Event]) -> RunResult:
        run = ""
        async with aclosing(stream) as events:
            async for event in events:
                run = event.root
        return await self.result(run)

    async def _stream(
        self, input: str | Mapping[str, Any], purpose: Purpose, options: RunOptions
    ) -> AsyncGenerator[Event]:
        approver, mode = options.pop("approver", None), options.get("mode", "ask")
        if mode not in get_args(Mode):
            raise UsageError(f"unknown mode {mode!r}", hint=did_you_mean(mode, get_args(Mode)))
        fields = cast("Any", {**options, "attachments": _attachment_names(options.get("attachments", ()))})
        text = json.dumps(input, ensure_ascii=False) if isinstance(input, dict) else cast("str", input)
        request = RunRequest(worker=self.name, input=text, purpose=purpose, **fields)
        frame = self._frame(approver is not None)
        async with _SharedHall(self) as hall, aclosing(hall.runs.run(request, frame, *self._toolboxes())) as events:
            async for event in _answer_asks(hall, events, approver):
                yield event

    def delegate_to(
        self, worker: str | Worker, input: str | Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> RunResult:
        """Let the worker call another worker without a call of its own model."""
        return _run_synchronously(self.adelegate_to(worker, input, **options))

    async def adelegate_to(
        self, worker: str | Worker, input: str | Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> RunResult:
        """Let the worker call another worker. Its allow-list, rules and sandboxes apply as to calls of its model."""
        name, files = worker.name if isinstance(worker, Worker) else worker, options.pop("attachments", ())
        call = CallPurpose(worker=name, input_data=input, attachments=_attachment_names(files))
        return await self._finish(self._stream(input, call, options))

    def resume(self, run: str, **options: Unpack[ResumeOptions]) -> RunResult:
        """Resume a run that waits, was paused or interrupted, or stopped at a limit."""
        return _run_synchronously(self.aresume(run, **options))

    async def aresume(self, run: str, **options: Unpack[ResumeOptions]) -> RunResult:
        """Resume a run that waits, was paused or interrupted, or stopped at a limit."""
        approver = options.pop("approver", None)
        frame, limits = self._frame(approver is not None), cast("Any", options)
        async with (
            _SharedHall(self) as hall,
            aclosing(hall.runs.resume(run, frame, *self._toolboxes(), **limits)) as events,
        ):
            async for _ in _answer_asks(hall, events, approver):
                pass
        return await self.result(run)

    def answer(self, ask: str, choice: str, note: str | None = None) -> None:
        """Answer an ask of a run that waits. Call `resume` afterwards."""

        async def send_answer() -> None:
            async with _SharedHall(self) as hall:
                await hall.asks.answer(ask, Answer(choice=choice, note=note))

        _run_synchronously(send_answer())

    async def result(self, run: str) -> RunResult:
        """Return the result of a run, which may be live. Raise NotFound if the run is unknown."""
        from guildhall.hall.services.embedded import open_hall

        hall = await open_hall(self.home, os.environ, readonly=True)
        try:
            details = await hall.runs.get(run)
        finally:
            await hall.close()
        is_call = details.run.kind == "call" and details.run.status == "completed"
        return RunResult(
            run=run,
            status=details.run.status,
            output=details.below[0].output if is_call else details.run.output,
            error=details.run.error,
            messages=details.messages,
            usage=details.usage,
            cost_usd=details.usage.cost_usd,
            asks=[ask.as_dict() for ask in details.asks if ask.status == "open"],
        )

    def _toolboxes(self) -> tuple[Any, ...]:
        """Return the toolboxes as an argument, if any. Only a hall in this process accepts toolboxes."""
        return (self.toolboxes,) if self.toolboxes else ()

    def _frame(self, interactive: bool) -> Frame:
        bare = Frame.here(self.cwd, os.environ, caller="library")
        allowed = frozenset(load_settings(self.home, bare.root).env)
        more: Any = {"allowed": allowed, "interactive": interactive, "keys": forwarded_variables()}
        return Frame.here(self.cwd, os.environ, caller="library", **more)


@contextmanager
def _open_read_only(home: Home) -> Generator[Hall]:
    from guildhall.hall.composition.hall import Hall

    hall = Hall(home, environ=os.environ, readonly=True)
    try:
        yield hall
    finally:
        hall.release()


def _location(cwd: Path | str | None, home: Path | str | None) -> Any:
    here = Path(cwd).absolute() if cwd else Path.cwd()
    return {"cwd": here, "home": Home.at(Path(home).absolute()) if home else Home.locate(dict(os.environ))}


class _SharedHall:
    """The hall process of the home if it runs, else a hall inside this process.

    Blocks that overlap in an event loop share a hall, because a home has only one.
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
                    "cannot use toolboxes of this program: the hall runs in another process",
                    hint="Stop it with `guild hall stop`, so that this program opens a hall of its own.",
                )
            self._shared[self._key] = (hall, users + 1)
            return hall

    async def _open(self) -> EmbeddedHall | RemoteHall:
        from guildhall.hall.services.embedded import open_hall

        home = self._worker.home
        may_use_process = not self._worker.toolboxes and not is_embedded(os.environ)
        if may_use_process and (address := find_hall(home)) is not None:
            remote = RemoteHall(check_same_version(address))
            try:
                await remote.hall.hello(self._worker.cwd)
            except HallGone:  # it is stopping
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


def _attachment_names(attachments: Sequence[str | Path]) -> tuple[str, ...]:
    if isinstance(attachments, str | Path):
        raise UsageError("invalid attachments: expected a list, got a single name")
    return tuple(map(str, attachments))


async def _answer_asks(
    hall: HallClient, events: AsyncGenerator[Event], approver: Approver | None
) -> AsyncGenerator[Event]:
    async for event in events:
        yield event
        if approver is not None and (opened := event.read(AskOpenedData)) is not None:
            ask = opened["ask"]
            decision = approver(ask)
            decision = await decision if inspect.isawaitable(decision) else decision
            with suppress(Conflict):  # the ask has timed out
                await hall.asks.answer(ask["ask"], replace(_as_answer(decision), by="approver"))


def _as_answer(decision: object) -> Answer:
    if isinstance(decision, Answer):
        return decision
    if isinstance(decision, bool):
        return Answer(choice="yes" if decision else "no")
    if isinstance(decision, str):
        return Answer(choice=decision)
    message = f"invalid result of the approver: {type(decision).__name__}"
    raise UsageError(message, hint="Return a choice, a bool or an Answer.")


def _run_synchronously(coroutine: Coroutine[Any, Any, T]) -> T:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        coroutine.close()
        hint = "Await arun, adelegate_to or aresume instead. Call `answer` with asyncio.to_thread."
        raise UsageError("cannot block: an event loop is running in this thread", hint=hint)
    return asyncio.run(coroutine)
