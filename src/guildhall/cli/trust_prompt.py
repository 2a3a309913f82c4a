"""Asking the person to trust the code of a folder: what would run is shown whole, then one question."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.prompt import agrees
from guildhall.cli.screen import exact
from guildhall.core.errors import HallUnavailable, NotTrusted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Trusting
    from guildhall.workers.trust import Seen

_WHATS = {
    "toolbox": "toolbox",
    "server": "MCP server",
    "member": "member",
    "test": "test, with the programs that it names,",
    "workflow": "setup, outside every sandbox, of the workflow",
}


async def once_trusted(
    work: Callable[[], Awaitable[int]], look: Callable[[], Awaitable[Trusting]], client: HallClient, screen: Screen
) -> int:
    """Do the work; where it needs code that is not trusted, and a person is there, ask and do it then."""
    try:
        return await work()
    except NotTrusted as error:
        if not screen.interactive:
            raise
        where = f"{error.where}: " if error.where else ""
        screen.note(f"guild: {where}{error.message}", "yellow")
        looking = await look()
        screen.note(told(looking))
        if not await asked(looking, client, screen):
            raise
    return await work()


async def asked(looking: Trusting, client: HallClient, screen: Screen) -> bool:
    """Ask for trust in all that is open; True: the person gave it, and it is kept."""
    if not looking.open or not await agrees(f"Trust {counted(looking)} as it is now? yes, no:", screen):
        return False
    await client.trust.grant(looking.open)
    return True


def keep(files: Sequence[Seen], screen: Screen) -> None:
    """Trust files that the person has just had written, as they are; while the hall is in use, say how to do it."""

    async def work(client: HallClient, frame: Frame) -> int:
        await client.trust.grant(files)
        return exit_codes.DONE

    try:
        with_hall(work, screen)
    except HallUnavailable:
        names = " ".join(shlex.quote(str(seen.path)) for seen in files)
        screen.note(f"Before it can be tested: guild trust {names}", "yellow")


def counted(looking: Trusting) -> str:
    count = len(looking.open)
    return f"the file {shown(looking.open[0].shown)}" if count == 1 else f"each of these {count} files"


def told(looking: Trusting) -> str:
    """What would be executed and what it could do, every character of it visible."""
    parts = [exact(plan.text()) for plan in looking.plans]
    for code in looking.code:
        lines = [f"{_WHATS.get(code.kind, 'output schema')} {shown(code.name)}"]
        lines += [f"  $ {shown(line)}" for command in code.commands for line in command.strip("\n").splitlines()]
        for seen in code.files:
            since = f" on {seen.trusted_at}" if seen.trusted_at else ""
            lines.append(f"  {shown(seen.shown)}  {seen.size:,} bytes  {seen.said}{since}")
            lines.append(f"    sha256 {seen.digest}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def shown(text: str) -> str:
    """A text of others on one line, every character of it visible."""
    return exact(text).replace("\n", "\\n")
