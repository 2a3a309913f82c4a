"""Agents that stand alone: workers seated in `global:main`, a workflow without a file whose seats come and go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.config import anchored
from guildhall.core.errors import InvalidFile, UsageError
from guildhall.workers.choose import normal
from guildhall.workflow.load import frozen, thawed
from guildhall.workflow.model import Agent, Workflow
from guildhall.workflow.target import GLOBAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.model import RunRequest
    from guildhall.workers.model import Worker

_FILE = "standalone.yaml"  # in the home; nothing lies there, it names where the workflow is


def seat_of(worker: Worker, request: RunRequest, frame: Frame) -> Agent:
    """The worker as an agent that works from where it was started, with the model that was asked for then."""
    from dataclasses import replace

    own = worker.definition
    chosen = request.override_model or own.model or request.model or frame.model
    limits = own.limits
    if request.max_turns is not None:
        limits = limits.model_copy(update={"max_turns": request.max_turns})
    changes = {"model": anchored(normal(chosen), frame.cwd) if chosen else None, "limits": limits}
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
