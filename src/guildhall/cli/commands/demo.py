"""`guild demo`: the whole machinery in seconds, in a folder that is gone afterwards. Only the model is scripted."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.cli.story import Story


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--office", action="store_true", help="another story: workers that call each other, remember, and are tested"
    )


def main(args: argparse.Namespace, screen: Screen) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):  # nothing is to stay behind then either
        signal.signal(number, _leave)
    with tempfile.TemporaryDirectory(prefix="guild-demo-") as folder:
        _story(Path(folder).resolve(), office=args.office).tell()
    return exit_codes.DONE


def _leave(number: int, frame: object) -> None:
    sys.exit(exit_codes.INTERRUPTED)


def _story(folder: Path, *, office: bool) -> Story:
    if office:
        from guildhall.cli.office_story import OfficeStory

        return OfficeStory(folder)
    from guildhall.cli.review_story import ReviewStory

    return ReviewStory(folder)
