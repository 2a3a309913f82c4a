"""`guild start`: a workflow that stays until it is stopped, or a worker that stands alone."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import (
    file_of,
    limits_arguments,
    mode_arguments,
    model_arguments,
    request_of,
    run_workflow,
    worker_name,
    workflow_arguments,
)
from guildhall.cli.connection import with_hall
from guildhall.cli.follow import Follower, calm, output_argument
from guildhall.cli.screen import ReaderGone
from guildhall.cli.targets import target_of
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.errors import GuildError, UsageError
from guildhall.hall.client.discovery import is_embedded
from guildhall.workflow.recognise import SUFFIXES, is_workflow
from guildhall.workflow.target import Target

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workflow.instance import WorkflowShown


def arguments(parser: argparse.ArgumentParser) -> None:
    help = (
        "the file of a workflow; a worker, which then stands alone; or an agent@workflow:tag that was stopped or failed"
    )
    parser.add_argument("worker", metavar="FILE|WORKER", help=help)
    parser.set_defaults(input=None, attach=())
    parser.add_argument("--background", action="store_true", help="print the id and leave it to the hall's process")
    model_arguments(parser)
    limits_arguments(parser)
    mode_arguments(parser)
    workflow_arguments(parser)
    parser.add_argument("--fresh", action="store_true", help="a workflow begins in a new room, without what was said")
    parser.add_argument("--json", action="store_true", help="with --background: print an object")
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    if args.json and not args.background:
        raise UsageError("start: --json goes with --background", hint="--output json prints an object at the end.")
    if args.background and is_embedded(os.environ):
        raise UsageError(
            "start: nothing would keep it in the background: this command is the hall itself",
            hint="Leave out --background, or unset GUILDHALL_EMBEDDED.",
        )
    name = worker_name(args.worker)
    if is_workflow(file_of(name)):
        return run_workflow(args, screen, "start")
    if args.tag or args.param or args.fresh or args.budget or args.approve_all or args.strict or args.max_tokens:
        hint = "Of a worker only the model and --max-turns can be chosen."
        raise UsageError("start: these options go with a workflow's file", hint=hint)
    if "@" in name and not Path(name).exists():
        return _work_again(target_of(name), args, screen)
    return _stand_alone(args, screen)


def _work_again(target: Target, args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        _tell(await client.workflows.start_agent(target), target, args.json, screen)
        return exit_codes.DONE

    return with_hall(work, screen)


def _stand_alone(args: argparse.Namespace, screen: Screen) -> int:
    """Seats a worker in global:main. In the foreground, whoever leaves takes it along, and nobody else."""
    request = request_of(args)
    name = Path(args.worker).stem if args.worker.endswith(SUFFIXES) else args.worker.rpartition("/")[2]
    target = Target(name)

    async def work(client: HallClient, frame: Frame) -> int:
        async def seated() -> int:
            shown = await client.workflows.start_worker(request, frame)
            if args.background:
                _tell(shown, target, args.json, screen)
                return exit_codes.DONE
            screen.note(f"{target} is there: guild send {target} ... speaks to it. Ctrl-C stops it for now.")
            return await _followed(shown.run, target, client, frame, screen)

        return await once_trusted(seated, lambda: client.trust.inspect(frame, worker=request.worker), client, screen)

    return with_hall(work, screen, model=args.model)


async def _followed(run: str, target: Target, client: HallClient, frame: Frame, screen: Screen) -> int:
    follower, own = Follower(client, screen), Own(run, target.agent or "")
    code = exit_codes.DONE
    try:
        async with aclosing(client.runs.follow(run, frame)) as events:
            async for event in events:
                if event.run != run and own.unknown(event):
                    shown = await client.workflows.get(target)
                    own.runs.update(agent.run for agent in shown.agents if agent.run and agent.name == target.agent)
                if own.concerns(event):
                    await follower.tell(event)
    except (asyncio.CancelledError, ReaderGone):
        code = exit_codes.INTERRUPTED
        calm()
    with suppress(GuildError):  # it was stopped from elsewhere
        await client.workflows.stop_agent(target)
    screen.note(f"{target} is stopped. To go on with what it has not read: guild start {target}")
    return code


class Own:
    """Which events of global:main are about one of those who stand alone there: who started it sees no other."""

    def __init__(self, root: str, name: str) -> None:
        self._root = root
        self._name = name
        self._others: set[str] = set()
        self.runs: set[str] = set()

    def unknown(self, event: Event) -> bool:
        """Whether a run is heard of that had begun before anybody listened."""
        return event.type != "run_started" and event.run not in self.runs | self._others

    def concerns(self, event: Event) -> bool:
        if event.run == self._root:
            data = event.data
            return event.type in ("run_started", "run_ended") or self._name in (
                data.get("actor"),
                *(data.get("reached") or ()),
            )
        if event.type == "run_started":
            parent = event.data.get("parent")
            mine = parent in self.runs or (parent == self._root and event.data.get("worker") == self._name)
            (self.runs if mine else self._others).add(event.run)
        elif event.run not in self.runs:
            self._others.add(event.run)
        return event.run in self.runs


def _tell(shown: WorkflowShown, target: Target, as_json: bool, screen: Screen) -> None:
    if as_json:
        screen.json({**shown.as_dict(), "target": str(target)})
    else:
        screen.result(shown.run)
        screen.note(f"{target} is there: guild send {target} ..., guild log -f {target}, guild stop {target}")
