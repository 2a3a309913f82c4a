"""Command: turns a function with declared arguments into a command of `guild`.

The function validates its arguments, connects with `await ctx.connect()`, calls the hall and prints with `ctx.print()`.
It returns an exit code, or None for success. Does not find the command, because `commands.tsv` names its function (see
`cli.command_table`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.cli import exit_codes
from guildhall.core.errors import HallGone

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from guildhall.cli.connection import Mode
    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient

T = TypeVar("T")
Argument = Callable[[Any], object]  # adds itself to a parser, or to a group of a parser
Work = Coroutine[Any, Any, "int | None"]
Function = Callable[["Context"], "int | Work | None"]  # not asynchronous if it reads standard input before it connects


def argument(*names: str, **options: Any) -> Argument:
    """Declare an argument or an option, in the terms of argparse."""
    return lambda parser: parser.add_argument(*names, **options)


def exclusive(*arguments: Argument) -> Argument:
    """Declare options of which at most one can be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_to in arguments:
            add_to(group)

    return add


JSON = argument("--json", action="store_true", help="print JSON")
OUTPUT = argument(
    "--output",
    choices=("text", "json", "stream-json"),
    default="text",
    help="text: the result alone; json: one object at the end; stream-json: one event a line, the result last",
)


class Context:
    """One invocation of a command: its arguments, the screen and, after `connect`, the hall."""

    client: HallClient
    frame: Frame

    def __init__(self, args: argparse.Namespace, screen: Screen) -> None:
        self.args = args
        self.screen = screen
        self._is_connected = False

    async def connect(self, mode: Mode = "start", *, model: str | None = None) -> HallClient:
        """Connect to the hall and set `client` and `frame`. See `connection.connect`."""
        from guildhall.cli.connection import connect

        self.client, self.frame = await connect(self.screen, mode, model=model)
        self._is_connected = True
        return self.client

    async def disconnect(self, code: int | None = None) -> None:
        """Close the connection. Unless the command was interrupted, print first what the hall did after the run."""
        if not self._is_connected:
            return
        self._is_connected = False
        try:
            if code != exit_codes.INTERRUPTED:
                for event in await self.client.settle():
                    self.screen.note(self.screen.one_line(str(event.data.get("text")), 500), "dim")
        finally:
            await self.client.close()

    def print(self, value: T, text: str | Callable[[T, Screen], object], *, data: Any = None) -> None:
        """Print the result: with --json `data`, or else the value, as JSON; without it `text`, or what it prints."""
        if self.args.json:
            self.screen.json(_as_data(value) if data is None else data)
        elif isinstance(text, str):
            self.screen.result(text)
        else:
            text(value, self.screen)

    def print_table(self, rows: Sequence[Sequence[str]], data: Any, *, empty: str, head: Sequence[str] = ()) -> None:
        """Print a list: with --json `data` as JSON, otherwise a table, or the note `empty` if there are no rows."""
        if self.args.json:
            self.screen.json(_as_data(data))
        elif rows:
            self.screen.table([head, *rows] if head else rows)
        else:
            self.screen.note(empty)

    async def run_trusted(
        self, work: Callable[[], Awaitable[T]], *, worker: str | None = None, at: Path | None = None
    ) -> T:
        """Await `work`; if it needs code that is not trusted, ask the user first. See `trust_prompt.run_trusted`."""
        from guildhall.cli.trust_prompt import run_trusted

        return await run_trusted(work, self.client, self.frame, self.screen, worker=worker, at=at)


class _NeedsEventLoop(Exception):
    """The command cannot do without an event loop: it does not only read, or no hall is running."""


class _BlockingContext(Context):
    """An invocation without an event loop, whose requests block."""

    async def connect(self, mode: Mode = "start", *, model: str | None = None) -> HallClient:
        from guildhall.cli.connection import connect_blocking

        if mode != "read" or (connection := connect_blocking(self.screen)) is None:
            raise _NeedsEventLoop
        self.client, self.frame = connection
        self._is_connected = True
        return self.client

    async def disconnect(self, code: int | None = None) -> None:
        if self._is_connected:
            await self.client.close()


class Command:
    """A function with the arguments that it declares."""

    def __init__(self, function: Function, arguments: tuple[Argument, ...], epilog: str, *, event_loop: bool) -> None:
        self.function = function
        self._arguments = arguments
        self._epilog = epilog
        self.event_loop = event_loop

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for add_to in self._arguments:
            add_to(parser)
        if self._epilog:
            parser.epilog = f"{self._epilog}\n\n{parser.epilog}"

    def run(self, args: argparse.Namespace, screen: Screen) -> int:
        """Run the command to its end and return the exit code."""
        if not self.event_loop:
            with suppress(_NeedsEventLoop, HallGone):  # nothing is printed yet
                return self._run_blocking(_BlockingContext(args, screen))
        ctx = Context(args, screen)
        result = self.function(ctx)
        if not isinstance(result, Coroutine):
            return result or exit_codes.DONE
        from guildhall.cli.connection import run_interruptible

        return run_interruptible(_run(ctx, result), screen)

    def _run_blocking(self, ctx: Context) -> int:
        from guildhall.hall.client.transport import run_without_event_loop

        result = self.function(ctx)
        assert isinstance(result, Coroutine)
        return run_without_event_loop(_run(ctx, result))


def command(*arguments: Argument, epilog: str = "", event_loop: bool = True) -> Callable[[Function], Command]:
    """Make a command of a function, which is asynchronous if it connects to the hall.

    `event_loop=False` saves the import of asyncio while a hall is running: for functions that send a few requests,
    await nothing else, and use no variables of the frame. Such a function may be called again from its beginning.
    """
    return lambda function: Command(function, arguments, epilog, event_loop=event_loop)


async def _run(ctx: Context, work: Coroutine[Any, Any, int | None]) -> int:
    code: int | None = exit_codes.INTERRUPTED
    try:
        code = await work or exit_codes.DONE
        return code
    finally:
        await ctx.disconnect(code)


def _as_data(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_data(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value.as_dict() if hasattr(value, "as_dict") else value
