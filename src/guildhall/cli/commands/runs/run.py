"""`guild run WORKER|FILE [INPUT]`: starts a run of a worker, or a workflow until it is idle, and follows it.

It also declares the arguments for models, limits and workflows that other commands share. Does not print events (see
`cli.follow`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.cli.argument_parser import LIMITS, limits_of, read_text, worker_name
from guildhall.cli.command import OUTPUT, Context, Work, argument, command, exclusive
from guildhall.cli.follow import Follower
from guildhall.cli.format.workflows import address
from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.core.text_checks import did_you_mean
from guildhall.workflow.instance import Start, WorkflowSummary
from guildhall.workflow.target import (
    MAIN,
    WORKFLOW_SUFFIXES,
    Target,
    find_workflow_files,
    is_workflow_file,
    parse_params,
)

if TYPE_CHECKING:
    import argparse

    from guildhall.hall.client.interface import HallClient
    from guildhall.policy.rules import Mode
    from guildhall.runs.model import RunRequest

_NAME_HINT = "List the workers: guild worker ls"
_INPUT_HINT = 'Say what to do, guild run WORKER "...", or `-` to type it and end with Ctrl-D.'

# Arguments of all commands that create a run.
MODELS = (
    argument("--model", metavar="M", help="the model if the worker file names none"),
    argument(
        "--override-model",
        metavar="M",
        help="the model, also of called workers, whatever the files name",
    ),
)
MODES = exclusive(
    argument("--approve-all", action="store_true", help="approve all calls that need approval"),
    argument("--strict", action="store_true", help="deny all calls that need approval"),
)
WORKFLOW = (
    argument("--tag", metavar="T", help="the name of the instance of a workflow (default: main)"),
    argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a parameter of the workflow; repeatable",
    ),
)
_FRESH = argument("--fresh", action="store_true", help="start a workflow in a new room, without earlier messages")
NEW_RUN = (*MODELS, *LIMITS, MODES, *WORKFLOW, _FRESH)


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return the request of the arguments, with an empty input."""
    from guildhall.runs.model import RunRequest

    mode: Mode = "approve_all" if args.approve_all else "strict" if args.strict else "ask"
    models = {"model": args.model, "override_model": args.override_model}
    return RunRequest(worker=args.worker, input="", mode=mode, **models, **limits_of(args))


@command(
    argument(
        "worker",
        metavar="WORKER|FILE",
        type=worker_name,
        help="a worker's name (`guild worker ls`), its file, or the file of a workflow",
    ),
    argument("input", metavar="INPUT", nargs="?", help="the input; `-` reads standard input"),
    argument(
        "--attach",
        metavar="FILE",
        action="append",
        default=[],
        help="attach a file: sandbox/path, or a path; repeatable",
    ),
    *NEW_RUN,
    OUTPUT,
)
def run(ctx: Context) -> Work:
    args, path = ctx.args, file_of(ctx.args.worker)
    if is_workflow_file(path):
        if args.input is not None or args.attach:
            hint = "Omit them. The kickoff in the file is the first message; --param sets values in it."
            raise UsageError("INPUT and --attach cannot be used with a workflow file", hint=hint)
        return run_workflow(ctx, "run")
    if args.tag or args.param or args.fresh:
        raise UsageError("--tag, --param and --fresh can only be used with a workflow file", hint="Omit them.")
    if path.suffix in WORKFLOW_SUFFIXES and not path.exists():
        near = did_you_mean(path.name, [file.name for file in find_workflow_files(path.parent)])
        raise NotFound(f"file not found: {args.worker}", hint=near or _NAME_HINT)
    is_terminal = sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison] - closed
    text = "" if args.input is None and is_terminal else read_text(args.input, "input", hint=_INPUT_HINT)
    if not text.strip() and args.input is not None and not args.attach:
        raise UsageError("the input is empty", hint='Say what to do: guild run WORKER "..."')
    from guildhall.runs.model import NO_INPUT

    return _run(
        ctx, replace(request_of(args), input=text if text.strip() else NO_INPUT, attachments=tuple(args.attach))
    )


async def _run(ctx: Context, request: RunRequest) -> int:
    client, screen = await ctx.connect(model=ctx.args.model), ctx.screen
    if request.model and not request.override_model:
        own = (await client.workers.get(request.worker, ctx.frame)).definition.model
        if own:
            screen.note(f"--model is ignored: the worker file sets {own}. Use --override-model.", "yellow")
    if others := await client.trust.untrusted_callees(request.worker, ctx.frame):
        names = screen.one_line(", ".join(others), 200)
        screen.note(f"Untrusted workers, which it cannot call: {names}. Review their code: guild trust", "yellow")
    return await ctx.run_trusted(
        lambda: Follower(client, screen).follow(client.runs.run(request, ctx.frame)), worker=request.worker
    )


async def run_workflow(ctx: Context, mode: Literal["run", "start"], *, background: bool = False) -> int | None:
    """Start a workflow, and follow it unless it runs in the background."""
    args = ctx.args
    start = Start(file=args.worker, tag=args.tag or MAIN, params=parse_params(args.param), mode=mode, fresh=args.fresh)
    request = request_of(args)
    client, frame = await ctx.connect(model=args.model), ctx.frame
    at = frame.cwd / args.worker
    try:
        if background:
            workflow = await ctx.run_trusted(lambda: client.workflows.start(start, request, frame), at=at)
            print_started(ctx, workflow, address(workflow, frame.root))
            return None
        return await ctx.run_trusted(
            lambda: Follower(client, ctx.screen).follow(client.workflows.run(start, request, frame)), at=at
        )
    except Conflict as error:
        active = await _find_active(start, client, frame.cwd) if ctx.screen.is_interactive else None
        if active is None:
            raise
        ctx.screen.note(f"{error.message}. Following that run. Ctrl-C does not stop it.", "yellow")
        return await Follower(client, ctx.screen).follow(client.runs.follow(active.run, frame))


def print_started(ctx: Context, workflow: WorkflowSummary, target: Target) -> None:
    """Print the run of a workflow that was started in the background, and how to follow the target."""
    ctx.print({**workflow.as_dict(), "target": str(target)}, workflow.run)
    if not ctx.as_json:
        ctx.screen.note(f"Started {target} in the background. Follow: guild log -f {target}")


async def _find_active(start: Start, client: HallClient, cwd: Path) -> WorkflowSummary | None:
    """Return the active workflow with this file and tag, or None. A paused workflow is not active."""
    file = (cwd / Path(start.file).expanduser()).resolve()  # noqa: ASYNC240 - a command has nothing else to do
    for workflow in await client.workflows.list(over=False):
        is_same = workflow.tag == start.tag and Path(workflow.file).resolve() == file  # noqa: ASYNC240
        if is_same and workflow.status != "paused":
            return workflow
    return None


def file_of(name: str) -> Path:
    """Return the name as a path. Raise UsageError if it cannot be a path."""
    try:
        path = Path(name).expanduser()
        if path.suffix in WORKFLOW_SUFFIXES:
            path.exists()
    except OSError as error:  # the name is too long
        raise UsageError(f"invalid file name {name[:100]!r}: {error.strerror}", hint=_NAME_HINT) from None
    except RuntimeError:  # an unknown user, as in ~nobody
        raise UsageError(f"invalid file name {name[:100]!r}: unknown user", hint=_NAME_HINT) from None
    return path
