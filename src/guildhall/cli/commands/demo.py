"""`guild demo`: the whole machinery in seconds. The story is told in `guildhall.cli.demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen


def arguments(parser: argparse.ArgumentParser) -> None:
    """The demo needs nothing to be said."""


def main(args: argparse.Namespace, screen: Screen) -> int:
    from guildhall.cli import demo

    return demo.main(args)
