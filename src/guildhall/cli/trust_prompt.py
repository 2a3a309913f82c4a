"""Trust prompt: shows the code of a folder that would be executed in full, and asks the user to trust it.

Does not decide which code is trusted (see `workers.code`).

Invariant: every character of foreign text is visible in the prompt.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeVar

from guildhall.cli.prompt import agrees
from guildhall.cli.screen import Screen, exact
from guildhall.core.errors import HallUnavailable, NotFound, NotTrusted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from guildhall.cli.command import Context
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import Trusting
    from guildhall.workers.model import Seen

T = TypeVar("T")

_KINDS = {
    "toolbox": "toolbox",
    "server": "MCP server",
    "member": "member",
    "test": "test, with the programs that it names,",
    "workflow": "setup, outside every sandbox, of the workflow",
}


async def run_trusted(
    work: Callable[[], Awaitable[T]],
    client: HallClient,
    frame: Frame,
    screen: Screen,
    *,
    worker: str | None = None,
    at: Path | None = None,
) -> T:
    """Await `work`. If it needs code that is not trusted, ask the user to trust it and await `work` once more.

    Raise NotTrusted if nobody can be asked or the user refuses. `worker` or `at` says which code is shown.
    """
    try:
        return await work()
    except NotTrusted as error:
        if not screen.interactive:
            raise
        where = f"{error.where}: " if error.where else ""
        screen.note(f"guild: {where}{error.message}", "yellow")
        try:
            looking = await client.trust.inspect(frame, at=at, worker=worker)
        except NotFound:  # the name of a member
            looking = await client.trust.inspect(frame)
        screen.note(describe_code(looking))
        if not await ask_trust(looking, client, screen):
            raise
    return await work()


async def ask_trust(looking: Trusting, client: HallClient, screen: Screen) -> bool:
    """Ask for trust in everything that is not trusted yet. Record it and return True if the user agrees."""
    if not looking.open or not await agrees(f"Trust {name_files(looking)} as it is now? yes, no:", screen):
        return False
    await client.trust.grant(looking.open)
    return True


async def trust_own_files(files: Sequence[Seen], ctx: Context) -> None:
    """Trust files that the user has just had written. If the hall is in use, print the command that does it."""
    await ctx.disconnect()
    if not files:
        return
    try:
        client = await ctx.connect()
        await client.trust.grant(files)
    except HallUnavailable:
        names = " ".join(shlex.quote(str(seen.path)) for seen in files)
        ctx.screen.note(f"Before it can be tested: guild trust {names}", "yellow")


def name_files(looking: Trusting) -> str:
    """Name the files that are not trusted yet."""
    count = len(looking.open)
    return f"the file {escape(looking.open[0].shown)}" if count == 1 else f"each of these {count} files"


def describe_code(looking: Trusting) -> str:
    """Describe what would be executed and what it could do, with every character visible."""
    parts = [exact(plan.text()) for plan in looking.plans]
    for code in looking.code:
        lines = [f"{_KINDS.get(code.kind, 'output schema')} {escape(code.name)}"]
        lines += [f"  $ {escape(line)}" for command in code.commands for line in command.strip("\n").splitlines()]
        for seen in code.files:
            since = f" on {seen.trusted_at}" if seen.trusted_at else ""
            lines.append(f"  {escape(seen.shown)}  {seen.size:,} bytes  {seen.said}{since}")
            lines.append(f"    sha256 {seen.digest}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Return a text of others on one line, with every character visible."""
    return exact(text).replace("\n", "\\n")
