"""`guild doctor`: checks the installation and prints each problem with a hint.

Does not perform the checks, because the hall does.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, command

if TYPE_CHECKING:
    from guildhall.hall.client.model import Check


@command(JSON)
async def doctor(ctx: Context) -> int:
    client = await ctx.connect("read")
    checks = await client.hall.doctor(ctx.frame)
    lines: list[str] = []
    for check in checks:
        lines.append(f"{_mark(check):7}  {check.name}: {check.detail}")
        if check.hint:
            lines.append(f"         {check.hint}")
    ctx.print([asdict(check) for check in checks], "\n".join(lines))
    return exit_codes.DONE if all(check.ok for check in checks) else exit_codes.FAILED


def _mark(check: Check) -> str:
    """Return the first word of a line: a problem, an optional program that is missing, a warning, or ok."""
    if not check.ok:
        return "PROBLEM"
    return "-" if check.is_missing else "!" if check.hint else "ok"
