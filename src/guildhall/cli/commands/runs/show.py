"""`guild show ID|TARGET`: prints all facts about a run, job, ask, commission, meeting, workflow or agent.

Does not print the journal (see `cli.commands.runs.log`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli.arguments import Resolved, is_member_job, resolve
from guildhall.cli.command import ANY_ID, Context, argument, command
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.projects import print_commission, print_meeting, warn_if_stopped
from guildhall.cli.format.runs import how_to_answer, print_next_steps, text_of, usage_line
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
        ctx.print(await client.jobs.get(id), lambda shown, screen: print_job(id, shown, screen))
    elif is_id(id, MEETING):
        ctx.print(await client.meetings.get(id), print_meeting)
    elif is_id(id, COMMISSION):
        details = await client.commissions.get(id)
        ctx.print(details, print_commission)
        await warn_if_stopped(details, client, ctx.screen)
    else:
        found = await resolve(id, client)
        shown = await client.runs.get(found.run)
        if found.workflow is None:
            data = {
                **shown.run.as_dict(),
                "runtime": shown.runtime,
                "usage": shown.usage.as_dict(),
                "cost_usd": shown.usage.cost_usd,
                "attachments": list(shown.attachments),
                "below": [run.as_dict() for run in shown.below],
                "asks": [ask.as_dict() for ask in shown.asks],
                "messages": list(shown.messages),
            }
            ctx.print(shown, _print_run, data=data)
        else:
            _print_team(ctx, found, shown)
    return None


async def _show_member_job(ctx: Context) -> None:
    """Print a member's job with its artifacts, and with the directory that members made here keep."""
    client, id = await ctx.connect(), ctx.args.id  # only a running hall reaches members
    shown = await client.jobs.get(id, ctx.frame)
    if ctx.as_json:
        ctx.screen.json(shown.as_wire())
        return
    job, member = shown.job, id.rpartition("/")[0]
    artifacts = (await client.jobs.result(id, ctx.frame)).artifacts if job.status == "completed" else ()
    folder = (await client.members.get(member, ctx.frame)).member.folder / "jobs" / job.id
    is_kept = is_id(job.id, JOB) and folder.is_dir()
    print_job(id, replace(shown, artifacts=artifacts, directory=str(folder) if is_kept else None), ctx.screen)


def _print_team(ctx: Context, found: Resolved, shown: RunDetails) -> None:
    """Print a workflow, or one agent of it, with its asks."""
    workflow, agent, screen = found.workflow, found.agent, ctx.screen
    assert workflow is not None
    if ctx.as_json:
        asks = [ask.as_dict() for ask in shown.asks if agent is None or ask.run == agent.run]
        screen.json({**(agent or workflow).as_dict(), "asks": asks})
        return
    print_workflow(workflow if agent is None else replace(workflow, agents=(agent,)), screen)
    if asks := [["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in shown.asks]:
        screen.heading("\nasks")
        screen.table(asks, indent="  ")
    screen.section("output", text_of(shown.run.output))
    print_next_steps(shown, screen)


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
    if ask.question.body:
        screen.result(screen.quote_block(ask.question.body))
    if ask.status == "open":
        screen.note(f"Answer: {how_to_answer(ask, here=True)}")


def _print_run(shown: RunDetails, screen: Screen) -> None:
    run, runtime, origin, error = shown.run, RUNTIMES[shown.runtime], shown.run.forked_from, shown.run.error
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
        *(["attached", attachment_label(file)] for file in shown.attachments),
        ["used", usage_line(shown)],
        *(["error" if name == "code" else name, str(error.get(name) or "")] for name in _ERROR_FIELDS if error),
        *(["called", f"{one.id} {one.worker} {one.status}"] for one in shown.below),
        *(["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in shown.asks),
    ]
    screen.facts(rows)
    screen.section("input", run.request.input)
    screen.section("output", text_of(run.output))
    print_next_steps(shown, screen)
