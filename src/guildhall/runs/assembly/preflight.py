"""Preflight: checks that a worker can start with its status, model, program and resources, and lists all problems.

A plan shows this list, and the start of a run, job or workflow is refused with it.

Also refuses runs that a runtime cannot support: a conversation, a replay, or a resume that would repeat effects.

Does not start servers or tools. Only an output schema that is a Python model is imported, in a confined child process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from guildhall.core.config import Settings, resolve_script_path
from guildhall.core.errors import Conflict, GuildError, InvalidFile, ModelUnusable, NotTrusted, Refused, ToolUnavailable
from guildhall.core.yaml import read_text
from guildhall.models.catalog import AUTO, AUTO_MODELS, CURSOR, REPLAY, SCRIPT
from guildhall.models.credentials import LOGIN_RUNTIME, merge_environ
from guildhall.policy.rules import assess_risk
from guildhall.runs.assembly.project_instructions import CAPABILITIES
from guildhall.runs.purpose import CommissionPurpose, JobPurpose
from guildhall.runs.record.entries import ToolStarted
from guildhall.runtimes.catalog import RUNTIMES, RuntimeInfo
from guildhall.workers.code_trust import (
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
from guildhall.workers.lifecycle import Use, check_usable
from guildhall.workers.registry import MODEL_CONFIG, MODEL_OPTION, choose_model

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.models.model import Source
    from guildhall.runs.assembly.callees import MemberTools
    from guildhall.runs.model import RunRequest
    from guildhall.runs.record.journal import Journal
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Pin, Worker
    from guildhall.workers.registry import ModelChoice

    # Takes the model, the frame, and True if a Claude login is sufficient.
    SourceOf = Callable[[str, Frame, bool], Source]

ProblemKind = Literal["status", "missing", "model", "settings", "rule", "toolbox", "schema", "risk"]


@dataclass(frozen=True)
class Problem:
    """Why a worker cannot run as it is.

    status: a draft, retired or changed; missing, rule: found without executing code; toolbox, schema: found by
    executing code; model: none can be chosen, or it has no key or no price; settings: the model would ignore a setting;
    risk: a rule forbids this combination of tools.
    """

    kind: ProblemKind
    error: GuildError

    @property
    def text(self) -> str:
        return self.error.message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Problem):
            return NotImplemented
        return (self.kind, self.error.as_dict()) == (other.kind, other.error.as_dict())

    def __hash__(self) -> int:
        return hash((self.kind, self.text))


@dataclass(frozen=True, kw_only=True)
class StartCheck:
    """The model of a start, and all problems that prevent the start."""

    choice: ModelChoice | None
    source: Source | None
    problems: tuple[Problem, ...]


def _schema_path(worker: Worker) -> Path | None:
    """Return the path of the output schema, or None if the worker has no schema file."""
    reference = worker.definition.output_schema_ref
    return worker.resource_folder / reference if reference and reference.endswith(".json") else None


def _read_schema(worker: Worker, path: Path) -> Mapping[str, Any]:
    if not path.exists():
        hint = "Create the file, or correct the path. It is relative to the project of the worker."
        raise worker.field_error(f"file not found: {path}", ("output_schema_ref",), hint)
    try:
        schema: Any = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"invalid JSON: {error}", where=str(path), hint="Write a JSON Schema.") from None
    return check_output_schema(schema, str(path))


async def load_model_schema(worker: Worker, code: Code) -> Mapping[str, Any]:
    """Return the schema of a Python model, imported in a confined child process from the bytes of `code`."""
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
    """Checks workers against the resources of a home and an environment."""

    home: Home
    environ: Mapping[str, str]
    load_settings: Callable[[Frame], Settings]
    load_pins: Callable[[], Mapping[Path, Pin]]  # the trusted files
    list_locked_files: Callable[[], Collection[Path]]  # of locked workers
    find_member_tools: Callable[[Worker, Frame], MemberTools]
    check_program: Callable[[RuntimeInfo, Frame], object]  # raises if the program of a runtime is missing
    source_of: SourceOf  # raises if the model cannot be called
    is_priced: Callable[[str, Frame], bool | None]  # returns None if unknown
    member_folder: Path | None = None  # in the hall of a member

    async def check_start(
        self,
        worker: Worker,
        frame: Frame,
        request: RunRequest,
        *,
        use: Use = "name",
        given: Collection[str] = (),
        needs_price: bool = False,
    ) -> StartCheck:
        """Return the model of a start, and all problems that prevent the start. `needs_price`: a budget applies."""
        problems: list[Problem] = []
        choice = source = None
        try:
            check_usable(worker, use)
        except GuildError as error:
            problems.append(Problem("status", error))
        try:
            choice = adapt_model(worker, _choose_model(worker, frame, self.load_settings(frame), request))
        except GuildError as error:
            if request.calls_model:
                problems.append(Problem("model", error))
        resources = self.find_problems(worker, frame, given=given, script=False)
        problems += (Problem("missing", error) for error in resources)
        if choice is not None and request.calls_model:
            kind: ProblemKind = "missing"
            try:
                if choice.by == "worker":
                    _check_model(worker)
                kind = "model"
                source = self.source_of(choice.model, frame, worker.definition.runtime == LOGIN_RUNTIME)
                kind = "settings"
                await check_settings(worker, source)
            except GuildError as error:
                problems.append(Problem(kind, error))
            priced = has_price(source) if source else self.is_priced(choice.model, frame)
            if needs_price and priced is False:
                problems.append(Problem("model", no_price_error(source.name if source else choice.model)))
        return StartCheck(choice=choice, source=source, problems=tuple(problems))

    def find_problems(
        self, worker: Worker, frame: Frame, *, given: Collection[str] = (), script: bool = True
    ) -> list[GuildError]:
        """Return an error for each declaration that cannot be met, in the order of the fields.

        `given`: toolboxes of the caller. Without `script` skip the model.
        """
        members = self.find_member_tools(worker, frame)
        given = (*given, *members.toolboxes)
        toolboxes = [name for name in worker.definition.toolboxes if name not in given]
        checks: list[Callable[[], object]] = [
            lambda: self._check_program(worker, frame),
            *([lambda: _check_model(worker)] if script else []),
            lambda: _check_runtime_settings(worker),
            lambda: self._check_search(worker, frame),
            *(lambda name=name: self.toolbox_code(worker, name, frame, given) for name in toolboxes),
            *(lambda error=error: _raise(error) for error in members.problems),
            *(lambda code=code: self._check_trust(code, worker, frame) for code in members.code),
            *(lambda name=name: self.check_server(worker, name, frame) for name in worker.definition.mcp_servers),
            *(lambda part=part: part.sandbox_folders(frame) for part in split_by_sandbox(worker)),
            lambda: self.check_schema(worker, frame),
            *([lambda: activation_code(worker)] if worker.activate else []),
        ]
        problems: list[GuildError] = []
        for check in checks:
            try:
                check()
            except GuildError as error:
                problems.append(error)
        return problems

    def _check_program(self, worker: Worker, frame: Frame) -> None:
        try:
            self.check_program(RUNTIMES[worker.definition.runtime], frame)
        except GuildError as error:
            raise type(error)(error.message, where=error.where or worker.place, hint=error.hint) from error

    def find_code(
        self, worker: Worker, frame: Frame, given: Collection[str] = ()
    ) -> tuple[list[Code], list[GuildError]]:
        """Return the code that the worker and its members would execute, and an error for each missing part."""
        members = self.find_member_tools(worker, frame)
        code, problems = worker_code(worker, self.home, (*given, *members.toolboxes))
        return [*code, *members.code], [*problems, *members.problems]

    def toolbox_code(self, worker: Worker, name: str, frame: Frame, given: Collection[str] = ()) -> Code:
        """Return the code of a toolbox. Raise NotTrusted if it may not run. `given`: toolboxes of the caller."""
        return self._check_trust(toolbox_code(worker, name, self.home, given), worker, frame)

    def check_server(self, worker: Worker, name: str, frame: Frame) -> None:
        """Raise if an MCP server is not trusted, or if its program or variables are missing."""
        self._check_trust(server_code(worker, name), worker, frame)
        if worker.definition.mcp_servers[name].command is not None:
            server_program(worker, name, frame)
        server_variables(worker, name, frame)

    def module_code(self, worker: Worker, frame: Frame) -> Code:
        """Return the module of the worker's output model. Raise NotTrusted if it may not run."""
        return self._check_trust(module_code(worker, self.home), worker, frame)

    async def load_output_schema(self, worker: Worker, frame: Frame) -> Mapping[str, Any] | None:
        """Return the output schema of the worker, or None if the worker has no schema."""
        if (path := _schema_path(worker)) is not None:
            return _read_schema(worker, path)
        return await load_model_schema(worker, self.module_code(worker, frame)) if has_python_schema(worker) else None

    def read_schema_file(self, worker: Worker, frame: Frame) -> Mapping[str, Any] | None:
        """Return the output schema from its file, or None if there is no valid file."""
        path = _schema_path(worker)
        with suppress(GuildError):
            return _read_schema(worker, path) if path is not None else None

    def load_trust(self) -> Trust:
        return Trust(self.load_pins(), self.member_folder)

    def _check_trust(self, code: Code, worker: Worker, frame: Frame) -> Code:
        if not code.is_own:
            self.load_trust().check(code, worker, frame)
        return code

    def check_schema(self, worker: Worker, frame: Frame) -> None:
        """Raise if the output schema is not usable. Does not execute code."""
        path = _schema_path(worker)
        if has_python_schema(worker):
            self.module_code(worker, frame)
        elif path is not None:
            _read_schema(worker, path)

    def _check_search(self, worker: Worker, frame: Frame) -> None:
        if "WebSearch" not in worker.definition.tools:
            return
        from guildhall.tools.builtin.web_search import search_tool

        engine = self.load_settings(frame).web_search
        try:
            search_tool(engine.model_dump() if engine else None, merge_environ(self.environ, frame.keys))
        except ToolUnavailable as error:
            raise ToolUnavailable(f"tools: {error.message}", where=worker.place, hint=error.hint) from None


def raise_problems(problems: Sequence[GuildError], place: str) -> None:
    """Raise a single error for all problems of a start, if there are any."""
    if not problems:
        return
    if len(problems) == 1:
        raise problems[0]
    if all(isinstance(error, NotTrusted) for error in problems):
        raise NotTrusted("; ".join(error.message for error in problems), where=place, hint=problems[0].hint)
    lines = [error.message if error.where in (None, place) else f"{error.where}: {error.message}" for error in problems]
    kind = ToolUnavailable if any(isinstance(error, ToolUnavailable) for error in problems) else InvalidFile
    message = f"cannot start: {len(lines)} problems:" + "".join(f"\n  {line}" for line in lines)
    hints = dict.fromkeys(error.hint for error in problems if error.hint)
    raise kind(message, where=place, hint="\n".join(hints) or None)


def _raise(error: GuildError) -> NoReturn:
    raise error


def find_warnings(worker: Worker) -> list[str]:
    """Return warnings about valid declarations that are probably mistakes."""
    writers = [name for name in worker.definition.tools if name in ("Write", "Edit")]
    if not writers or any(sandbox.mode == "rw" for sandbox in worker.definition.sandboxes.values()):
        return []
    return [f"tools: {' and '.join(writers)} cannot write any file: add a sandbox with `mode: rw`"]


def _choose_model(worker: Worker, frame: Frame, settings: Settings, request: RunRequest) -> ModelChoice:
    """Choose the model. The error for a missing model says how to set one for this kind of run."""
    match request.purpose:
        case JobPurpose():
            by = MODEL_CONFIG
        case CommissionPurpose(id=id):
            by = f"`guild edit {id} {MODEL_OPTION}`"
        case _:
            by = MODEL_OPTION
    return choose_model(worker, frame, settings, caller=request.model, override=request.override_model, model_option=by)


def _check_model(worker: Worker) -> None:
    """Raise if the script or the provider of the worker's model does not exist."""
    model = worker.definition.model or ""
    if model.startswith(SCRIPT):
        path = Path(resolve_script_path(model, worker.resource_folder).removeprefix(SCRIPT))
        if not path.exists():
            base = "the folder of the workflow file" if worker.scope == "workflow" else "the project of the worker"
            hint = f"Create the file, or correct the path. It is relative to {base}."
            raise worker.field_error(f"script not found: {path}", ("model",), hint)
        from guildhall.models.scripted.source import load_script

        load_script(path)
    elif model not in ("", AUTO) and not model.startswith((CURSOR, REPLAY)):
        from guildhall.models.provider_source import split_name

        try:
            split_name(model)
        except ModelUnusable as error:
            raise ModelUnusable(f"model: {error.message}", where=worker.place, hint=error.hint) from None


def _settings_without_effect(worker: Worker) -> list[str]:
    """Return the model settings that the runtime of the worker cannot apply."""
    runtime = RUNTIMES[worker.definition.runtime]
    declared = worker.definition.model_settings.declared_values()
    return [name for name in declared if runtime.settings is not None and name not in runtime.settings]


def _check_runtime_settings(worker: Worker) -> None:
    runtime = RUNTIMES[worker.definition.runtime]
    if rejected := _settings_without_effect(worker):
        hint = f"{runtime.title} can apply {', '.join(runtime.settings or ()) or 'no settings'}. Remove the others."
        raise _settings_error(worker, rejected, runtime.title, hint)


async def check_settings(worker: Worker, source: Source) -> None:
    """Raise ModelUnusable if the model would ignore a setting of the worker that its runtime applies."""
    settings = worker.definition.model_settings.request_values()
    if not settings.keys() - {"cache"} or _settings_without_effect(worker):
        return
    if rejected := await source.unsupported_settings(settings):
        names = ["stop" if name == "stop_sequences" else name for name in rejected]
        raise _settings_error(worker, names, source.name, "Remove them, or choose another model.")


def has_price(source: Source) -> bool:
    from pydantic_ai.usage import RequestUsage

    return source.cost(RequestUsage(input_tokens=1000, output_tokens=1000)) is not None


def no_price_error(model: str) -> ModelUnusable:
    from guildhall.models.provider_source import nearest_model

    suggestion = nearest_model(model) or "Use a model with a price."
    message = f"the model {model} has no known price, so a budget cannot be enforced"
    return ModelUnusable(message, hint=f"{suggestion} Or set max_turns instead of a budget.")


def _settings_error(worker: Worker, rejected: Iterable[str], subject: str, hint: str) -> ModelUnusable:
    names = ", ".join(f"`{name}`" for name in rejected)
    return ModelUnusable(f"model_settings: {subject} cannot apply {names}", where=worker.place, hint=hint)


def split_by_sandbox(worker: Worker) -> Iterator[Worker]:
    """Yield a copy of the worker for each sandbox, so that an invalid sandbox does not hide another."""
    for name, sandbox in worker.definition.sandboxes.items():
        yield replace(worker, definition=worker.definition.model_copy(update={"sandboxes": {name: sandbox}}))


def adapt_model(worker: Worker, choice: ModelChoice) -> ModelChoice:
    """Return a model that the runtime of the worker accepts. Replace `auto` by a model of its provider."""
    runtime = RUNTIMES[worker.definition.runtime]
    if runtime.uses_model_door and choice.model.startswith(CURSOR):
        raise ModelUnusable(
            f"{choice.model} works only with `runtime: cursor`",
            where=worker.place,
            hint="Set `runtime: cursor` in the worker file, or choose another model.",
        )
    if not runtime.providers or (runtime.uses_model_door and choice.model.startswith((SCRIPT, REPLAY))):
        return choice
    if choice.model == AUTO:
        return replace(choice, model=AUTO_MODELS.get(runtime.providers[0], f"{runtime.providers[0]}:{AUTO}"))
    if choice.model.partition(":")[0] in runtime.providers:
        return choice
    accepted = " or ".join(f"`{provider}:...`" for provider in runtime.providers)
    accepted += " or a script" if runtime.uses_model_door else ""
    raise ModelUnusable(
        f"runtime {runtime.name} does not accept the model {choice.model}",
        where=worker.place,
        hint=f"Choose {accepted}, or set `runtime: pydantic`.",
    )


def add_runtime_capabilities(worker: Worker, tools: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Return the capabilities of the tools, the runtime and the project instructions."""
    runtime = RUNTIMES[worker.definition.runtime]
    prompt = {"project_instructions": CAPABILITIES} if worker.definition.project_instructions else {}
    return {**tools, **prompt, **({runtime.title: frozenset({"net"})} if runtime.needs_network else {})}


def check_exfiltration(worker: Worker, tools: Mapping[str, frozenset[str]], others: frozenset[str]) -> None:
    """Raise if the runtime could send private data without asking. `others`: capabilities of other workers."""
    runtime, capabilities = RUNTIMES[worker.definition.runtime], add_runtime_capabilities(worker, tools)
    if runtime.title in assess_risk(capabilities, accepted=worker.definition.accepts_risk, others=others).guarded:
        raise ToolUnavailable(
            f"runtime {runtime.name}: {runtime.title} could send private files over the network without approval",
            where=worker.place,
            hint="Remove the tools that read private files, or set `accepts_risk: true` in the worker file.",
        )


def check_native_tools(worker: Worker, tools: Iterable[Tool]) -> None:
    """Raise if the worker has a tool of the model provider that its runtime cannot use."""
    runtime = RUNTIMES[worker.definition.runtime]
    if runtime.program is not None and (native := next((tool.name for tool in tools if tool.native), None)):
        raise ToolUnavailable(
            f"tools: {native} of the model provider cannot be used with runtime {runtime.name}",
            where=worker.place,
            hint="Set a search engine in config.yaml: `web_search: {searxng: URL}`. Or remove the tool.",
        )


def check_restart(worker: Worker, tools: Iterable[Tool], journal: Journal) -> None:
    """Raise Conflict if the runtime would start over and repeat calls that have effects."""
    runtime = RUNTIMES[worker.definition.runtime]
    if runtime.uses_model_door:
        return
    harmless = {tool.name for tool in tools if tool.repeatable and all(c.endswith(".read") for c in tool.capabilities)}
    called = [entry.data.tool for entry in journal.all(ToolStarted)]
    if effects := dict.fromkeys(name for name in called if name not in harmless):
        message = f"cannot resume {journal.run_id}: {runtime.title} would start over and repeat {', '.join(effects)}"
        hint = f"Start a new run for the remaining work. Show the calls: guild log {journal.run_id}"
        raise Conflict(message, hint=hint)


def check_conversation(worker: Worker) -> None:
    """Raise Refused if the runtime cannot resume conversations."""
    runtime = RUNTIMES[worker.definition.runtime]
    if not runtime.uses_model_door:
        raise Refused(
            f"cannot start a conversation: {runtime.title} calls its model itself, so no conversation can be resumed",
            where=worker.place,
            hint="Choose a worker with another runtime, such as `runtime: pydantic`.",
        )


def check_replayable(worker: Worker, run_id: str) -> None:
    """Raise Conflict if the journal has no answers, because the runtime calls its model itself."""
    runtime = RUNTIMES[worker.definition.runtime]
    if not runtime.uses_model_door:
        message = f"cannot replay {run_id}: {runtime.title} calls its model itself, so the answers are not recorded"
        raise Conflict(message, hint=f"Show its tool calls: guild log {run_id}")
