"""Values of a start: params, tag, variables, kickoff message, room settings and budget, checked before execution.

A fresh start moves the documents of the room aside. Workers without a workflow file get the workflow `global`.
Does not create the run (`service.py`) or parse the file (`loader.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.config import Settings, resolve_script_path
from guildhall.core.errors import Conflict, GuildError, InvalidFile, Refused, UsageError
from guildhall.core.text_checks import did_you_mean
from guildhall.room.document_stores import check_folder
from guildhall.room.mentions import find
from guildhall.room.model import MessageText, RoomRecord
from guildhall.room.service import RoomSettings
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.model import PERMISSION_PATHS, Worker
from guildhall.workers.registry import normalize_model
from guildhall.workflow.definition import NO_OWNER
from guildhall.workflow.instance import FINAL_PHASES, Instance
from guildhall.workflow.loader import from_record, placeholder_texts, to_record
from guildhall.workflow.model import EXPORTED_FILES, Agent, Workflow
from guildhall.workflow.placeholders import Values, check_secrets, fill, quote_placeholders, references
from guildhall.workflow.target import GLOBAL, check_tag

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.runs.model import RunRequest

_REMINDER = "Scheduled wake-up: check if there is work for you."


def bind_params(workflow: Workflow, given: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every param. Raise UsageError for unknown or missing params."""
    params = workflow.definition.params
    for name in given:
        if name not in params:
            hint = did_you_mean(name, params) or "The file has no `params:`."
            raise UsageError(f"unknown param {yaml.format_value(name)} of the workflow {workflow.name}", hint=hint)
    if missing := [name for name, param in params.items() if param.is_required and name not in given]:
        description = params[missing[0]].description
        hint = f"Add --param {missing[0]}=VALUE{f' ({description})' if description else ''}."
        raise UsageError(f"missing param of the workflow {workflow.name}: {', '.join(missing)}", hint=hint)
    for name, value in given.items():
        if not params[name].accepts(value):
            raise UsageError(f"invalid param {name}: expected a {params[name].type} (got {yaml.format_value(value)})")
    return {name: given.get(name, param.default or "") for name, param in params.items()}


def start_values(
    workflow: Workflow, *, tag: str, params: Mapping[str, str], frame: Frame, allowed: Collection[str]
) -> Values:
    """Return the values of placeholders before the setup. `allowed` are the variables that the user's settings allow.

    Raise if a value is missing, is not allowed, or would show a secret to a model.
    """
    check_tag(tag)
    for index, name in enumerate(workflow.definition.env):
        if name not in allowed and name not in frame.harmless_env():
            hint = f"Allow it with `env: [{name}]` in config.yaml of your home."
            raise _locate(workflow, Refused(f"your settings do not allow the variable {name}", hint=hint), "env", index)
    values = Values(
        workflow=workflow.name,
        tag=tag,
        folder=str(workflow.folder),
        params=bind_params(workflow, params),
        env={name: frame.env[name] for name in workflow.definition.env if name in frame.env},
    )
    _check_texts(workflow, values, outputs=False)
    return values


def after_setup(workflow: Workflow, values: Values, outputs: Mapping[str, str]) -> Values:
    """Return the values with the outputs of the setup. Raise if an output would show a secret to a model."""
    known = replace(values, outputs=dict(outputs))
    _check_texts(workflow, known, outputs=True)
    return known


def kickoff_message(workflow: Workflow, values: Values) -> MessageText:
    """Return the kickoff message, empty if the file has none."""
    return fill(workflow.definition.kickoff or "", values)


def no_agent_warning(workflow: Workflow) -> str | None:
    """Return a warning if no agent would start working, else None."""
    kickoff, names = workflow.definition.kickoff or "", [agent.name for agent in workflow.agents]
    if kickoff.strip() and not workflow.definition.context.enabled:
        return None  # without a room, every agent works on the kickoff
    mentioned = {*find(quote_placeholders(kickoff), names).reached}
    if any(agent.name in mentioned or agent.wakeup for agent in workflow.agents):
        return None
    reason = "the kickoff mentions no agent" if kickoff.strip() else "the file has no kickoff"
    return f"no agent starts: {reason}, and no agent has a wakeup"


def wakeup_message(agent: Agent, values: Values) -> MessageText:
    """Return the message that wakes an agent by schedule."""
    message = fill(agent.wakeup_prompt or "", values)  # the values may be empty
    return message if message.text.strip() else MessageText.own(_REMINDER)


def team_budget(workflow: Workflow, settings: Settings, requested: float | None = None) -> float | None:
    """Return the budget of the team: the requested one, else that of the file, at most that of the settings."""
    if requested is not None:
        return requested
    budgets = (budget for budget in (workflow.budget, settings.budget) if budget is not None)
    return min((budget for budget in budgets if not math.isinf(budget)), default=None)


def anchor_models(request: RunRequest, frame: Frame) -> RunRequest:
    """Return the request with absolute paths of model scripts. Relative paths start at the folder of the caller."""
    model, override = (
        model and resolve_script_path(model, frame.cwd) for model in (request.model, request.override_model)
    )
    return replace(request, model=model, override_model=override)


def check_paths(workflow: Workflow, values: Values, home: Home, frame: Frame) -> None:
    """Raise if agents could write the database, or files that set permissions, as documents."""
    documents, database = workflow.documents_folder(values), workflow.database_path(values)
    if documents and database and documents.resolve() in database.resolve().parents:
        message = f"invalid path {database}: it is in the folder of the documents, which agents write"
        error = InvalidFile(message, hint="Choose a path outside of the folder of the documents.")
        raise _locate(workflow, error, "context", "config", "db")
    root = workflow.frame(frame).root
    permission_paths = (folder / name for folder in {root, workflow.folder} for name in PERMISSION_PATHS)
    protected_paths = [home.path, root / ".git", *permission_paths]
    for path in filter(None, (documents, database)):
        try:
            real = path.resolve()
            protected = [protected_path.resolve() for protected_path in protected_paths]
        except (OSError, RuntimeError) as error:
            raise _locate(workflow, InvalidFile(f"invalid path {path}: {error}"), "context", "config") from None
        for other in protected:
            if real == other or other in real.parents or real in other.parents:
                message = f"invalid path {path}: it overlaps {other}, which agents must not write"
                error = InvalidFile(message, hint="Choose a separate path, or omit it.")
                raise _locate(workflow, error, "context", "config")


def _check_texts(workflow: Workflow, values: Values, *, outputs: bool) -> None:
    """Raise for the first text that has a placeholder without a value, or a secret where a model reads it."""
    for text in placeholder_texts(workflow.definition):
        content = workflow.agent(text.prompt_of).prompt if text.prompt_of else text.text
        try:
            for reference in references(content):
                may_be_unset = not text.read_by_model and reference.kind == "env"  # a command reads it as empty
                if not may_be_unset and (outputs or reference.kind != "output"):
                    values.get(reference)
            if text.read_by_model:
                check_secrets(content, values)
        except GuildError as error:
            if content == text.text:
                raise _locate(workflow, error, *text.location) from None
            where = str(workflow.folder / text.text.strip())  # the file of the prompt
            raise type(error)(error.message, where=where, hint=error.hint) from None


def _locate(workflow: Workflow, error: GuildError, *location: str | int) -> GuildError:
    """Return the error with the line of the workflow file."""
    source = yaml.parse(workflow.path, workflow.text)
    placed = source.error(error.message, location)
    return type(error)(placed.message, where=placed.where, hint=error.hint)


def room_settings(workflow: Workflow, values: Values) -> RoomSettings:
    """Return the room settings of the workflow file."""
    context = workflow.definition.context
    owner = context.document_owner
    return RoomSettings(
        documents=workflow.documents_folder(values),
        owner=None if owner == NO_OWNER else owner,
        export_folder=workflow.room_folder(values) if context.enabled and context.provider == "file" else None,
        max_hops=workflow.definition.limits.max_hops,
        max_repeats=workflow.definition.limits.max_repeats,
    )


def check_tag_free(before: Instance | None, workflow: Workflow, *, fresh: bool) -> None:
    """Raise Conflict if the last workflow with this tag has not ended, or was started from another file."""
    if before is None:
        return
    if before.status not in FINAL_PHASES:
        hint = f"Follow: guild log -f {before.id}. Stop: guild stop {before.id}. Or use another --tag."
        hint = f"Continue: guild resume {before.id}. {hint}" if before.status == "paused" else hint
        message = f"cannot start {before.target}: it has not ended, its status is {before.status} (run {before.id})"
        raise Conflict(message, hint=hint)
    if not fresh:
        check_same_file(before, workflow)


def check_same_file(before: Instance | None, workflow: Workflow) -> None:
    """Raise Conflict if the last workflow with this name and tag in the project was started from another file."""
    if before is not None and before.path != str(workflow.path):
        hint = "Use another --tag, another name, or --fresh for a new room."
        message = f"cannot start {before.target} from {workflow.path}: it was started from another file: {before.path}"
        raise Conflict(message, hint=hint)


def check_not_replaced(instance: Instance, newest: Instance | None) -> None:
    """Raise Conflict if a later generation uses the room, because both teams would read the same mail."""
    if newest is not None and newest.id != instance.id:
        message = f"cannot resume {instance.id}: {instance.target} was started again as {newest.id} ({newest.status})"
        raise Conflict(message, hint=f"Show the new generation: guild show {newest.id}")


def recorded_input(workflow: Workflow) -> str:
    """Return the recorded input of the workflow's run."""
    return workflow.definition.kickoff or f"Start {workflow.name}."


def workflow_worker(workflow: Workflow) -> Worker:
    """Return the worker of the workflow's own run. It has only the setup commands."""
    definition = WorkerDefinition(name=workflow.name, description=workflow.definition.description, base=False)
    return Worker(definition=definition, instructions="", scope="workflow", digest=workflow.digest, path=workflow.path)


def move_documents_aside(room: RoomRecord) -> Path | None:
    """Rename the documents and exported files of a room, and return the new folder of the documents, if any.

    The new names have a suffix that no tag and no document can have, such as documents~1.
    """
    documents, export_folder = room.documents_folder, room.export_folder
    paths = [documents] if documents is not None else []
    paths += [export_folder / name for name in EXPORTED_FILES] if export_folder is not None else []
    existing = [path for path in paths if path.exists() or path.is_symlink()]
    if not existing:
        return documents
    number = next(n for n in count(1) if not any(_aside_path(path, n).exists() for path in paths))
    for path in existing:
        check_folder(path)
        try:
            path.rename(_aside_path(path, number))
        except OSError as error:
            message = f"cannot move the files of the room aside: {error.strerror or error}"
            raise Conflict(message, where=str(path), hint="Make the folder above it writable.") from None
    return _aside_path(documents, number) if documents is not None and documents in existing else documents


def _aside_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}~{number}")


_STANDALONE_FILE = "standalone.yaml"  # a name in the home; the file does not exist


def standalone_agent(worker: Worker, request: RunRequest, frame: Frame) -> Agent:
    """Return a worker as an agent that works in the caller's folder, with the requested model."""
    definition = worker.definition
    model = request.override_model or definition.model or request.model or frame.model
    limits = definition.limits
    if request.max_turns is not None:
        limits = limits.model_copy(update={"max_turns": request.max_turns})
    changes = {"model": resolve_script_path(normalize_model(model), frame.cwd) if model else None, "limits": limits}
    worker = replace(worker, definition=definition.model_copy(update=changes))
    return Agent(name=worker.name, worker=worker, prompt="", is_inline=False, cwd=frame.cwd)


def standalone_workflow(home: Home, agents: Sequence[Agent]) -> Workflow:
    """Return the workflow `global` with exactly these agents."""
    data: dict[str, Any] = {
        "name": "standalone",
        "description": "Agents without a workflow file.",
        "context": {"documents": "sqlite", "documentOwner": "none"},
        "agents": {agent.name: {"worker": agent.name} for agent in agents},
    }
    text = json.dumps(data, indent=1)
    path = home.path / _STANDALONE_FILE
    try:
        without_agents = from_record(text, {"name": GLOBAL, "path": str(path), "agents": []})
    except InvalidFile as error:
        raise UsageError(error.message, hint="Use the worker in a workflow file under another name.") from None
    workflow = Workflow(definition=without_agents.definition, path=path, text=text, agents=tuple(agents))
    return from_record(text, to_record(workflow))
