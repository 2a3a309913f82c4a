"""`guild show`: all about one run, job or ask, one workflow or one agent of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_look
from guildhall.cli.format.commissions import print_commission, warn_if_stopped
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.meetings import print_meeting
from guildhall.cli.format.runs import how_to_answer, how_to_go_on, text_of, used
from guildhall.cli.format.workflows import print_workflow
from guildhall.cli.targets import named
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, is_id
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.model import labelled

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from guildhall.cli.screen import Screen
    from guildhall.cli.targets import Named
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Shown
    from guildhall.runs.model import Ask


def arguments(parser: argparse.ArgumentParser) -> None:
    help = "of a run, a job, a commission, a meeting or an ask; agent@workflow:tag; @workflow:tag"
    parser.add_argument("id", metavar="ID|TARGET", help=help)
    parser.add_argument("--json", action="store_true", help="print an object, with the whole conversation of a run")


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        ways: dict[str, tuple[Callable[[str], Awaitable[Any]], Callable[[Any, Screen], None]]] = {
            ASK: (client.asks.get, _print_ask),
            JOB: (client.jobs.get, print_job),
            MEETING: (client.meetings.get, print_meeting),
            COMMISSION: (client.commissions.get, print_commission),
        }
        for kind, (ask_for, print_it) in ways.items():
            if is_id(args.id, kind):
                one = await ask_for(args.id)
                screen.json(one.as_dict()) if args.json else print_it(one, screen)
                if kind == COMMISSION:
                    await warn_if_stopped(one, client, screen)
                return exit_codes.DONE
        found = await named(args.id, client)
        shown = await client.runs.get(found.run)
        if found.workflow is not None:
            _print_team(found, shown, args.json, screen)
        elif args.json:
            asks = [ask.as_dict() for ask in shown.asks]
            told = {
                "runtime": shown.runtime,
                "usage": shown.usage.as_dict(),
                "cost_usd": shown.usage.cost_usd,
                "attachments": list(shown.attachments),
                "below": [run.as_dict() for run in shown.below],
                "asks": asks,
                "messages": list(shown.messages),
            }
            screen.json({**shown.run.as_dict(), **told})
        else:
            _print_run(shown, screen)
        return exit_codes.DONE

    return with_look(work, screen)


def _print_team(found: Named, shown: Shown, as_json: bool, screen: Screen) -> None:
    """A workflow, or one agent of it, with what it asks."""
    workflow, agent = found.workflow, found.agent
    assert workflow is not None
    if as_json:
        asks = [ask.as_dict() for ask in shown.asks if agent is None or ask.run == agent.run]
        screen.json({**(agent or workflow).as_dict(), "asks": asks})
        return
    print_workflow(workflow if agent is None else replace(workflow, agents=(agent,)), screen)
    if asks := [["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in shown.asks]:
        screen.heading("\nasks")
        screen.table(asks, indent="  ")
    if text := text_of(shown.run.output):
        screen.heading("\noutput")
        screen.result(text)
    for line in how_to_go_on(shown, screen):
        screen.note(line)


def _print_ask(ask: Ask, screen: Screen) -> None:
    rows = [
        ["ask", ask.id],
        ["of run", ask.run],
        ["kind", ask.kind.replace("_", " ")],
        ["status", ask.status],
        ["asked", ask.created_at],
    ]
    if ask.expires_at:
        rows.append(["expires", ask.expires_at])
    if ask.answer:
        note = f" ({ask.answer.note})" if ask.answer.note else ""
        rows.append(["answer", f"{ask.answer.choice}{note}, by {ask.answer.by}"])
    screen.table(rows)
    screen.result(screen.exactly(ask.question.title))
    if ask.question.body:
        screen.result(screen.barred(ask.question.body, wrapped=screen.out.isatty()))
    if ask.status == "open":
        screen.note(f"Answer with: {how_to_answer(ask, here=True)}")


def _print_run(shown: Shown, screen: Screen) -> None:
    run = shown.run
    rows = [
        ["run", run.id],
        ["worker", run.worker],
        ["model", run.model],
        ["status", f"{run.status} ({run.reason})" if run.reason else run.status],
        ["started", run.created_at],
    ]
    if (row := ROWS[shown.runtime]).program is not None:
        rows.insert(2, ["runtime", row.title])
    if run.parent:
        rows.insert(1, ["called by", run.parent])
    if origin := run.request.get("forked_from"):
        rows.append(["forked from", f"{origin['run']} after entry {origin['at']}"])
    if run.ended_at:
        rows.append(["ended", run.ended_at])
    rows += [["attached", labelled(file)] for file in shown.attachments]
    rows.append(["used", used(shown)])
    for name in ("code", "message", "where", "hint"):
        if run.error and run.error.get(name):
            rows.append(["error" if name == "code" else name, str(run.error[name])])
    rows += [["called", f"{one.id} {one.worker} {one.status}"] for one in shown.below]
    rows += [["ask", f"{ask.id} {ask.outcome}: {ask.question.title}"] for ask in shown.asks]
    screen.table(rows)
    for name, text in (("input", str(run.request.get("input") or "")), ("output", text_of(run.output))):
        if text:
            screen.heading(f"\n{name}")
            screen.result(text)
    for line in how_to_go_on(shown, screen):
        screen.note(line)
