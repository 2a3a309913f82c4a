"""`guild wait ID|TARGET`: waits until a run, a job or a commission has ended or needs the user.

The wait for a workflow or an agent ends when it is idle. Does not print events (see `cli.commands.runs.log`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import Resolved, duration_s, is_member_job, resolve
from guildhall.cli.command import ANY_ID, Context, argument, command, find_running
from guildhall.cli.format.commissions_and_meetings import print_commission, wait_idle, warn_if_stopped
from guildhall.cli.format.jobs import note_open_questions, print_result, wait_for_member
from guildhall.cli.format.runs import print_outcome, result_data
from guildhall.cli.format.workflows import address, answer_lines, failed_agents, message_lines
from guildhall.core.clock import SystemClock
from guildhall.core.errors import TimedOut
from guildhall.core.ids import COMMISSION, JOB, is_id
from guildhall.room.model import PERSON
from guildhall.runs.model import OUTLIVING_KINDS

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import RunDetails

_POLL_S = 0.2  # if the run is not alive in this hall
# Events that may end the wait.
_TURNING_POINTS = frozenset({"run_started", "run_ended", "ask_opened", "workflow"})


@command(
    ANY_ID,
    argument("--timeout", metavar="T", type=duration_s, help="give up after this time, such as 10m (exit 6)"),
    argument("--json", action="store_true", help="print an object, as `guild run --output json` does"),
)
async def wait(ctx: Context) -> int:
    if "@" not in ctx.args.id and is_member_job(ctx.args.id):
        await ctx.connect()
        async with _timeout(ctx, f"guild show {ctx.args.id}"):
            return await wait_for_member(ctx.args.id, ctx)
    client = await ctx.connect("read")
    id = ctx.args.id
    if is_id(id, JOB):
        async with _timeout(ctx, f"guild show {id}"):
            return await wait_for_job(id, ctx)
    if is_id(id, COMMISSION):
        async with _timeout(ctx, f"guild show {id}"):
            code, commission = await wait_idle(id, client, ctx.screen, has_hall=find_running() is not None)
        ctx.print(commission, print_commission)
        await warn_if_stopped(commission, client, ctx.screen)
        return code
    resolved = await resolve(id, ctx)
    async with _timeout(ctx, f"guild log -f {resolved.run_id}"):
        code, details = await wait_stopped(resolved, client, replace(ctx.frame, interactive=False))
    if ctx.as_json:
        ctx.screen.json(await result_data(details, client))
        return code
    print_outcome(details, ctx.screen)
    if details.run.kind == "workflow" and details.run.status != "completed":
        await _print_messages(resolved, client, ctx.screen)
    if code == exit_codes.FAILED and details.run.status == "running":
        workflow = await client.workflows.find_by_run(details.run.id)
        for agent in failed_agents(workflow):
            if resolved.agent is None or resolved.agent.name == agent.name:
                target = replace(address(workflow, ctx.frame.root), agent=agent.name)
                ctx.screen.note(f"guild: {target} has failed; see guild log {details.run.id}", "red")
                ctx.screen.note(f"Start it again: guild start {target}")
    return code


async def _print_messages(resolved: Resolved, client: HallClient, screen: Screen) -> None:
    """Print what the agents have said to the user since the user's last message, and their last answers."""
    agents = (await client.workflows.find_by_run(resolved.run_id)).agents
    if (one := resolved.agent) is not None:
        agents = [agent for agent in agents if agent.name == one.name]
    messages = await client.rooms.messages(resolved.run_id)
    last_input = max((message.id for message in messages if message.sender == PERSON), default=0)
    for line in (*message_lines(agents, after=last_input), *answer_lines(agents)):
        screen.result(line)


@asynccontextmanager
async def _timeout(ctx: Context, command: str) -> AsyncGenerator[None]:
    """Raise TimedOut after --timeout. `command`: shows the progress."""
    try:
        async with asyncio.timeout(ctx.args.timeout):
            yield
    except TimeoutError:
        raise TimedOut(f"timed out: {ctx.args.id} is still running", hint=f"Progress: {command}") from None


async def wait_for_job(id: str, ctx: Context) -> int:
    """Wait until a job has ended or needs the user. Print its result with its artifacts and return the exit code."""
    client, screen = ctx.client, ctx.screen
    code, run_details = await wait_stopped(await resolve(id, ctx), client, replace(ctx.frame, interactive=False))
    job = await client.jobs.get(id)
    result = await client.jobs.result(id) if job.job.status == "completed" else None
    if ctx.as_json:
        screen.json({**job.as_dict(), **(result.as_wire() if result else {})})
    elif result is None:
        print_outcome(run_details, screen)
    else:
        print_result(result, screen)
        note_open_questions(id, job, screen)
    return code


async def wait_stopped(resolved: Resolved, client: HallClient, frame: Frame) -> tuple[int, RunDetails]:
    """Wait until a run has ended, is idle or needs the user. Return the exit code and the state of the run."""
    while True:
        details = await client.runs.get(resolved.run_id)
        if (code := await _exit_code(resolved, details, client)) is not None:
            return code, details
        async with aclosing(client.runs.follow(details.run.root, frame)) as events:
            async for event in events:
                if event.type not in _TURNING_POINTS:
                    continue
                details = await client.runs.get(resolved.run_id)
                if (code := await _exit_code(resolved, details, client)) is not None:
                    return code, details
        await SystemClock().sleep(_POLL_S)


async def _exit_code(resolved: Resolved, details: RunDetails, client: HallClient) -> int | None:
    """Return the exit code, or None while there is something to wait for."""
    # Asks of the other kinds do not block the run.
    if any(ask.status == "open" and ask.kind not in OUTLIVING_KINDS for ask in details.asks):
        return exit_codes.NEEDS_YOU
    if details.run.status != "running":
        is_stopped = details.run.status in ("interrupted", "paused")
        return (
            exit_codes.NEEDS_YOU if is_stopped else exit_codes.run_exit_code(details.run.status, details.run.error_code)
        )
    if details.run.kind != "workflow":
        return None
    workflow = await client.workflows.find_by_run(details.run.id)
    if resolved.agent is not None:
        agent = next(one for one in workflow.agents if one.name == resolved.agent.name)
        ends = {"failed": exit_codes.FAILED, "waiting": exit_codes.NEEDS_YOU, "stopped": exit_codes.DONE}
        return exit_codes.DONE if agent.status == "idle" and not agent.unread else ends.get(agent.status)
    if workflow.status != "idle":
        return None
    return exit_codes.FAILED if any(one.status == "failed" for one in workflow.agents) else exit_codes.DONE
