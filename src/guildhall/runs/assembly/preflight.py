"""Preflight: compares the declarations of a worker with the available resources, and lists all problems.

Also refuses runs that a runtime cannot support: a conversation, a replay, or a resume that would repeat effects.

Does not start servers or tools. Only an output schema that is a Python model is imported, in a confined child process.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.core.config import Settings, anchored
from guildhall.core.errors import Conflict, GuildError, InvalidFile, ModelUnusable, NotTrusted, Refused, ToolUnavailable
from guildhall.core.yaml import read_text
from guildhall.models.catalog import AUTO, AUTO_MODELS, CURSOR, REPLAY, SCRIPT
from guildhall.models.credentials import joined
from guildhall.policy.rules import judge_risk
from guildhall.runs.record.entries import ToolStarted
from guildhall.runtimes.catalog import ROWS, Row
from guildhall.workers.code import (
    Code,
    Trust,
    activation_code,
    check_output_schema,
    has_python_schema,
    module_code,
    server_code,
    server_program,
    server_variables,
    toolbox_code,
    worker_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.assembly.callees import MemberTools
    from guildhall.runs.record.journal import Journal
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Pin, Worker
    from guildhall.workers.registry import ModelChoice


def _schema_path(worker: Worker, frame: Frame) -> Path | None:
    """Return the file of the worker's output schema, or None if it names no file."""
    reference = worker.definition.output_schema_ref
    return worker.resource_folder(frame) / reference if reference and reference.endswith(".json") else None


def _read_schema(worker: Worker, path: Path) -> Mapping[str, Any]:
    if not path.exists():
        hint = "Make it, or correct the path: it starts at the worker's project."
        raise InvalidFile(f"output_schema_ref: there is no file {path}", where=worker.place, hint=hint)
    try:
        schema: Any = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"not JSON: {error}", where=str(path)) from None
    return check_output_schema(schema, str(path))


async def load_model_schema(worker: Worker, code: Code) -> Mapping[str, Any]:
    """The schema of a model. Its module is imported in a confined child: the very bytes that `code` has read."""
    from guildhall.tools.host.process import schema_of

    try:
        return check_output_schema(await schema_of(code.name, code.sources(), code.root), code.name)
    except ToolUnavailable as error:
        where = f"{code.root / error.where}" if error.where else worker.place
        raise ToolUnavailable(f"output_schema_ref: {error.message}", where=where, hint=error.hint) from None
    except GuildError as error:
        raise InvalidFile(f"output_schema_ref: {error.message}", where=worker.place, hint=error.hint) from None


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What there is, in one home and for one environment."""

    home: Home
    environ: Mapping[str, str]
    settings: Callable[[Frame], Settings]
    pins: Callable[[], Mapping[Path, Pin]]  # the files that the person trusts
    locked: Callable[[], Collection[Path]]  # the files of workers that are locked
    member_tools: Callable[[Worker, Frame], MemberTools]  # the members that a worker names
    program: Callable[[Row, Frame], object]  # raises where what executes a runtime's runs is not there
    own: Path | None = None  # the folder of the program itself, where this is the hall of one

    def find_problems(
        self, worker: Worker, frame: Frame, *, given: Collection[str] = (), script: bool = True, thorough: bool = True
    ) -> list[GuildError]:
        """Return a problem for each missing declaration, in the order of the fields. `given`: toolboxes of the caller.

        Without `script` the model of the worker is not checked. Without `thorough` files are not read.
        """
        outside = self.member_tools(worker, frame)
        given = (*given, *outside.toolboxes)
        unknown = [name for name in worker.definition.toolboxes if name not in given]
        checks: list[Callable[[], object]] = [lambda: self._program(worker, frame)]
        if script:
            checks.append(lambda: _script(worker, frame, thorough=thorough))
        checks += [
            lambda: self._search(worker, frame),
            *(lambda name=name: self.toolbox_code(worker, name, frame, given) for name in unknown),
            *(lambda error=error: _raise(error) for error in outside.problems),
            *(lambda code=code: self._trusted(code, worker, frame) for code in outside.code),
            *(lambda name=name: self.check_server(worker, name, frame) for name in worker.definition.mcp_servers),
            *(lambda one=one: one.sandbox_folders(frame) for one in split_by_sandbox(worker)),
            lambda: self.check_schema(worker, frame, thorough=thorough),
            *([lambda: activation_code(worker)] if worker.activate else []),
        ]
        found: list[GuildError] = []
        for check in checks:
            try:
                check()
            except GuildError as error:
                found.append(error)
        return found

    def _program(self, worker: Worker, frame: Frame) -> None:
        try:
            self.program(ROWS[worker.definition.runtime], frame)
        except GuildError as error:
            raise type(error)(error.message, where=error.where or worker.place, hint=error.hint) from error

    def code_of(self, worker: Worker, frame: Frame, given: Collection[str] = ()) -> tuple[list[Code], list[GuildError]]:
        """All code that the worker names, members and all, and what of it cannot be had."""
        outside = self.member_tools(worker, frame)
        found, wrong = worker_code(worker, frame, self.home, (*given, *outside.toolboxes))
        return [*found, *outside.code], [*wrong, *outside.problems]

    def toolbox_code(self, worker: Worker, name: str, frame: Frame, given: Collection[str] = ()) -> Code:
        """Return the code of a toolbox that is not `given`. Raise NotTrusted if it may not run."""
        return self._trusted(toolbox_code(worker, name, frame, self.home, given), worker, frame)

    def check_server(self, worker: Worker, name: str, frame: Frame) -> None:
        """Looks whether a server could be started or reached: trust, its program, its variables."""
        self._trusted(server_code(worker, name, frame), worker, frame)
        if worker.definition.mcp_servers[name].command is not None:
            server_program(worker, name, frame)
        server_variables(worker, name, frame)

    def module_code(self, worker: Worker, frame: Frame) -> Code:
        """The module of the model that the worker's output must fit, if it may run."""
        return self._trusted(module_code(worker, frame, self.home), worker, frame)

    async def output_schema(self, worker: Worker, frame: Frame) -> Mapping[str, Any] | None:
        """What the worker's output must look like, if its file says so."""
        if (path := _schema_path(worker, frame)) is not None:
            return _read_schema(worker, path)
        return await load_model_schema(worker, self.module_code(worker, frame)) if has_python_schema(worker) else None

    def schema_in_file(self, worker: Worker, frame: Frame) -> Mapping[str, Any] | None:
        """Return the output schema if it is in a valid file, or None."""
        path = _schema_path(worker, frame)
        with suppress(GuildError):
            return _read_schema(worker, path) if path is not None else None

    def trust(self) -> Trust:
        return Trust(self.pins(), self.own)

    def _trusted(self, code: Code, worker: Worker, frame: Frame) -> Code:
        if not code.is_own:
            self.trust().check(code, worker, frame)
        return code

    def check_schema(self, worker: Worker, frame: Frame, *, thorough: bool = True) -> None:
        """Raise if the output schema cannot be used, as far as that is known without executing code."""
        path = _schema_path(worker, frame)
        if has_python_schema(worker):
            self.module_code(worker, frame)
        elif path is not None and (thorough or not path.is_file()):
            _read_schema(worker, path)

    def _search(self, worker: Worker, frame: Frame) -> None:
        if "WebSearch" not in worker.definition.tools:
            return
        from guildhall.tools.builtin.web_search import search_tool

        wanted = self.settings(frame).web_search
        try:
            search_tool(wanted.model_dump() if wanted else None, joined(self.environ, frame.keys))
        except ToolUnavailable as error:
            raise ToolUnavailable(f"tools: {error.message}", where=worker.place, hint=error.hint) from None


def raise_problems(missing: Sequence[GuildError], place: str) -> None:
    """Raises what is lacking, if anything is: a worker never runs with a part of what it declares."""
    if not missing:
        return
    if len(missing) == 1:
        raise missing[0]
    if all(isinstance(error, NotTrusted) for error in missing):
        raise NotTrusted("; ".join(error.message for error in missing), where=place, hint=missing[0].hint)
    lines = [error.message if error.where in (None, place) else f"{error.where}: {error.message}" for error in missing]
    kind = ToolUnavailable if any(isinstance(error, ToolUnavailable) for error in missing) else InvalidFile
    raise kind(
        f"{len(lines)} things cannot be provided:" + "".join(f"\n  {line}" for line in lines),
        where=place,
        hint="`guild check` says what to do about each.",
    )


def _raise(error: GuildError) -> NoReturn:
    raise error


def find_warnings(worker: Worker) -> list[str]:
    """What is allowed and yet probably not meant."""
    writers = [name for name in worker.definition.tools if name in ("Write", "Edit")]
    if not writers or any(sandbox.mode == "rw" for sandbox in worker.definition.sandboxes.values()):
        return []
    return [f"tools: {' and '.join(writers)} can write nothing, because no sandbox has `mode: rw`"]


def _provider(worker: Worker, model: str) -> None:
    """Refuses a model that nobody can have: no key is needed to see that."""
    from guildhall.models.providers import split_name

    if model == AUTO or model.startswith((CURSOR, REPLAY)):
        return
    try:
        split_name(model)
    except ModelUnusable as error:
        raise ModelUnusable(f"model: {error.message}", where=worker.place, hint=error.hint) from None


def _script(worker: Worker, frame: Frame, *, thorough: bool) -> None:
    model = worker.definition.model or ""
    if not model.startswith(SCRIPT):
        if thorough and model:
            _provider(worker, model)
        return
    path = Path(anchored(model, worker.resource_folder(frame)).removeprefix(SCRIPT))
    if not path.exists():
        start = "the folder of the workflow's file" if worker.scope == "workflow" else "the worker's project"
        hint = f"Make it, or correct the path: it starts at {start}."
        raise InvalidFile(f"model: there is no script {path}", where=worker.place, hint=hint)
    if thorough:
        from guildhall.models.scripted.source import load_script

        load_script(path)


def split_by_sandbox(worker: Worker) -> Iterator[Worker]:
    """The worker once for each of its sandboxes, so that one that is wrong does not hide the next."""
    for name, sandbox in worker.definition.sandboxes.items():
        yield replace(worker, definition=worker.definition.model_copy(update={"sandboxes": {name: sandbox}}))


def adapt_model(worker: Worker, choice: ModelChoice) -> ModelChoice:
    """The choice as the worker's runtime takes it: `auto` is a model of a provider of its own."""
    row = ROWS[worker.definition.runtime]
    if row.routed and choice.model.startswith(CURSOR):
        raise ModelUnusable(
            f"{choice.model} is a model of Cursor's, which only its own program can ask",
            where=worker.place,
            hint="Write `runtime: cursor` into the worker's file, or name another model.",
        )
    if not row.providers or (row.routed and choice.model.startswith((SCRIPT, REPLAY))):
        return choice
    if choice.model == AUTO:
        return replace(choice, model=AUTO_MODELS.get(row.providers[0], f"{row.providers[0]}:{AUTO}"))
    if choice.model.partition(":")[0] in row.providers:
        return choice
    taken = " or ".join(f"`{provider}:...`" for provider in row.providers)
    raise ModelUnusable(
        f"runtime {row.name} cannot be given the model {choice.model}",
        where=worker.place,
        hint=f"It takes {taken}{' and scripts' if row.routed else ''}; any other model runs with `runtime: pydantic`.",
    )


def with_runtime_capabilities(worker: Worker, tools: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """What a worker's tools can do to the world, and what its runtime can by itself."""
    row = ROWS[worker.definition.runtime]
    return {**tools, **({row.title: frozenset({"net"})} if row.network else {})}


def check_exfiltration(worker: Worker, tools: Mapping[str, frozenset[str]], around: frozenset[str]) -> None:
    """Refuses the three together where the way out is the runtime's own: nobody could be asked before it is used."""
    row = ROWS[worker.definition.runtime]
    if (
        row.title
        in judge_risk(
            with_runtime_capabilities(worker, tools), accepted=worker.definition.accepts_risk, around=around
        ).guarded
    ):
        raise ToolUnavailable(
            f"runtime {row.name}: {row.title} reaches the network by itself, and could carry out what the worker reads",
            where=worker.place,
            hint="Take away what reads private files, or say `accepts_risk: true` in the file.",
        )


def check_native_tools(worker: Worker, tools: Iterable[Tool]) -> None:
    """Refuses tools that the provider would have to bring, where the runtime cannot ask for them."""
    row = ROWS[worker.definition.runtime]
    if row.program is not None and (native := next((tool.name for tool in tools if tool.native), None)):
        raise ToolUnavailable(
            f"tools: {native} of the provider is not to be had with runtime {row.name}",
            where=worker.place,
            hint="Name a search engine in `web_search:` of the settings: see docs/tools-exec.md.",
        )


def check_restart(worker: Worker, tools: Iterable[Tool], journal: Journal) -> None:
    """Refuses to go on with a run whose runtime would begin it anew, when it has done what must not be done twice."""
    row = ROWS[worker.definition.runtime]
    if row.routed:
        return
    harmless = {tool.name for tool in tools if tool.repeatable and all(c.endswith(".read") for c in tool.capabilities)}
    called = [entry.data.tool for entry in journal.all(ToolStarted)]
    if done := dict.fromkeys(name for name in called if name not in harmless):
        said = f"{journal.run} cannot go on: {row.title} would begin anew, and do again what it has done"
        hint = f"See what it did: guild log {journal.run}. Hand the rest to a new run: guild run {worker.name} ..."
        raise Conflict(f"{said}: {', '.join(done)}", hint=hint)


def check_conversation(worker: Worker) -> None:
    """Refuses a conversation with a worker whose runtime could not be walked through it again."""
    row = ROWS[worker.definition.runtime]
    if not row.routed:
        raise Refused(
            f"runtime {row.name}: {row.title} asks its model itself, so that a conversation is on no record: "
            "after a pause it could not be gone on with",
            where=worker.place,
            hint="Choose another runtime for conversations with the worker, such as `runtime: pydantic`.",
        )


def check_replayable(worker: Worker, run: str) -> None:
    """Refuses to play a run again whose model was not asked at the model door: its answers are on no record."""
    row = ROWS[worker.definition.runtime]
    if not row.routed:
        said = f"{run} cannot be played again: {row.title} asks its model itself, so the answers are not on record"
        raise Conflict(said, hint=f"What it did with its tools is: guild log {run}")
