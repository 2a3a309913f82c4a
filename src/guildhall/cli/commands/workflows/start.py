"""`guild start WORKER|FILE|TARGET`: starts a workflow, a single worker or a stopped agent, until it is stopped.

A single worker becomes an agent of `global:main`. In the foreground, the command prints the agent's events and stops it
at the end. Does not run a workflow until it is idle (see `cli.commands.runs.run`).
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import parse_target, worker_name
from guildhall.cli.command import OUTPUT, Context, argument, check_background, command
from guildhall.cli.commands.runs.run import NEW_RUN, file_of, print_started, request_of, run_workflow
from guildhall.cli.follow import Follower, clear_cancellation
from guildhall.cli.screen import OutputFailed
from guildhall.core.errors import GuildError, UsageError
from guildhall.core.events import Event, RunStartedData
from guildhall.workflow.target import WORKFLOW_SUFFIXES, Target, is_workflow_file

_WORKFLOW_OPTIONS = ("tag", "param", "fresh", "budget", "approve_all", "strict", "max_tokens")


@command(
    argument(
        "worker",
        metavar="WORKER|FILE|TARGET",
        type=worker_name,
        help=(
            "a worker, which then runs alone; the file of a workflow; or the target of an agent that was stopped or"
            " has failed"
        ),
    ),
    argument("--background", action="store_true", help="print the run id and exit; the hall continues the work"),
    *NEW_RUN,
    OUTPUT,
)
async def start(ctx: Context) -> int | None:
    args, name = ctx.args, ctx.args.worker
    if args.background:
        check_background("start", "Omit --background")
    if is_workflow_file(file_of(name)):
        return await run_workflow(ctx, "start", background=args.background)
    if given := [f"--{option.replace('_', '-')}" for option in _WORKFLOW_OPTIONS if getattr(args, option)]:
        raise UsageError(f"start: {given[0]} can only be used with a workflow file", hint=f"Omit {given[0]}.")
    if "@" not in name or Path(name).exists():  # noqa: ASYNC240 - a command has nothing else to do
        return await _start_worker(ctx)
    target = parse_target(name)
    client = await ctx.connect()
    print_started(ctx, await client.workflows.start_agent(ctx.locate(target)), target)
    return None


async def _start_worker(ctx: Context) -> int | None:
    """Start a worker as an agent of global:main. In the foreground, it is stopped when the command ends."""
    request, name = request_of(ctx.args), ctx.args.worker
    target = Target(Path(name).stem if name.endswith(WORKFLOW_SUFFIXES) else name.rpartition("/")[2])
    client = await ctx.connect(model=ctx.args.model)
    workflow = await ctx.run_trusted(lambda: client.workflows.start_worker(request, ctx.frame), worker=request.worker)
    target = ctx.locate(target)
    if ctx.args.background:
        print_started(ctx, workflow, target)
        return None
    ctx.screen.note(f"Started {target}. Send it a message: guild send {target} ... Ctrl-C stops it.")
    return await _follow(ctx, workflow.run, target)


async def _follow(ctx: Context, run: str, target: Target) -> int:
    client, screen = ctx.client, ctx.screen
    follower, selection = Follower(client, screen), _AgentEvents(run, target.agent or "")
    code = exit_codes.DONE
    try:
        async with aclosing(client.runs.follow(run, ctx.frame)) as events:
            async for event in events:
                if event.run != run and selection.is_unknown(event):
                    workflow = await client.workflows.get(target)
                    selection.runs.update(
                        agent.run for agent in workflow.agents if agent.run and agent.name == target.agent
                    )
                if selection.contains(event):
                    await follower.handle(event)
    except (asyncio.CancelledError, OutputFailed):
        code = exit_codes.INTERRUPTED
        clear_cancellation()
    with suppress(GuildError):  # another command has stopped the agent
        await client.workflows.stop_agent(target)
    screen.note(f"Stopped {target}. Start it again: guild start {target}")
    return code


class _AgentEvents:
    """Selects the events of one agent of global:main and of its runs."""

    def __init__(self, root: str, name: str) -> None:
        self._root = root
        self._name = name
        self._others: set[str] = set()
        self.runs: set[str] = set()

    def is_unknown(self, event: Event) -> bool:
        """Return True for events of a run that started before this command subscribed."""
        return event.type != "run_started" and event.run not in self.runs | self._others

    def contains(self, event: Event) -> bool:
        if event.run == self._root:
            names = (event.data.get("actor"), *(event.data.get("reached") or ()))
            return event.type in ("run_started", "run_ended") or self._name in names
        if (started := event.read(RunStartedData)) is not None:
            parent = started["parent"]
            is_mine = parent in self.runs or (parent == self._root and started["worker"] == self._name)
            (self.runs if is_mine else self._others).add(event.run)
        elif event.run not in self.runs:
            self._others.add(event.run)
        return event.run in self.runs
