"""`guild show ID|TARGET`: prints all facts about a run, job, ask, commission, meeting, workflow or agent.

Does not print the journal (see `cli.commands.runs.log`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import Resolved, is_member_job, resolve
from guildhall.cli.command import ANY_ID, Context, argument, command
from guildhall.cli.format.commissions_and_meetings import print_commission, print_meeting, warn_if_stopped
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.runs import how_to_answer, print_next_steps, reservation_text, text_of, usage_line
from guildhall.cli.format.workflows import print_workflow
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, is_id
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.model import attachment_label

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.model import RunDetails
    from guildhall.runs.model import Ask

_ERROR_FIELDS = ("code", "message", "where", "hint")


@command(
    ANY_ID,
    argument("--json", action="store_true", help="print an object, with the whole conversation of a run"),
    event_loop=False,
)
async def show(ctx: Context) -> None:
    if "@" not in ctx.args.id and is_member_job(ctx.args.id):
        return await _show_member_job(ctx)
    client = await ctx.connect("read")
    id = ctx.args.id
    if is_id(id, ASK):
        ctx.print(await client.asks.get(id), _print_ask)
    elif is_id(id, JOB):
        ctx.print(await client.jobs.get(id), lambda details, screen: print_job(id, details, screen))
    elif is_id(id, MEETING):
        ctx.print(await client.meetings.get(id), print_meeting)
    elif is_id(id, COMMISSION):
        commission = await client.commissions.get(id)
        ctx.print(commission, print_commission)
        await warn_if_stopped(commission, client, ctx.screen)
    else:
        resolved = await resolve(id, ctx)
        details = await client.runs.get(resolved.run_id)
        if resolved.workflow is None:
            data = {
                **details.run.as_dict(),
                "runtime": details.runtime,
                "usage": details.usage.as_dict(),
                "cost_usd": details.usage.cost_usd,
                "reserved_usd": details.reserved_usd,
                "reserved_tokens": details.reserved_tokens,
                "attachments": list(details.attachments),
                "below": [run.as_dict() for run in details.below],
                "asks": [ask.as_dict() for ask in details.asks],
                "messages": list(details.messages),
            }
            ctx.print(details, _print_run, data=data)
        else:
            _print_team(ctx, resolved, details)
    return None


async def _show_member_job(ctx: Context) -> None:
    """Print a member's job with its artifacts, and its directory if the member has one in its folder."""
    client, id = await ctx.connect(), ctx.args.id  # members can only be called by a running hall
    details = await client.jobs.get(id, ctx.frame)
    if ctx.as_json:
        ctx.screen.json({**details.as_wire(), "member": id.rpartition("/")[0]})
        return
    member, _, job = id.rpartition("/")
    artifacts = (await client.jobs.result(id, ctx.frame)).artifacts if details.job.status == "completed" else ()
    folder = (await client.members.get(member, ctx.frame)).member.folder / "jobs" / job
    is_kept = is_id(job, JOB) and folder.is_dir()
    print_job(id, replace(details, artifacts=artifacts, directory=str(folder) if is_kept else None), ctx.screen)


def _print_team(ctx: Context, resolved: Resolved, details: RunDetails) -> None:
    """Print a workflow, or one agent of it, with its asks."""
    workflow, agent, screen = resolved.workflow, resolved.agent, ctx.screen
    assert workflow is not None
    if ctx.as_json:
        asks = [ask.as_dict() for ask in details.asks if agent is None or ask.run == agent.run]
        screen.json({**(agent or workflow).as_dict(), "asks": asks})
        return
    print_workflow(workflow if agent is None else replace(workflow, agents=(agent,)), screen, is_whole=True)
    if asks := [["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in details.asks]:
        screen.heading("\nasks")
        screen.table(asks, indent="  ")
    screen.section("output", text_of(details.run.output))
    print_next_steps(details, screen)


def _print_ask(ask: Ask, screen: Screen) -> None:
    note = f" ({ask.answer.note})" if ask.answer and ask.answer.note else ""
    rows = [
        ["ask", ask.id],
        ["of run", ask.run],
        ["kind", ask.kind.replace("_", " ")],
        ["status", ask.status],
        ["asked", ask.created_at],
        ["expires", ask.expires_at or ""],
        ["answer", f"{ask.answer.choice}{note}, by {ask.answer.by}" if ask.answer else ""],
    ]
    screen.facts(rows)
    screen.result(screen.exact(ask.question.title))
    if details := ask.question.details:
        screen.result(screen.quote_block(details))
    if ask.status == "open":
        screen.note(f"Answer: {how_to_answer(ask, is_shown=True)}")


def _print_run(details: RunDetails, screen: Screen) -> None:
    run, runtime, origin, error = details.run, RUNTIMES[details.runtime], details.run.forked_from, details.run.error
    rows = [
        ["run", run.id],
        ["called by", run.parent or ""],
        ["worker", run.worker],
        ["runtime", runtime.title if runtime.program is not None else ""],
        ["model", run.model],
        ["status", f"{run.status} ({run.reason})" if run.reason else run.status],
        ["started", run.created_at],
        ["forked from", f"{origin.run} after entry {origin.at}" if origin else ""],
        ["ended", run.ended_at or ""],
        *(["attached", attachment_label(file)] for file in details.attachments),
        ["used", usage_line(details)],
        ["reserved", reservation_text(details)],
        *(["error" if name == "code" else name, str(error.get(name) or "")] for name in _ERROR_FIELDS if error),
        *(["called", f"{one.id} {one.worker} {one.status}"] for one in details.below),
        *(["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in details.asks),
    ]
    screen.facts(rows)
    screen.section("input", run.request.input)
    screen.section("output", text_of(run.output))
    print_next_steps(details, screen)
