"""`guild plan`: what could happen if a worker ran or a workflow was started, before anything does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import (
    file_of,
    limits_arguments,
    mode_arguments,
    model_arguments,
    request_of,
    workflow_arguments,
)
from guildhall.cli.connection import with_hall
from guildhall.core.errors import UsageError
from guildhall.workflow.params import parse_params
from guildhall.workflow.recognise import is_workflow
from guildhall.workflow.target import MAIN

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "worker",
        metavar="WORKER|FILE",
        help="a worker's name (`guild worker ls`), or the file of a worker or a workflow",
    )
    workflow_arguments(parser)
    model_arguments(parser)
    limits_arguments(parser)
    mode_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    request, params = request_of(args), parse_params(args.param)
    file = file_of(request.worker)

    async def work(client: HallClient, frame: Frame) -> int:
        if is_workflow(frame.cwd / file):
            plan = await client.workflows.plan(request, frame, tag=args.tag or MAIN, params=params)
        elif args.tag or params:
            raise UsageError("--tag and --param go with a workflow's file", hint="Leave them out for a worker.")
        else:
            plan = await client.runs.plan(request, frame)
        screen.json(plan.as_dict()) if args.json else screen.result(plan.text())
        return exit_codes.DONE

    return with_hall(work, screen, readonly=True, model=args.model)
