"""Prompts: ask the user questions at the terminal and read the answers.

Input that was typed before the question is discarded. Does not send an answer to the hall (see `cli.follow` and
`cli.commands.runs.answer`) or ask for trust (see `cli.trust_prompt`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from guildhall.cli.screen import Screen, one_line
from guildhall.core.clock import SystemClock, moment
from guildhall.core.errors import UsageError
from guildhall.runs.model import Answer, choice_of, choices_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping


_QUESTIONS: Mapping[str, str] = {
    "approval": "Allow it? yes, session (this very call, again and again, in this run), no:",
    "unknown_effect": "Did it happen? done (it did: go on), again (do it once more), fail (tell the worker):",
    "limit": "Allow more? yes (as much again), an amount to add, no:",
}
_MAX_LINE_BYTES = 100_000


class NoAnswer(Exception):
    """The user closed the input instead of answering."""


async def ask_person(ask: Mapping[str, Any], screen: Screen) -> Answer:
    """Print an ask in full and read an answer. Raise NoAnswer at the end of input, TimeoutError when it expires."""
    screen.note(f"{ask['ask']}: {screen.exactly(ask['title']).replace(chr(10), ' ')}", "yellow")
    if ask["body"]:
        screen.note(screen.barred(ask["body"], wrapped=True))
    async with asyncio.timeout(_seconds_left(ask)):
        while True:
            typed = await _ask_line(
                screen, _QUESTIONS.get(ask["kind"]) or f"Your answer ({choices_in_words(ask['choices'])}):"
            )
            try:
                choice = read_choice(ask, typed)
            except UsageError as error:
                screen.note(error.hint or error.message)
                continue
            note = await _reason(screen) if ask["kind"] == "approval" and choice == "no" else None
            return Answer(choice=choice, note=note)


async def agrees(question: str, screen: Screen) -> bool:
    """Return True if the user types yes. Everything else, and the end of input, is a no."""
    try:
        return (await _ask_line(screen, question)).strip().lower() in ("y", "yes")
    except NoAnswer:
        return False


def read_choice(ask: Mapping[str, Any], typed: str) -> str:
    """Return the choice that the user means. Raise UsageError if it is none of the choices."""
    if (choice := choice_of(ask["choices"], typed)) is not None:
        return choice
    named = choices_in_words(ask["choices"])
    raise UsageError(f"{one_line(typed, 60)!r} is no answer to {ask['ask']}", hint=f"Answer with: {named}.")


async def _reason(screen: Screen) -> str | None:
    return (await _ask_line(screen, "Why not? (the worker reads it; Enter for no reason):")).strip() or None


def _seconds_left(ask: Mapping[str, Any]) -> float | None:
    if not ask.get("expires_at"):
        return None
    return max((moment(ask["expires_at"]) - SystemClock().now()).total_seconds(), 0)


async def _ask_line(screen: Screen, question: str) -> str:
    """Read a line without blocking the event loop. Input typed before the question is discarded."""
    descriptor = sys.stdin.fileno()
    with suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)
    screen.prompt(question)
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()
    loop.add_reader(descriptor, _read_line, descriptor, typed)
    try:
        line = await typed
    finally:
        loop.remove_reader(descriptor)
    if not line:
        raise NoAnswer
    screen.entered()
    return line.decode(errors="replace").rstrip("\n")


def _read_line(descriptor: int, typed: asyncio.Future[bytes]) -> None:
    try:
        line = os.read(descriptor, _MAX_LINE_BYTES)
    except OSError:
        line = b""
    if not typed.done():
        typed.set_result(line)
