"""`guild doctor`: checks the installation and prints each problem with a hint.

Does not perform the checks (see `hall.services.health`).
"""

from __future__ import annotations

from dataclasses import asdict

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, command


@command(JSON)
async def doctor(ctx: Context) -> int:
    client = await ctx.connect("read")
    checks = await client.hall.doctor(ctx.frame)
    lines: list[str] = []
    for check in checks:
        mark = "PROBLEM" if not check.ok else "-" if check.is_missing else "!" if check.hint else "ok"
        lines.append(f"{mark:7}  {check.name}: {check.detail}")
        if check.hint:
            lines.append(f"         {check.hint}")
    ctx.print([asdict(check) for check in checks], "\n".join(lines))
    return exit_codes.DONE if all(check.ok for check in checks) else exit_codes.FAILED
