"""`guild script RUN`: writes a recorded run as a model script with a test that compares later runs with it.

Does not run the test (see `cli.commands.runs.test`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import resolve_run
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.short_ids import read_id
from guildhall.core.errors import Conflict, GuildError, UsageError
from guildhall.tools.host.protocol import source_digest

if TYPE_CHECKING:
    from guildhall.workers.model import FileTrust

_SUFFIXES = (".yaml", ".yml")


@command(
    argument("run", metavar="ID|TARGET", type=read_id, help="the id of a run or of a job; @workflow:tag"),
    argument("--out", metavar="FILE", default="-", help="the file (default: standard output)"),
    argument("--force", action="store_true", help="overwrite an existing file"),
    JSON,
)
async def script(ctx: Context) -> None:
    file = None if ctx.args.out == "-" else _file(ctx.args.out)
    await ctx.connect("read")
    await write_script(ctx, await resolve_run(ctx.args.run, ctx), file, force=ctx.args.force)


async def write_script(ctx: Context, run: str, file: Path | None, *, force: bool) -> None:
    """Write the script of a run to a file and trust the file, or print the script if no file is given."""
    client, screen = ctx.client, ctx.screen
    text = screen.redact(await client.runs.script(run))  # the hall does not know all secrets of this terminal
    untrusted: list[FileTrust] = []
    if file is not None:
        _write(file, text, force=force)
        with suppress(GuildError):  # the script has no test
            report = await client.trust.inspect(ctx.frame, at=file)
            untrusted = [one for one in report.untrusted_files if one.digest == source_digest(text.encode())]
    ctx.print({"run": run, "path": str(file) if file else None, "script": text}, str(file) if file else text)
    for line in text.splitlines():
        if line.startswith("# Left out: "):
            screen.note(line.removeprefix("# "), "yellow")
    if file is not None:
        screen.note(f"Run it: guild test {file}")
    await ctx.trust_own_files(untrusted)


def _file(name: str) -> Path:
    if not name.endswith(_SUFFIXES):
        raise UsageError(f"invalid --out {name!r}: does not end in .yaml", hint="For example: tests/greeting.yaml")
    return Path(name).expanduser()


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Conflict(f"{path} already exists", hint="Choose another file, or use --force.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Conflict(f"cannot write {path}: {reason}", hint="Choose another file.") from None
