"""Connection: connects a command to the hall, builds the caller's frame, and handles signals.

The first signal cancels the command and parks its run. The second signal ends the process. Does not know commands (see
`cli.command`). The caller of `connect` closes the client.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.cli import exit_codes
from guildhall.core.errors import HallGone, HallUnavailable, Interrupted, InvalidFile, UsageError
from guildhall.core.frame import Frame
from guildhall.core.paths import HOME_VARIABLE, Home, project_root
from guildhall.hall.client.discovery import find, find_or_start, is_embedded, same_version, wait_for_end
from guildhall.models.credentials import travelling

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from guildhall.cli.screen import Screen
    from guildhall.hall.client.interface import HallClient

Mode = Literal["start", "read", "here"]
Connection = tuple["HallClient", Frame]

_MAX_TRIES = 3  # if the hall exits while a command connects
# Ctrl-C, `kill` and a closed terminal all stop the command so that its run can be resumed.
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def connect(screen: Screen, mode: Mode = "start", *, model: str | None = None) -> Connection:
    """Return a client of the hall and the frame of this command.

    start: use the hall's process; start one if none is running. read: use the process if it is running, otherwise read
    the home in this process. here: read the home in this process in any case. `model`: the option --model.
    """
    environ = dict(os.environ)
    home, root = Home.locate(environ), project_root(_cwd())
    try:
        client, variables = await _connect(home, environ, root, mode)
    except OSError as error:
        raise HallUnavailable(
            f"the home {home.path} cannot be used: {error.strerror or error}",
            hint=f"Set {HOME_VARIABLE} to a folder that you may write to.",
        ) from None
    return client, _frame(environ, variables, screen, model)


def connect_blocking(screen: Screen) -> Connection | None:
    """Return a client whose requests block, for `run_without_event_loop`, or None if no hall is running."""
    environ = dict(os.environ)
    address = None if is_embedded(environ) else find(Home.locate(environ))
    if address is None:
        return None
    from guildhall.hall.client.remote import RemoteHall
    from guildhall.hall.client.transport import BlockingTransport

    client = RemoteHall(same_version(address), BlockingTransport(address))
    return client, _frame(environ, frozenset(), screen, None)


async def _connect(home: Home, environ: dict[str, str], root: Path, mode: Mode) -> tuple[HallClient, frozenset[str]]:
    """Return a client and the names of the variables that requests may carry."""
    if mode != "here" and not is_embedded(environ):
        found = await _connect_to_process(home, environ, root, mode)
        if found is not None:
            return found
    from guildhall.hall.services.embedded import open_hall

    variables = _allowed_variables(home, root, mode)
    return await open_hall(home, environ, readonly=mode != "start"), variables


async def _connect_to_process(
    home: Home, environ: dict[str, str], root: Path, mode: Mode
) -> tuple[HallClient, frozenset[str]] | None:
    """Connect to the hall's process, or return None if none is running and the mode does not start one."""
    import asyncio

    from guildhall.hall.client.remote import RemoteHall

    for _ in range(_MAX_TRIES):
        address = await asyncio.to_thread(find_or_start, home, environ) if mode == "start" else find(home)
        if address is None:
            return None
        client = RemoteHall(same_version(address))
        try:
            welcome = await client.hall.hello(root)
        except HallGone:
            await client.close()
            if mode != "start":
                return None
            await asyncio.to_thread(wait_for_end, address.pid)
            continue
        if welcome.problem is not None and mode == "start":
            await client.close()
            raise welcome.problem
        return client, frozenset(welcome.env)
    raise HallUnavailable("the hall leaves again and again", hint=f"See {home.log}.")


def _frame(environ: dict[str, str], variables: frozenset[str], screen: Screen, model: str | None) -> Frame:
    keys = travelling()
    return Frame.here(_cwd(), environ, allowed=variables, interactive=screen.interactive, model=model, keys=keys)


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in no longer exists", hint="cd into one that does.") from None


def _allowed_variables(home: Home, root: Path, mode: Mode) -> frozenset[str]:
    """Return the variables that the settings allow. Invalid settings do not prevent reading."""
    from guildhall.core.config import load_settings

    try:
        return frozenset(load_settings(home, root).env)
    except InvalidFile:
        if mode == "start":
            raise
        return frozenset()


def run_interruptible(work: Coroutine[Any, Any, int], screen: Screen) -> int:
    """Run `work` in an event loop. The first signal cancels it, which parks its run; the second ends the process."""
    import asyncio

    return asyncio.run(_until_stopped(work, screen))


async def _until_stopped(work: Coroutine[Any, Any, int], screen: Screen) -> int:
    import asyncio

    task = asyncio.ensure_future(work)
    is_stopping = False

    def stop() -> None:
        nonlocal is_stopping
        if is_stopping:
            if screen.last_words:
                screen.note(screen.last_words)
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
