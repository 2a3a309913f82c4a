"""`guild demo`: plays a story in a temporary folder, in which everything but the model is real.

The folder is deleted at the end, also after a signal. Does not contain the stories (see `cli.demo`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.command import Context, argument, command
from guildhall.core.errors import UsageError
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.discovery import Programs

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.demo.story import Story


_TRIES = 30


@command(
    argument("--guild", action="store_true", help="another story: the manager has work done in a git repository"),
    argument(
        "--office", action="store_true", help="another story: workers that call each other, remember, and are tested"
    ),
    argument(
        "--runtime",
        choices=["claude", "codex", "opencode"],
        help="what executes the agents of the review: the real program, which has to be installed",
    ),
)
def demo(ctx: Context) -> None:
    args = ctx.args
    if sum(map(bool, (args.guild, args.office, args.runtime))) > 1:
        raise UsageError("there is one story at a time", hint="Give one of --guild, --office and --runtime.")
    if args.runtime:
        Programs(os.environ).demand(ROWS[args.runtime])
    for number in (signal.SIGTERM, signal.SIGHUP):  # nothing is to stay behind then either
        signal.signal(number, _leave)
    folder = Path(tempfile.mkdtemp(prefix="guild-demo-")).resolve()
    try:
        _story(folder, args).tell()
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Takes the folder away. A program that is just being ended may still write something into it."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.1)


def _leave(number: int, frame: object) -> None:
    sys.exit(exit_codes.INTERRUPTED)


def _story(folder: Path, args: argparse.Namespace) -> Story:
    if args.guild:
        from guildhall.cli.demo.guild import GuildStory

        return GuildStory(folder)
    if args.office:
        from guildhall.cli.demo.office import OfficeStory

        return OfficeStory(folder)
    from guildhall.cli.demo.review import ReviewStory

    return ReviewStory(folder, args.runtime)
