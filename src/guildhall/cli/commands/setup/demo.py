"""`guild demo`: plays a story in a temporary folder. Everything but the model is real.

The folder is deleted at the end, even after a signal. Does not contain the stories (see `cli.demo`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from guildhall.cli import exit_codes
from guildhall.cli.command import Context, argument, command
from guildhall.cli.demo.stories import GuildStory, OfficeStory, ReviewStory
from guildhall.core.errors import UsageError
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.discovery import Programs

_MAX_TRIES = 30


@command(
    argument("--guild", action="store_true", help="another demo: the manager and commissions in a git repository"),
    argument("--office", action="store_true", help="another demo: workers that call each other, memory and tests"),
    argument(
        "--runtime",
        choices=["claude", "codex", "opencode"],
        help="execute the agents of the review with this installed program",
    ),
)
def demo(ctx: Context) -> None:
    args = ctx.args
    if sum(map(bool, (args.guild, args.office, args.runtime))) > 1:
        raise UsageError("--guild, --office and --runtime cannot be used together", hint="Use one of them.")
    if args.runtime:
        Programs(os.environ).check_installed(RUNTIMES[args.runtime])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(exit_codes.INTERRUPTED))
    folder = Path(tempfile.mkdtemp(prefix="guild-demo-")).resolve()
    try:
        story = GuildStory(folder) if args.guild else OfficeStory(folder) if args.office else None
        (story or ReviewStory(folder, args.runtime)).tell()
    finally:
        for _ in range(_MAX_TRIES):  # a program that is being stopped may still write into the folder
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)
