"""Start of a workflow: binds params, tag and variables to a file, and checks them before anything is executed.

Also derives the kickoff message, the room settings, the budget and the recorded request of a start. Moves the documents
of a room aside for a fresh start, and builds the workflow of workers that run without a file.
Does not create the run (`service.py`) or parse the file (`loader.py`).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.config import Settings, resolve_script_path
from guildhall.core.errors import Conflict, GuildError, InvalidFile, Refused, UsageError
from guildhall.core.text import did_you_mean
from guildhall.room.document_stores import check_folder
from guildhall.room.mentions import find
from guildhall.room.model import RoomRecord, Said
from guildhall.room.service import RoomSettings
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.model import PERMISSION_PATHS, Worker
from guildhall.workers.registry import normalize_model
from guildhall.workflow.definition import NOBODY
from guildhall.workflow.loader import frozen, texts, thawed
from guildhall.workflow.model import SHOWN, Agent, Values, Workflow, fill, references, refuse_secrets, unfilled
from guildhall.workflow.target import GLOBAL, OVER, Instance, check_tag

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.model import RunRequest


_REMINDER = "It is time: look whether there is something for you to do."


def bound(workflow: Workflow, given: Mapping[str, str]) -> dict[str, str]:
    """Every param of the file with its value: given, or the default."""
    params = workflow.definition.params
    for name in given:
        if name not in params:
            hint = did_you_mean(name, params) or "The file names none under `params:`."
            raise UsageError(f"the workflow {workflow.name} has no param {yaml.format_value(name)}", hint=hint)
    if missing := [name for name, param in params.items() if param.must_be_given and name not in given]:
        about = params[missing[0]].description
        told = f" ({about})" if about else ""
        hint = f"Give it: --param {missing[0]}=VALUE{told}."
        raise UsageError(f"the workflow {workflow.name} needs the param {', '.join(missing)}", hint=hint)
    return {name: given.get(name, param.default or "") for name, param in params.items()}


def values_of(
    workflow: Workflow, *, tag: str, params: Mapping[str, str], frame: Frame, allowed: Collection[str]
) -> Values:
    """What its placeholders stand for before the setup has run. `allowed` are the variables of the user's settings.

    Raises where something is lacking, is not allowed, or would show a secret to a model.
    """
    check_tag(tag)
    for index, name in enumerate(workflow.definition.env):
        if name not in allowed and name not in frame.harmless_env():
            hint = f"To allow it, write `env: [{name}]` into config.yaml of your home."
            raise _at(
                workflow, Refused(f"the variable {name} is not allowed by your settings", hint=hint), "env", index
            )
    values = Values(
        workflow=workflow.name,
        tag=tag,
        params=bound(workflow, params),
        env={name: frame.env[name] for name in workflow.definition.env if name in frame.env},
    )
    _check(workflow, values, outputs=False)
    return values


def after_setup(workflow: Workflow, values: Values, outputs: Mapping[str, str]) -> Values:
    """The values once the setup has run. Raises where an output would show a secret to a model."""
    known = replace(values, outputs=dict(outputs))
    _check(workflow, known, outputs=True)
    return known


def kickoff(workflow: Workflow, values: Values) -> Said:
    """The first message of the channel; empty where the file has none."""
    return fill(workflow.definition.kickoff or "", values)


def wakes_nobody(workflow: Workflow) -> str | None:
    """Why no agent would do anything until a person speaks to it; None: one would."""
    said, names = workflow.definition.kickoff or "", [agent.name for agent in workflow.agents]
    told = said.strip() and not workflow.definition.context.enabled
    if told or any(agent.wakeup for agent in workflow.agents) or {*find(unfilled(said), names).reached} & {*names}:
        return None
    why = "the kickoff mentions no agent" if said.strip() else "the file has no kickoff"
    return f"nobody is told to do anything: {why}, and no agent has a wakeup"


def wakeup_prompt(agent: Agent, values: Values) -> Said:
    """What the agent is told when it wakes by itself."""
    said = fill(agent.wakeup_prompt or "", values)  # what its placeholders stand for may be empty
    return said if said.text.strip() else Said.own(_REMINDER)


def budget_of(workflow: Workflow, settings: Settings, asked: float | None = None) -> float | None:
    """Dollars of the whole team: what was asked for, else what the file says, but not more than the settings'."""
    if asked is not None:
        return asked
    both = [one for one in (workflow.budget, settings.budget) if one is not None and not math.isinf(one)]
    return min(both, default=None)


def from_here(request: RunRequest, frame: Frame) -> RunRequest:
    """The request with its models as they are meant where it was made: agents work in the folder of the file."""
    model, override = (one and resolve_script_path(one, frame.cwd) for one in (request.model, request.override_model))
    return replace(request, model=model, override_model=override)


def check_places(workflow: Workflow, values: Values, home: Home, frame: Frame) -> None:
    """Raise if agents could write the database, or files that decide what agents may do, as documents."""
    documents, database = workflow.documents(values), workflow.database(values)
    if documents and database and documents.resolve() in database.resolve().parents:
        error = InvalidFile(f"{database} lies among the documents, which agents write", hint="Choose another place.")
        raise _at(workflow, error, "context", "config", "db")
    root = workflow.frame(frame).root
    deciding = [home.path, root / ".git", *(top / name for top in {root, workflow.folder} for name in PERMISSION_PATHS)]
    for folder in filter(None, (documents, database)):
        try:
            real = folder.resolve()
            kept = [path.resolve() for path in deciding]
        except (OSError, RuntimeError) as error:
            raise _at(workflow, InvalidFile(f"{folder} cannot be used: {error}"), "context", "config") from None
        for path in kept:
            if real == path or path in real.parents or real in path.parents:
                hint = "Choose a folder of its own, or leave it out."
                raise _at(
                    workflow, InvalidFile(f"{folder} is kept from agents: {path}", hint=hint), "context", "config"
                )


def _check(workflow: Workflow, values: Values, *, outputs: bool) -> None:
    """Raise for the first text that has a placeholder without a value, or a secret where a model reads it."""
    for text in texts(workflow.definition):
        content = workflow.agent(text.prompt_of).prompt if text.prompt_of else text.text
        try:
            for reference in references(content):
                empty = not text.read_by_model and reference.kind == "env"  # in a command one that is not set is empty
                if not empty and (outputs or reference.kind != "output"):
                    values.of(reference)
            if text.read_by_model:
                refuse_secrets(content, values)
        except GuildError as error:
            if content == text.text:
                raise _at(workflow, error, *text.location) from None
            where = str(workflow.folder / text.text.strip())  # the file of the prompt
            raise type(error)(error.message, where=where, hint=error.hint) from None


def _at(workflow: Workflow, error: GuildError, *location: str | int) -> GuildError:
    """The error with the line of the file that it is about."""
    source = yaml.parse(workflow.path, workflow.text)
    placed = source.error(error.message, location)
    return type(error)(placed.message, where=placed.where, hint=error.hint)


def furnished(workflow: Workflow, values: Values) -> RoomSettings:
    """The room that the file wants."""
    context = workflow.definition.context
    owner = context.document_owner
    return RoomSettings(
        documents=workflow.documents(values),
        owner=None if owner == NOBODY else owner,
        projection=workflow.room_folder(values) if context.enabled and context.provider == "file" else None,
        max_hops=workflow.definition.limits.max_hops,
        max_repeats=workflow.definition.limits.max_repeats,
    )


def refuse_alive(before: Instance | None, workflow: Workflow, *, fresh: bool) -> None:
    """Raises where the tag is not free: it lives, or is that of another file."""
    if before is None:
        return
    if before.status not in OVER:
        see = f"See it with `guild log -f {before.target}`, stop it with `guild stop {before.target}`, or use --tag."
        hint = f"Go on with it: guild resume {before.id}. {see}" if before.status == "paused" else see
        raise Conflict(f"{before.target} is not over: {before.status} (run {before.id})", hint=hint)
    if before.path != str(workflow.path) and not fresh:
        raise Conflict(
            f"{before.target} is the workflow of {before.path}",
            hint="Use another tag (--tag), another name, or --fresh for a room of its own.",
        )


def refuse_replaced(instance: Instance, newest: Instance | None) -> None:
    """Raises where a later generation has taken the room over: two teams would answer the same mail."""
    if newest is not None and newest.id != instance.id:
        message = f"{instance.target} was begun anew as {newest.id}, which is {newest.status}: {instance.id} is over"
        raise Conflict(message, hint=f"See guild show {newest.target}.")


def asked_of(workflow: Workflow) -> str:
    """What the run of a workflow is on record as asked for."""
    return workflow.definition.kickoff or f"Start {workflow.name}."


def conducting(workflow: Workflow) -> Worker:
    """Who stands for the workflow itself on record: it has the setup's commands and nothing else."""
    definition = WorkerDefinition(name=workflow.name, description=workflow.definition.description, base=False)
    return Worker(
        definition=definition,
        instructions="",
        scope="workflow",
        digest=workflow.digest,
        path=workflow.path,
    )


def set_aside(room: RoomRecord) -> Path | None:
    """Moves the room's documents, and its channel as files; where the documents are now, if they are files.

    Each gets a number that no tag and no document can have: documents~1.
    """
    documents, projection = room.folder, room.projection
    found = [documents] if documents is not None else []
    found += [projection / name for name in SHOWN] if projection is not None else []
    there = [path for path in found if path.exists() or path.is_symlink()]
    if not there:
        return documents
    number = next(n for n in count(1) if not any(_aside(path, n).exists() for path in found))
    for path in there:
        check_folder(path)
        try:
            path.rename(_aside(path, number))
        except OSError as error:
            raise Conflict(f"it cannot be moved aside: {error.strerror or error}", where=str(path)) from None
    return _aside(documents, number) if documents is not None and documents in there else documents


def _aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}~{number}")


_FILE = "standalone.yaml"  # in the home; nothing lies there, it names where the workflow is


def recorded_hooks(worker: Worker, request: RunRequest, frame: Frame) -> Agent:
    """The worker as an agent that works from where it was started, with the model that was asked for then."""
    own = worker.definition
    chosen = request.override_model or own.model or request.model or frame.model
    limits = own.limits
    if request.max_turns is not None:
        limits = limits.model_copy(update={"max_turns": request.max_turns})
    changes = {"model": resolve_script_path(normalize_model(chosen), frame.cwd) if chosen else None, "limits": limits}
    seated = replace(worker, definition=own.model_copy(update=changes))
    return Agent(name=worker.name, ordinal=0, worker=seated, prompt="", inline=False, place=frame.cwd)


def workflow_of(home: Home, agents: Sequence[Agent]) -> Workflow:
    """The workflow in which exactly these agents are seated."""
    data: dict[str, Any] = {
        "name": "standalone",
        "description": "Agents that stand alone.",
        "context": {"documents": "sqlite", "documentOwner": "none"},
        "agents": {agent.name: {"worker": agent.name} for agent in agents},
    }
    text = json.dumps(data, indent=1)
    path = home.path / _FILE
    try:
        bare = thawed(text, {"name": GLOBAL, "path": str(path), "agents": []})
    except InvalidFile as error:
        raise UsageError(error.message, hint="Seat it in a workflow's file under another name.") from None
    whole = Workflow(definition=bare.definition, path=path, text=text, agents=tuple(agents))
    return thawed(text, frozen(whole))
