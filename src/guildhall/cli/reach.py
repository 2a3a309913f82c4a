"""How a command reaches the hall: the frame of the caller, the client, and what Ctrl-C means on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes, visible
from guildhall.core.errors import HallUnavailable, Interrupted, InvalidFile, NotFound, UsageError
from guildhall.core.frame import Frame
from guildhall.core.ids import ASK, RUN, is_id
from guildhall.core.paths import HOME_VARIABLE, Home, project_root

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from guildhall.cli.screen import Screen
    from guildhall.core.events import Event
    from guildhall.hall.client import HallClient

    Work = Callable[[HallClient, Frame], Awaitable[int]]

# Ctrl-C, a polite kill, and the terminal that was closed all mean: stop here, so that it can go on later.
_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def with_hall(work: Work, screen: Screen, *, readonly: bool = False, model: str | None = None) -> int:
    """Do the work with a client of the hall; the exit code."""
    from guildhall.hall.embedded import open_hall

    environ = dict(os.environ)
    home = Home.locate(environ)
    frame = frame_here(home, screen, model=model, looking=readonly)

    async def done() -> int:
        try:
            client = await open_hall(home, environ, readonly=readonly)
        except OSError as error:
            raise _unusable(home, error) from None
        try:
            code = await work(client, frame)
            if code != exit_codes.INTERRUPTED:
                tell_rest(await client.settle(), screen)
            return code
        finally:
            await client.close()

    return asyncio.run(until_stopped(done(), screen))


def tell_rest(events: Iterable[Event], screen: Screen) -> None:
    """What the hall did by itself and told in no run, because that had ended."""
    for event in events:
        screen.note(visible.one_line(str(event.data.get("text")), 500), "dim")


def _unusable(home: Home, error: OSError) -> HallUnavailable:
    return HallUnavailable(
        f"the home {home.path} cannot be used: {error.strerror or error}",
        hint=f"Set {HOME_VARIABLE} to a folder that you may write to.",
    )


def frame_here(home: Home, screen: Screen, *, model: str | None = None, looking: bool = False) -> Frame:
    """The frame of this command. Who only looks needs no settings: wrong ones do not keep anybody from it."""
    from guildhall.core.config import load_settings

    try:
        cwd = Path.cwd()
    except FileNotFoundError:
        raise UsageError("the folder you are in no longer exists", hint="cd into one that does.") from None
    allowed: frozenset[str] = frozenset()
    try:
        allowed = frozenset(load_settings(home, project_root(cwd)).env)
    except InvalidFile:
        if not looking:
            raise
    return Frame.here(cwd, os.environ, allowed=allowed, interactive=screen.interactive, model=model)


async def until_stopped(work: Coroutine[Any, Any, int], screen: Screen) -> int:
    """The first signal cancels the work, which parks what it follows; a second one ends the process where it is."""
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


def run_id(text: str) -> str:
    """The text, if it has the form of a run's id."""
    if is_id(text, RUN):
        return text
    if is_id(text, ASK):
        raise NotFound(f"{text} is an ask, not a run", hint=f"Answer it: guild answer {text}")
    raise NotFound(f"there is no run {_short(text)}", hint="Runs look like r-7k2m9x4qpw; `guild ls --all` lists them.")


def ask_id(text: str) -> str:
    """The text, if it has the form of an ask's id."""
    if is_id(text, ASK):
        return text
    if is_id(text, RUN):
        hint = f"Its asks: guild show {text}. To go on with it: guild resume {text}"
        raise NotFound(f"{text} is a run, not an ask", hint=hint)
    raise NotFound(f"there is no ask {_short(text)}", hint="Asks look like a-3h8n5w2kcd; `guild ls` lists them.")


def any_id(text: str) -> str:
    """The text, if it has the form of the id of a run or an ask."""
    if is_id(text, RUN) or is_id(text, ASK):
        return text
    raise NotFound(
        f"there is no run and no ask {_short(text)}", hint="Ids look like r-7k2m9x4qpw; `guild ls --all` lists them."
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
