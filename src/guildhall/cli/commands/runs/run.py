"""`guild run`: give a worker something to do and follow it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.follow import Follower, output_argument
from guildhall.cli.parser import dollars, positive_int
from guildhall.cli.targets import kind_of
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.core.nearest import did_you_mean
from guildhall.workflow.params import parse_params
from guildhall.workflow.recognise import SUFFIXES, is_workflow, workflows_in
from guildhall.workflow.target import MAIN

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.policy.model import Mode
    from guildhall.runs.model import RunRequest
    from guildhall.workflow.instance import Start, WorkflowShown

MAX_INPUT = 1_000_000  # bytes
_LONGEST_NAME = 4096


def arguments(parser: argparse.ArgumentParser) -> None:
    help = "a worker's name (`guild worker ls`), its file, or the file of a workflow"
    parser.add_argument("worker", metavar="WORKER|FILE", help=help)
    parser.add_argument("input", metavar="INPUT", nargs="?", help="what to do; `-` reads standard input")
    parser.add_argument(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="attach a file: sandbox/path, or a path; repeatable",
    )
    model_arguments(parser)
    limits_arguments(parser)
    mode_arguments(parser)
    workflow_arguments(parser)
    parser.add_argument("--fresh", action="store_true", help="a workflow begins in a new room, without what was said")
    output_argument(parser)


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, for the commands about a new run."""
    parser.add_argument("--model", metavar="M", help="the model, where the worker names none")
    parser.add_argument("--override-model", metavar="M", help="the model, whatever the worker says")


def mode_arguments(parser: argparse.ArgumentParser) -> None:
    """What becomes of calls that would be asked about, for the commands about a new run."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--approve-all", action="store_true", help="approve every call that would be asked about")
    mode.add_argument("--strict", action="store_true", help="refuse every call that would be asked about")


def workflow_arguments(parser: argparse.ArgumentParser) -> None:
    """What a workflow is started with."""
    parser.add_argument("--tag", metavar="T", help="which instance of a workflow; none: main")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a value that the workflow's file asks for; repeatable",
    )


def limits_arguments(parser: argparse.ArgumentParser) -> None:
    """What a run may use, for the commands that start one or go on with one."""
    parser.add_argument("--budget", metavar="USD", type=dollars, help="dollars that it may spend before it asks")
    parser.add_argument("--max-turns", metavar="N", type=positive_int, help="model calls that the run may make")
    parser.add_argument("--max-tokens", metavar="N", type=positive_int, help="tokens that the run may use, in and out")


def request_of(args: argparse.Namespace) -> RunRequest:
    """The run that the arguments ask for, but for what it is to do."""
    from guildhall.runs.model import RunRequest

    return RunRequest(
        worker=worker_name(args.worker),
        input="",
        model=args.model,
        override_model=args.override_model,
        max_turns=args.max_turns,
        max_tokens=args.max_tokens,
        budget=args.budget,
        mode=mode_of(args),
    )


def main(args: argparse.Namespace, screen: Screen) -> int:
    if is_workflow(file_of(worker_name(args.worker))):
        return run_workflow(args, screen, "run")
    if args.tag or args.param or args.fresh:
        raise UsageError("--tag, --param and --fresh go with a workflow's file", hint="Leave them out for a worker.")
    _refuse_missing(worker_name(args.worker))
    request = replace(request_of(args), input=_input(args.input), attachments=tuple(args.attach))

    async def work(client: HallClient, frame: Frame) -> int:
        if request.model and not request.override_model:
            own = (await client.workers.get(request.worker, frame)).definition.model
            if own:
                screen.note(
                    f"--model is not used: the worker names its own, {own}. --override-model beats it.", "yellow"
                )
        if others := await client.trust.untrusted_callees(request.worker, frame):
            names = screen.one_line(", ".join(others), 200)
            screen.note(f"Not trusted, and so not to be called: {names}. `guild trust` shows their code.", "yellow")
        return await once_trusted(
            lambda: Follower(client, screen).follow(client.runs.run(request, frame)),
            lambda: client.trust.inspect(frame, worker=request.worker),
            client,
            screen,
        )

    return with_hall(work, screen, model=args.model)


def run_workflow(args: argparse.Namespace, screen: Screen, mode: Literal["run", "start"]) -> int:
    """Starts a workflow and follows it; or leaves it to the hall, where it is to be in the background."""
    from guildhall.workflow.instance import Start

    if args.input is not None or args.attach:
        hint = "What it begins with is its kickoff; --param gives it values."
        raise UsageError("a workflow takes no input and no attachments", hint=hint)
    params = parse_params(args.param)
    start = Start(file=args.worker, tag=args.tag or MAIN, params=params, mode=mode, fresh=args.fresh)
    request = request_of(args)

    async def work(client: HallClient, frame: Frame) -> int:
        async def begun() -> int:
            if mode == "start" and args.background:
                return _left_to_the_hall(await client.workflows.start(start, request, frame), args.json, screen)
            return await Follower(client, screen).follow(client.workflows.run(start, request, frame))

        try:
            return await once_trusted(
                begun, lambda: client.trust.inspect(frame, at=frame.cwd / args.worker), client, screen
            )
        except Conflict as error:
            living = await _living(start, client, frame) if screen.interactive else None
            if living is None:
                raise
            screen.note(f"{error.message}. Following it; Ctrl-C leaves it as it is.", "yellow")
            return await Follower(client, screen).follow(client.runs.follow(living.run, frame))

    return with_hall(work, screen, model=args.model)


def _left_to_the_hall(shown: WorkflowShown, as_json: bool, screen: Screen) -> int:
    if as_json:
        screen.json(shown.as_dict())
    else:
        screen.result(shown.run)
        screen.note(f"{shown.target} is there: guild log -f {shown.target}, guild stop {shown.target}")
    return exit_codes.DONE


async def _living(start: Start, client: HallClient, frame: Frame) -> WorkflowShown | None:
    """The workflow of this very file that has the tag already, if it goes on."""
    here = (frame.cwd / Path(start.file).expanduser()).resolve()  # noqa: ASYNC240 - a command has nothing else to do
    for one in await client.workflows.list(over=False):
        same = one.tag == start.tag and Path(one.file).resolve() == here  # noqa: ASYNC240
        if same and one.status != "paused":
            return one
    return None


def _refuse_missing(name: str) -> None:
    """A file that is not there is told before anybody asks what is to be done with it."""
    path = file_of(name)
    if path.suffix in SUFFIXES and not path.exists():
        near = did_you_mean(path.name, [one.name for one in workflows_in(path.parent)])
        raise NotFound(f"there is no file {name}", hint=near or "`guild worker ls` lists the workers.")


def file_of(name: str) -> Path:
    """The file that a name may mean."""
    try:
        path = Path(name).expanduser()
        if path.suffix in SUFFIXES:
            path.exists()
    except OSError as error:  # it is too long
        raise UsageError(f"{name[:100]!r} cannot be a file: {error.strerror}") from None
    except RuntimeError:  # ~nobody
        raise UsageError(f"{name[:100]!r} cannot be a file: there is no such user") from None
    return path


def worker_name(text: str) -> str:
    """The name or path, if it can be one at all."""
    name = text.strip()
    if not name:
        raise UsageError("the worker's name is empty", hint="`guild worker ls` lists the workers.")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError("that cannot be a worker's name", hint="`guild worker ls` lists the workers.")
    if (kind := kind_of(name)) is not None:
        raise NotFound(f"{name} is {kind}, not a worker", hint=f"All about it: guild show {name}")
    return name


def mode_of(args: argparse.Namespace) -> Mode:
    """The mode that the arguments say."""
    return "approve_all" if args.approve_all else "strict" if args.strict else "ask"


def _input(given: str | None) -> str:
    """What the worker is to do: from the command, or from standard input."""
    if given is not None and given != "-":
        return _checked(given)
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        raise UsageError("standard input is closed", hint='Give the input as text: guild run WORKER "..."')
    if given is None and sys.stdin.isatty():
        raise UsageError(
            "there is no input", hint='Say what to do, guild run WORKER "...", or `-` to type it and end with Ctrl-D.'
        )
    try:
        data = sys.stdin.buffer.read(MAX_INPUT + 1)
    except OSError as error:
        raise UsageError(f"standard input cannot be read: {error.strerror or error}") from None
    return _checked(data.decode(errors="surrogateescape"))


def _checked(text: str) -> str:
    encoded = text.encode(errors="surrogateescape")
    if len(encoded) > MAX_INPUT:
        raise UsageError(
            f"the input is larger than {MAX_INPUT:,} bytes",
            hint="Put it into a file in a sandbox of the worker, and say which file to read.",
        )
    try:
        encoded.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the input is not UTF-8 text: byte {error.start} cannot be read") from None
    if not text.strip():
        raise UsageError("the input is empty", hint='Say what to do: guild run WORKER "..."')
    if "\0" in text:
        raise UsageError("the input holds a NUL character", hint="Inputs are text; give binary data as a file.")
    return text
