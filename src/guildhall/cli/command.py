"""Command: turns a function with declared arguments into a command of `guild`, and connects it to the hall.

The function validates its arguments, connects with `await ctx.connect()`, calls the hall and prints with `ctx.print()`.
It returns an exit code, or None for success. The first signal cancels the command and pauses its run, the second ends
the process. Does not find the command, because `commands.tsv` names its function (see `cli.command_table`).
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from guildhall.cli import exit_codes
from guildhall.cli.short_ids import expand_arguments, read_id
from guildhall.core.errors import HallGone, HallUnavailable, Interrupted, InvalidFile, UsageError
from guildhall.core.paths import HOME_VARIABLE, Home, project_root
from guildhall.core.request_frame import Frame
from guildhall.hall.client.discovery import (
    Address,
    check_same_version,
    find_hall,
    find_or_start,
    is_embedded,
    wait_for_exit,
)
from guildhall.models.credentials import forwarded_variables
from guildhall.workflow.target import Target

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.hall.client.interface import HallClient
    from guildhall.workers.model import FileTrust

T = TypeVar("T")
Argument = Callable[[Any], object]  # adds an argument to a parser or to a group of a parser
Work = Coroutine[Any, Any, "int | None"]
Function = Callable[["Context"], "int | Work | None"]  # synchronous if it reads standard input before it connects
Mode = Literal["start", "read", "here"]
Connection = tuple["HallClient", Frame]

_MAX_TRIES = 3  # attempts to connect, if the hall exits meanwhile
# Ctrl-C, `kill` and a closed terminal all stop the command so that its run can be resumed.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def argument(*names: str, **options: Any) -> Argument:
    """Declare an argument or an option. The parameters are those of `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names, **options)


def exclusive(*arguments: Argument) -> Argument:
    """Declare options of which at most one can be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_to in arguments:
            add_to(group)

    return add


JSON = argument("--json", action="store_true", help="print JSON")
ANY_ID = argument(
    "id",
    metavar="ID|TARGET",
    type=read_id,
    help="the id of a run, a job, a commission, a meeting or an ask; agent@workflow:tag; @workflow:tag",
)


def OUTPUT(parser: Any) -> None:  # noqa: N802 - an argument, like JSON
    """Add the options of commands that print the result of a run."""
    parser.add_argument(
        "--output",
        choices=("text", "json", "stream-json"),
        default="text",
        help="text: the result alone; json: one object at the end; stream-json: one event per line, the result last",
    )
    parser.add_argument("--json", action="store_true", help="same as --output json")


class Context:
    """One invocation of a command: its arguments, the screen and, after `connect`, the hall."""

    client: HallClient
    frame: Frame

    def __init__(self, args: argparse.Namespace, screen: Screen) -> None:
        self.args = args
        self.screen = screen
        self._is_connected = False

    @property
    def as_json(self) -> bool:
        """True if the result is printed as JSON."""
        return self.screen.form != "text"

    async def connect(self, mode: Mode = "start", *, model: str | None = None) -> HallClient:
        """Connect to the hall, set `client` and `frame`, and complete the ids and targets of the arguments."""
        self.client, self.frame = await connect(self.screen, mode, model=model)
        self._is_connected = True
        await self._complete_arguments()
        return self.client

    async def _complete_arguments(self) -> None:
        """Expand the short ids among the arguments, and look up the targets among them in the current project."""
        await expand_arguments(self.args, self.client)
        for name, value in vars(self.args).items():
            if isinstance(value, Target):
                setattr(self.args, name, self.locate(value))

    def locate(self, target: Target) -> Target:
        """Return the target with names of the current project."""
        return replace(target, project=self.frame.root)

    async def disconnect(self, code: int | None = None) -> None:
        """Close the connection. Unless the command was interrupted, first print late events, such as compactions."""
        if not self._is_connected:
            return
        self._is_connected = False
        try:
            if code != exit_codes.INTERRUPTED:
                for event in await self.client.wait_background_work():
                    self.screen.note(self.screen.one_line(str(event.data.get("text")), 500), "dim")
        finally:
            await self.client.close()

    def print(self, value: T, text: str | Callable[[T, Screen], object], *, data: Any = None) -> None:
        """Print the result. As JSON: `data`, by default the value. As text: `text`, or call it with the value."""
        if self.as_json:
            self.screen.json(_as_data(value) if data is None else data)
        elif isinstance(text, str):
            self.screen.result(text)
        else:
            text(value, self.screen)

    def print_table(self, rows: Sequence[Sequence[str]], data: Any, *, empty: str, head: Sequence[str] = ()) -> None:
        """Print a list: with --json `data` as JSON, otherwise a table, or the note `empty` if there are no rows."""
        if self.as_json:
            self.screen.json(_as_data(data))
        elif rows:
            self.screen.table([head, *rows] if head else rows)
        else:
            self.screen.note(empty)

    async def run_trusted(
        self, work: Callable[[], Awaitable[T]], *, worker: str | None = None, at: Path | None = None
    ) -> T:
        """Await `work`; if it needs code that is not trusted, ask the user first. See `prompt.run_trusted`."""
        from guildhall.cli.prompt import run_trusted

        return await run_trusted(work, self.client, self.frame, self.screen, worker=worker, at=at)

    async def trust_own_files(self, files: Sequence[FileTrust]) -> None:
        """Trust files that this command has written for the user. If the hall is unavailable, print the command."""
        await self.disconnect()
        if not files:
            return
        try:
            await (await self.connect()).trust.grant(files)
        except HallUnavailable:
            names = " ".join(shlex.quote(str(seen.path)) for seen in files)
            self.screen.note(f"Trust the test before you run it: guild trust {names}", "yellow")


class _NeedsEventLoop(Exception):
    """The command needs an event loop, because it does not only read or no hall is running."""


class _BlockingContext(Context):
    """An invocation without an event loop. Its requests block."""

    async def connect(self, mode: Mode = "start", *, model: str | None = None) -> HallClient:
        if mode != "read" or (address := find_running()) is None:
            raise _NeedsEventLoop
        from guildhall.hall.client.remote import RemoteHall
        from guildhall.hall.client.transport import BlockingTransport

        self.client = RemoteHall(check_same_version(address), BlockingTransport(address))
        self.frame = _frame(dict(os.environ), frozenset(), self.screen, None)
        self._is_connected = True
        await self._complete_arguments()
        return self.client

    async def disconnect(self, code: int | None = None) -> None:
        if self._is_connected:
            await self.client.close()


@dataclass(frozen=True)
class Command:
    """A function with the arguments that it declares."""

    function: Function
    arguments: tuple[Argument, ...]
    epilog: str
    event_loop: bool

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for add_to in self.arguments:
            add_to(parser)
        if self.epilog:
            parser.epilog = f"{self.epilog}\n\n{parser.epilog}"

    def run(self, args: argparse.Namespace, screen: Screen) -> int:
        """Run the command to its end and return the exit code."""
        if not self.event_loop:
            from guildhall.hall.client.transport import run_without_event_loop

            with suppress(_NeedsEventLoop, HallGone):  # nothing is printed yet
                ctx = _BlockingContext(args, screen)
                result = self.function(ctx)
                assert isinstance(result, Coroutine)
                return run_without_event_loop(_run(ctx, result))
        ctx = Context(args, screen)
        result = self.function(ctx)
        if not isinstance(result, Coroutine):
            return result or exit_codes.DONE
        return run_interruptible(_run(ctx, result), screen)


def command(*arguments: Argument, epilog: str = "", event_loop: bool = True) -> Callable[[Function], Command]:
    """Turn a function into a command. The function is asynchronous if it connects to the hall.

    `event_loop=False` saves the import of asyncio while a hall is running. The function must await only requests to the
    hall and must not use variables of the frame. It may be called a second time from its beginning.
    """
    return lambda function: Command(function, arguments, epilog, event_loop)


async def _run(ctx: Context, work: Work) -> int:
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


def find_running() -> Address | None:
    """Return the address of the hall's process, or None if no hall is running or this command is the hall."""
    environ = dict(os.environ)
    return None if is_embedded(environ) else find_hall(Home.locate(environ))


def check_background(command: str, instead: str) -> None:
    """Raise UsageError if this command is the hall itself, because the work would end with it."""
    if is_embedded(os.environ):
        hint = f"{instead}, or unset GUILDHALL_EMBEDDED."
        raise UsageError(f"{command}: cannot work in the background while GUILDHALL_EMBEDDED is set", hint=hint)


async def connect(screen: Screen, mode: Mode = "start", *, model: str | None = None) -> Connection:
    """Return a client of the hall, which the caller closes, and the frame of this command.

    Mode `start` uses the hall's process and starts it if necessary. `read` uses the process if it is running, and
    otherwise reads the home in this process. `here` always reads the home in this process. `model`: the option --model.
    """
    environ = dict(os.environ)
    home, root = Home.locate(environ), project_root(_cwd())
    if mode == "start" and screen.err.isatty() and not is_embedded(environ) and find_hall(home) is None:
        screen.note("Starting the hall ...", "dim")
    try:
        client, variables = await _connect(home, environ, root, mode)
    except OSError as error:
        raise HallUnavailable(
            f"cannot use the home {home.path}: {error.strerror or error}",
            hint=f"Set {HOME_VARIABLE} to a folder that you may write to.",
        ) from None
    return client, _frame(environ, variables, screen, model)


async def _connect(home: Home, environ: dict[str, str], root: Path, mode: Mode) -> tuple[HallClient, frozenset[str]]:
    """Return a client and the names of the variables that requests may carry."""
    if mode != "here" and not is_embedded(environ):
        connection = await _connect_to_process(home, environ, root, mode)
        if connection is not None:
            return connection
    from guildhall.core.config import load_settings
    from guildhall.hall.services.embedded import open_hall

    try:
        variables = frozenset(load_settings(home, root).env)
    except InvalidFile:  # invalid settings do not prevent reading
        if mode == "start":
            raise
        variables = frozenset[str]()
    return await open_hall(home, environ, readonly=mode != "start"), variables


async def _connect_to_process(
    home: Home, environ: dict[str, str], root: Path, mode: Mode
) -> tuple[HallClient, frozenset[str]] | None:
    """Connect to the hall's process, or return None if none is running and the mode does not start one."""
    import asyncio

    from guildhall.hall.client.remote import RemoteHall

    for _ in range(_MAX_TRIES):
        address = await asyncio.to_thread(find_or_start, home, environ) if mode == "start" else find_hall(home)
        if address is None:
            return None
        client = RemoteHall(check_same_version(address))
        try:
            welcome = await client.hall.hello(root)
        except HallGone:
            await client.close()
            if mode != "start":
                return None
            await asyncio.to_thread(wait_for_exit, address.pid)
            continue
        if welcome.problem is not None and mode == "start":
            await client.close()
            raise welcome.problem
        return client, frozenset(welcome.env)
    raise HallUnavailable("the hall exited right after starting", hint=f"Read the log of the hall: {home.log}")


def _frame(environ: dict[str, str], variables: frozenset[str], screen: Screen, model: str | None) -> Frame:
    keys = forwarded_variables()
    return Frame.here(_cwd(), environ, allowed=variables, interactive=screen.is_interactive, model=model, keys=keys)


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists", hint="Change to another folder.") from None


def run_interruptible(work: Coroutine[Any, Any, int], screen: Screen) -> int:
    """Run `work` in an event loop. The first signal cancels it, which pauses its run; the second ends the process."""
    import asyncio

    async def run() -> int:
        task = asyncio.ensure_future(work)
        is_stopping = False

        def stop() -> None:
            nonlocal is_stopping
            if is_stopping:
                if screen.abort_note:
                    screen.note(screen.abort_note)
                os._exit(exit_codes.INTERRUPTED)  # safe at any point: every step is already recorded
            is_stopping = True
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            raise Interrupted("interrupted") from None
        finally:
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)

    return asyncio.run(run())
