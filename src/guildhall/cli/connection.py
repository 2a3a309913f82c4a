"""How a command reaches the hall: the frame of the caller, the client, and what Ctrl-C means on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.cli import exit_codes
from guildhall.cli.screen import one_line
from guildhall.core.errors import HallGone, HallUnavailable, Interrupted, InvalidFile, UsageError
from guildhall.core.frame import Frame
from guildhall.core.paths import HOME_VARIABLE, Home, project_root
from guildhall.hall.client.discovery import find, find_or_start, is_embedded, same_version, wait_for_end
from guildhall.models.keys import travelling

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.hall.client.interface import HallClient, Welcome
    from guildhall.hall.client.remote import RemoteHall

    Work = Callable[[HallClient, Frame], Coroutine[Any, Any, int]]

T = TypeVar("T")

_TRIES = 3  # to reach a hall that leaves just then
# Ctrl-C, a polite kill, and the terminal that was closed all mean: stop here, so that it can go on later.
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def with_hall(
    work: Work, screen: Screen, *, readonly: bool = False, here: bool = False, model: str | None = None
) -> int:
    """Do the work with a client of the hall; the exit code.

    With the hall's own process, where there is one. Work that is not only looking starts one; looking is done here.
    `here`: this process looks by itself in any case, because the work is its own.
    """
    import asyncio

    async def done() -> int:
        client, frame = await reached(screen, readonly=readonly, here=here, model=model)
        try:
            code = await work(client, frame)
            if code != exit_codes.INTERRUPTED:
                tell_rest(await client.settle(), screen)
            return code
        finally:
            await client.close()

    return asyncio.run(until_stopped(done(), screen))


async def reached(
    screen: Screen, *, readonly: bool = False, here: bool = False, model: str | None = None
) -> tuple[HallClient, Frame]:
    """A client of the hall, to be closed by the caller, and the frame of this command."""
    environ = dict(os.environ)
    home = Home.locate(environ)
    try:
        client, allowed = await _client(home, environ, readonly=readonly, here=here)
    except OSError as error:
        raise _unusable(home, error) from None
    return client, _frame(environ, allowed, screen, model)


def with_look(work: Work, screen: Screen) -> int:
    """The same for work that asks a few questions, then prints: without an event loop where a hall is running."""
    environ = dict(os.environ)
    address = None if is_embedded(environ) else find(Home.locate(environ))
    if address is not None:
        from guildhall.hall.client.remote import RemoteHall
        from guildhall.hall.client.transport import BlockingTransport

        client = RemoteHall(same_version(address), BlockingTransport(address))
        try:
            return without_loop(work(client, _frame(environ, frozenset(), screen, None)))
        except HallGone:  # it left just now; nothing is printed yet
            pass
        finally:
            without_loop(client.close())
    return with_hall(work, screen, readonly=True)


def without_loop(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("this work has to wait, and there is no event loop")


async def _client(
    home: Home, environ: dict[str, str], *, readonly: bool, here: bool
) -> tuple[HallClient, frozenset[str]]:
    """A client, and the names of the variables that may travel with what is asked."""
    root = project_root(_cwd())
    if not here and not is_embedded(environ) and (remote := await _remote(home, environ, root, start=not readonly)):
        client, welcome = remote
        if welcome.problem is not None and not readonly:
            await client.close()
            raise welcome.problem
        return client, frozenset(welcome.env)
    from guildhall.hall.services.embedded import open_hall

    allowed = _allowed(home, root, looking=readonly)
    return await open_hall(home, environ, readonly=readonly), allowed


async def _remote(home: Home, environ: dict[str, str], root: Path, *, start: bool) -> tuple[RemoteHall, Welcome] | None:
    """The hall's own process, which now knows that somebody is there; None: there is none, and none is started.

    One that leaves at this very moment has done nothing yet: then there is none.
    """
    import asyncio

    from guildhall.hall.client.remote import RemoteHall

    for _ in range(_TRIES):
        address = await asyncio.to_thread(find_or_start, home, environ) if start else find(home)
        if address is None:
            return None
        client = RemoteHall(same_version(address))
        try:
            return client, await client.hall.hello(root)
        except HallGone:
            await client.close()
            if not start:
                return None
            await asyncio.to_thread(wait_for_end, address.pid)
    raise HallUnavailable("the hall leaves again and again", hint=f"See {home.log}.")


def tell_rest(events: Iterable[Event], screen: Screen) -> None:
    """What the hall did by itself and told in no run, because that had ended."""
    for event in events:
        screen.note(one_line(str(event.data.get("text")), 500), "dim")


def _unusable(home: Home, error: OSError) -> HallUnavailable:
    return HallUnavailable(
        f"the home {home.path} cannot be used: {error.strerror or error}",
        hint=f"Set {HOME_VARIABLE} to a folder that you may write to.",
    )


def _frame(environ: dict[str, str], allowed: frozenset[str], screen: Screen, model: str | None) -> Frame:
    """The frame of this command."""
    keys = travelling()
    return Frame.here(_cwd(), environ, allowed=allowed, interactive=screen.interactive, model=model, keys=keys)


def _cwd() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in no longer exists", hint="cd into one that does.") from None


def _allowed(home: Home, root: Path, *, looking: bool) -> frozenset[str]:
    """The variables that may travel. Who only looks needs no settings: wrong ones do not keep anybody from it."""
    from guildhall.core.config import load_settings

    try:
        return frozenset(load_settings(home, root).env)
    except InvalidFile:
        if not looking:
            raise
        return frozenset()


async def until_stopped(work: Coroutine[Any, Any, int], screen: Screen) -> int:
    """The first signal cancels the work, which parks what it follows; a second one ends the process where it is."""
    import asyncio

    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if stopped:
            if screen.last_words:
                screen.note(screen.last_words)
            os._exit(exit_codes.INTERRUPTED)  # safe at any point: whatever was done is on record
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in _STOP:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted("interrupted") from None
    finally:
        for number in _STOP:
            loop.remove_signal_handler(number)
