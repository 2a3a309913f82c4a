"""`guild run WORKER|FILE [INPUT]`: starts a run of a worker, or a workflow until it is idle, and follows it.

It also declares the arguments for models, limits and workflows that other commands share. Does not print events (see
`cli.follow`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.cli.arguments import dollars, positive_int, read_text, worker_name
from guildhall.cli.command import OUTPUT, Context, Work, argument, command, exclusive
from guildhall.cli.follow import Follower
from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.core.text import did_you_mean
from guildhall.workflow.target import (
    MAIN,
    WORKFLOW_SUFFIXES,
    Start,
    WorkflowSummary,
    find_workflow_files,
    is_workflow_file,
    parse_params,
)

if TYPE_CHECKING:
    import argparse

    from guildhall.hall.client.interface import HallClient
    from guildhall.policy.rules import Mode
    from guildhall.runs.model import RunRequest

_INPUT_HINT = 'Say what to do, guild run WORKER "...", or `-` to type it and end with Ctrl-D.'

# Arguments that commands about a new run share.
MODELS = (
    argument("--model", metavar="M", help="the model, where the worker names none"),
    argument("--override-model", metavar="M", help="the model, whatever the worker says"),
)
MODES = exclusive(
    argument("--approve-all", action="store_true", help="approve every call that would be asked about"),
    argument("--strict", action="store_true", help="refuse every call that would be asked about"),
)
WORKFLOW = (
    argument("--tag", metavar="T", help="which instance of a workflow; none: main"),
    argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a value that the workflow's file asks for; repeatable",
    ),
)
LIMITS = (
    argument("--budget", metavar="USD", type=dollars, help="dollars that it may spend before it asks"),
    argument("--max-turns", metavar="N", type=positive_int, help="model calls that the run may make"),
    argument("--max-tokens", metavar="N", type=positive_int, help="tokens that the run may use, in and out"),
)
_FRESH = argument("--fresh", action="store_true", help="a workflow begins in a new room, without what was said")
NEW_RUN = (*MODELS, *LIMITS, MODES, *WORKFLOW, _FRESH)


def limits_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the limits that the arguments set."""
    return {"max_turns": args.max_turns, "max_tokens": args.max_tokens, "budget": args.budget}


def request_of(args: argparse.Namespace) -> RunRequest:
    """Return the request that the arguments describe, without its input."""
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
    argument("input", metavar="INPUT", nargs="?", help="what to do; `-` reads standard input"),
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
            hint = "What it begins with is its kickoff; --param gives it values."
            raise UsageError("a workflow takes no input and no attachments", hint=hint)
        return run_workflow(ctx, "run")
    if args.tag or args.param or args.fresh:
        raise UsageError("--tag, --param and --fresh go with a workflow's file", hint="Leave them out for a worker.")
    if path.suffix in WORKFLOW_SUFFIXES and not path.exists():
        near = did_you_mean(path.name, [one.name for one in find_workflow_files(path.parent)])
        raise NotFound(f"there is no file {args.worker}", hint=near or "`guild worker ls` lists the workers.")
    text = read_text(args.input, "input", hint=_INPUT_HINT)
    if not text.strip():
        raise UsageError("the input is empty", hint='Say what to do: guild run WORKER "..."')
    return _run(ctx, replace(request_of(args), input=text, attachments=tuple(args.attach)))


async def _run(ctx: Context, request: RunRequest) -> int:
    client, screen = await ctx.connect(model=ctx.args.model), ctx.screen
    if request.model and not request.override_model:
        own = (await client.workers.get(request.worker, ctx.frame)).definition.model
        if own:
            screen.note(f"--model is not used: the worker names its own, {own}. --override-model beats it.", "yellow")
    if others := await client.trust.untrusted_callees(request.worker, ctx.frame):
        names = screen.one_line(", ".join(others), 200)
        screen.note(f"Not trusted, and so not to be called: {names}. `guild trust` shows their code.", "yellow")
    return await ctx.run_trusted(
        lambda: Follower(client, screen).follow(client.runs.run(request, ctx.frame)), worker=request.worker
    )


async def run_workflow(ctx: Context, mode: Literal["run", "start"], *, background: bool = False) -> int | None:
    """Start a workflow and follow it, or leave it to the hall in the background."""
    args = ctx.args
    start = Start(file=args.worker, tag=args.tag or MAIN, params=parse_params(args.param), mode=mode, fresh=args.fresh)
    request = request_of(args)
    client, frame = await ctx.connect(model=args.model), ctx.frame
    at = frame.cwd / args.worker
    try:
        if background:
            shown = await ctx.run_trusted(lambda: client.workflows.start(start, request, frame), at=at)
            ctx.print(shown, shown.run)
            if not args.json:
                target = shown.target
                ctx.screen.note(f"{target} is there: guild log -f {target}, guild stop {target}")
            return None
        return await ctx.run_trusted(
            lambda: Follower(client, ctx.screen).follow(client.workflows.run(start, request, frame)), at=at
        )
    except Conflict as error:
        living = await _find_living(start, client, frame.cwd) if ctx.screen.interactive else None
        if living is None:
            raise
        ctx.screen.note(f"{error.message}. Following it; Ctrl-C leaves it as it is.", "yellow")
        return await Follower(client, ctx.screen).follow(client.runs.follow(living.run, frame))


async def _find_living(start: Start, client: HallClient, cwd: Path) -> WorkflowSummary | None:
    """Return the workflow of the same file that already has the tag and is not paused."""
    file = (cwd / Path(start.file).expanduser()).resolve()  # noqa: ASYNC240 - a command has nothing else to do
    for one in await client.workflows.list(over=False):
        is_same = one.tag == start.tag and Path(one.file).resolve() == file  # noqa: ASYNC240
        if is_same and one.status != "paused":
            return one
    return None


def file_of(name: str) -> Path:
    """Return the path that a name may mean. Raise UsageError if it cannot be one."""
    try:
        path = Path(name).expanduser()
        if path.suffix in WORKFLOW_SUFFIXES:
            path.exists()
    except OSError as error:  # it is too long
        raise UsageError(f"{name[:100]!r} cannot be a file: {error.strerror}") from None
    except RuntimeError:  # ~nobody
        raise UsageError(f"{name[:100]!r} cannot be a file: there is no such user") from None
    return path
