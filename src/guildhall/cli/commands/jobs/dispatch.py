"""`guild dispatch`: hand a task over and get the id of the job; the work goes on in the hall."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import worker_name
from guildhall.cli.commands.runs.wait import until_it_stands
from guildhall.cli.connection import with_hall
from guildhall.cli.format.member_jobs import print_end, told_end, until_over
from guildhall.cli.format.runs import print_ending
from guildhall.cli.screen import one_line
from guildhall.cli.targets import Named
from guildhall.cli.targets import text_of as given_text
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.errors import NotFound, UsageError
from guildhall.hall.client.discovery import is_embedded
from guildhall.members.model import of_member

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Trusting
    from guildhall.jobs.model import Job

_LABEL = 80  # characters of a description that nobody has given


def arguments(parser: argparse.ArgumentParser) -> None:
    help = "a worker's name (`guild worker ls`), its file, or a guild member's name (`guild member ls`)"
    parser.add_argument("worker", metavar="WORKER|MEMBER", help=help)
    parser.add_argument("task", metavar="TASK", nargs="?", help="all that it is told; `-` reads standard input")
    parser.add_argument("--description", metavar="D", help="a short label for listings; without it the first line")
    help = "an object: maxTurns, maxBudgetUsd, artifacts, model, and whatever the worker is to read"
    parser.add_argument("--config", metavar="JSON", help=help)
    parser.add_argument("--wait", action="store_true", help="wait for the result and print it")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    from guildhall.jobs.model import Dispatch

    if not args.wait and is_embedded(os.environ):
        raise UsageError(
            "dispatch: nothing would keep the job going: this command is the hall itself",
            hint="Wait for it with --wait, or unset GUILDHALL_EMBEDDED.",
        )
    name, task = worker_name(args.worker), given_text(args.task, "task")
    dispatch = Dispatch(
        description=_label(task) if args.description is None else args.description,
        task=task,
        config=_config(args.config),
    )
    dispatch.check()
    for given, meant in dispatch.near_misses.items():
        screen.note(
            f"--config: {screen.one_line(given, 40)} is for the worker to read. Did you mean {meant}?", "yellow"
        )

    async def work(client: HallClient, frame: Frame) -> int:
        async def dispatched() -> int:
            job = await client.jobs.dispatch(name, dispatch, frame)
            if args.wait:
                return await _waited(job, client, frame, args.json, screen)
            if args.json:
                screen.json({"jobId": job.id})
            else:
                screen.result(job.id)
                screen.note(f"It goes on by itself: guild job show {job.id}, guild wait {job.id}", "dim")
            return exit_codes.DONE

        async def look() -> Trusting:
            try:
                return await client.trust.inspect(frame, worker=name)
            except NotFound:  # it is a member's name
                return await client.trust.inspect(frame)

        return await once_trusted(dispatched, look, client, screen)

    return with_hall(work, screen)


async def _waited(job: Job, client: HallClient, frame: Frame, as_json: bool, screen: Screen) -> int:
    screen.note(f"{job.id} starts. Ctrl-C leaves it as it is.", "dim")
    if (theirs := of_member(job.id)) is not None:
        standing = await until_over(*theirs, client, frame)
        return await (told_end if as_json else print_end)(theirs[0], standing, client, frame, screen)
    assert job.run is not None
    code, shown = await until_it_stands(Named(run=job.run), client, replace(frame, interactive=False))
    if as_json:
        told = (await client.jobs.get(job.id)).as_dict()
        screen.json({**told, **(await client.jobs.result(job.id)).as_wire()} if told["status"] == "completed" else told)
        return code
    print_ending(shown, screen)
    return code


def _label(task: str) -> str:
    """The first line of a task, if nobody has given a description."""
    lines = [line for line in task.splitlines() if line.strip()]
    return one_line(lines[0].strip(), _LABEL) if lines else ""


def _config(text: str | None) -> dict[str, Any]:
    try:
        config: Any = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config: not JSON: {error}", hint="""Such as --config '{"maxTurns": 20}'.""") from None
    if not isinstance(config, dict):
        raise UsageError("--config: expected an object", hint="""Such as --config '{"maxTurns": 20}'.""")
    return cast("dict[str, Any]", config)
