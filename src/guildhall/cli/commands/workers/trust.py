"""`guild trust [DIR|FILE]`: prints the code of a folder that would be executed, and trusts it or revokes trust.

Does not ask the question (see `cli.prompt`) or decide about trust (see `workers.code_trust`).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.command import Context, argument, command, exclusive
from guildhall.cli.prompt import ask_trust, describe_code, escape, name_files
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from guildhall.hall.client.model import TrustReport

_MAX_PATH_CHARS = 4096


def _path(text: str) -> Path:
    if not text or "\0" in text or len(text) > _MAX_PATH_CHARS:
        reason = "contains a NUL character" if "\0" in text else "too long" if text else "empty"
        raise UsageError(f"invalid path: {reason}", hint="Pass a folder or a file, or omit it to use this folder.")
    return Path(text)


@command(
    argument(
        "at",
        metavar="DIR|FILE",
        nargs="?",
        type=_path,
        help="a project, or the file of a worker, workflow or test (default: this folder)",
    ),
    exclusive(
        argument("--yes", action="store_true", help="trust it without asking"),
        argument("--forget", action="store_true", help="revoke the trust in all files below it"),
    ),
    argument("--json", action="store_true", help="print JSON and ask nothing"),
)
async def trust(ctx: Context) -> int | None:
    args, at = ctx.args, ctx.args.at
    may_change = args.yes or args.forget or (ctx.screen.is_interactive and not ctx.as_json)
    client = await ctx.connect("start" if may_change else "read")
    if args.forget:
        await _forget(ctx, ctx.frame.root if at is None else ctx.frame.cwd / at)
        return None
    report = await client.trust.inspect(ctx.frame, at=at)
    if not ctx.as_json:
        return await _decide(ctx, report)
    if args.yes:
        await client.trust.grant(report.untrusted_files)
        report = await client.trust.inspect(ctx.frame, at=at)
    ctx.screen.json(report.as_dict())
    return None


async def _decide(ctx: Context, report: TrustReport) -> int | None:
    """Print the code, ask for trust in it, and return the exit code."""
    screen, at = ctx.screen, ctx.args.at
    for error in report.problems:
        screen.note(f"guild: {escape(str(error.where))}: {escape(error.message)}", "red")
    if not report.code:
        screen.result(f"Nothing {'else ' * bool(report.problems)}in {escape(str(report.folder))} would be executed.")
        return exit_codes.FAILED if report.problems else None
    screen.result(describe_code(report))
    if not report.untrusted_files:
        screen.note("Everything is trusted.")
        return None
    if ctx.args.yes:
        await ctx.client.trust.grant(report.untrusted_files)
    elif not screen.is_interactive or not await ask_trust(report, ctx.client, screen):
        again = "guild trust --yes" if at is None else f"guild trust {shlex.quote(str(at))} --yes"
        screen.note(f"Nothing was trusted. To trust {name_files(report)}: {escape(again)}", "yellow")
        return exit_codes.NEEDS_YOU
    changes = "it changes" if len(report.untrusted_files) == 1 else "they change"
    screen.note(f"Trusted {name_files(report)}. You will be asked again if {changes}.")
    return None


async def _forget(ctx: Context, folder: Path) -> None:
    forgotten = [str(pin.path) for pin in await ctx.client.trust.revoke(folder)]
    if ctx.as_json:
        ctx.screen.json({"folder": str(folder), "forgotten": forgotten})
        return
    for path in forgotten:
        ctx.screen.result(escape(path))
    ctx.screen.note("No longer trusted." if forgotten else f"Nothing below {escape(str(folder))} was trusted.")
