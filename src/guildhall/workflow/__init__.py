"""Workflows: YAML files that define a team of agents, and the execution of the team in a shared room.

A workflow is a run without a model. Its phases are setup commands, the election of the document owner, the kickoff
message, and turns of the agents until no agent can make progress. Each turn of an agent is a child run.

Above: cli and hall, which offer the commands and operations. Below: runs (the turns of agents), room (the channel,
documents and votes), models, runtimes, workers, tools, store, core.
Does not execute or journal a turn (`runs`), and does not store messages or documents (`room`).

Invariant: the database decides the next step of every agent. A wake-up is only a hint to read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.workflow.definition import Definition as Definition
    from guildhall.workflow.instance import Start as Start
    from guildhall.workflow.instance import WorkflowSummary as WorkflowSummary
    from guildhall.workflow.loader import load as load
    from guildhall.workflow.model import Agent as Agent
    from guildhall.workflow.model import Workflow as Workflow
    from guildhall.workflow.plan import WorkflowPlan as WorkflowPlan
    from guildhall.workflow.replay import WorkflowReplays as WorkflowReplays
    from guildhall.workflow.service import WorkflowPolicy as WorkflowPolicy
    from guildhall.workflow.service import Workflows as Workflows
    from guildhall.workflow.target import Target as Target

__getattr__, __dir__ = lazy_exports(__name__, __file__)
