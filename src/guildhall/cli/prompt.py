"""Prompts: ask the user for an answer to an ask, for a confirmation, or for trust in code, at the terminal.

Input that was typed before the question is discarded. Does not send an answer to the hall (see `cli.follow` and
`cli.commands.runs.answer`) or decide which code is trusted (see `workers.code_trust`).

Invariant: every character of foreign text that the user approves is visible.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.cli.screen import Screen, exact, one_line
from guildhall.core.clock import SystemClock, parse_stamp
from guildhall.core.errors import Conflict, NotFound, NotTrusted, UsageError
from guildhall.core.text_checks import format_count
from guildhall.runs.model import Answer, format_choices, parse_choice, question_details

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.hall.client.model import TrustReport

T = TypeVar("T")

_QUESTIONS: Mapping[str, str] = {
    "approval": "Allow this call? {choices} (this exact call, in this run):",
    "interrupted_call": "The call was cut off. Did it take effect? {choices}:",
    "limit": "Limit reached. Allow more? [y]es (the same amount again), an amount, or [n]o:",
}
_MAX_LINE_BYTES = 100_000
_POLL_S = 0.2  # while a prompt waits, to notice that the ask was closed elsewhere
_CODE_KINDS = {
    "toolbox": "toolbox",
    "server": "MCP server",
    "member": "member",
    "test": "test, with the programs that it names,",
    "workflow": "setup, outside every sandbox, of the workflow",
}


class NoAnswer(Exception):
    """The user closed the input instead of answering."""


async def ask_user(ask: Mapping[str, Any], client: HallClient, screen: Screen) -> Answer:
    """Print an ask in full and read an answer while the ask is open.

    Raise Conflict if the ask is answered elsewhere or withdrawn, TimeoutError if it expires, NoAnswer at the end of
    input.
    """
    prompt = asyncio.ensure_future(_prompt(ask, screen))
    try:
        while not (await asyncio.wait({prompt}, timeout=_POLL_S))[0]:
            current = await client.asks.get(ask["ask"])
            if current.status == "expired":
                raise TimeoutError
            if current.status != "open" and not prompt.done():
                state = (
                    f"answered elsewhere: {current.outcome}" if current.answer else f"no longer open: {current.status}"
                )
                raise Conflict(f"{current.id} {state}", hint=f"Details: guild show {current.id}")
        return prompt.result()
    finally:
        prompt.cancel()


async def _prompt(ask: Mapping[str, Any], screen: Screen) -> Answer:
    screen.note(f"{ask['ask']}: {screen.exact(ask['title']).replace(chr(10), ' ')}", "yellow")
    if details := question_details(ask["body"], ask["because"]):
        screen.note(screen.quote_block(details, wrapped=True))
    expires_at = ask.get("expires_at")
    timeout_s = max((parse_stamp(expires_at) - SystemClock().now()).total_seconds(), 0) if expires_at else None
    async with asyncio.timeout(timeout_s):
        while True:
            typed = await _ask_line(screen, _question(ask))
            try:
                choice = read_choice(ask, typed)
            except UsageError as error:
                screen.note(error.hint or error.message)
                continue
            if ask["kind"] != "approval" or choice != "no":
                return Answer(choice=choice)
            note = await _ask_line(screen, "Reason for the worker (optional):")
            return Answer(choice=choice, note=note.strip() or None)


def _question(ask: Mapping[str, Any]) -> str:
    question = _QUESTIONS.get(ask["kind"], f"Your answer ({format_choices(ask['choices'])}):")
    return question.format(choices="  ".join(f"[{choice[0]}]{choice[1:]}" for choice in ask["choices"]))


async def ask_yes_no(question: str, screen: Screen) -> bool:
    """Return True if the user types yes. Any other line and the end of input count as no."""
    try:
        return (await _ask_line(screen, question)).strip().lower() in ("y", "yes")
    except NoAnswer:
        return False


def read_choice(ask: Mapping[str, Any], typed: str) -> str:
    """Return the choice that the user means. Raise UsageError if the text is not one of the choices."""
    if (choice := parse_choice(ask["choices"], typed)) is not None:
        return choice
    hint = f"Choose one of: {format_choices(ask['choices'])}."
    raise UsageError(f"invalid answer: {one_line(typed, 60)!r}", hint=hint)


async def run_trusted(
    work: Callable[[], Awaitable[T]],
    client: HallClient,
    frame: Frame,
    screen: Screen,
    *,
    worker: str | None = None,
    at: Path | None = None,
) -> T:
    """Await `work`. If it needs code that is not trusted, ask the user to trust it and await `work` once more.

    Raise NotTrusted if there is no terminal or the user refuses. `worker` or `at`: the code that is shown.
    """
    try:
        return await work()
    except NotTrusted as error:
        if not screen.is_interactive:
            raise
        where = f"{error.where}: " if error.where else ""
        screen.note(f"guild: {where}{error.message}", "yellow")
        try:
            report = await client.trust.inspect(frame, at=at, worker=worker)
        except NotFound:  # `worker` is the name of a member
            report = await client.trust.inspect(frame)
        screen.note(describe_code(report))
        if not await ask_trust(report, client, screen):
            raise
    return await work()


async def ask_trust(report: TrustReport, client: HallClient, screen: Screen) -> bool:
    """Ask for trust in all untrusted files. Record the trust and return True if the user agrees."""
    if not report.untrusted_files or not await ask_yes_no(
        f"Trust {name_files(report)} to run commands as you? [y]es  [n]o:", screen
    ):
        return False
    await client.trust.grant(report.untrusted_files)
    return True


def name_files(report: TrustReport) -> str:
    """Return a name for the untrusted files."""
    count = len(report.untrusted_files)
    return escape(report.untrusted_files[0].display_path) if count == 1 else f"these {count} files"


def describe_code(report: TrustReport) -> str:
    """Describe first the code that would be executed, then its possible effects, with every character visible."""
    parts: list[str] = []
    for code in report.code:
        lines = [f"{_CODE_KINDS.get(code.kind, 'output schema')} {escape(code.name)}"]
        lines += [f"  $ {escape(line)}" for command in code.commands for line in command.strip("\n").splitlines()]
        for file in code.files:
            since = f" on {file.trusted_at}" if file.trusted_at else ""
            lines.append(f"  {escape(file.display_path)}  {format_count(file.size, 'byte')}  {file.state_text}{since}")
            lines.append(f"    sha256 {file.digest}")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *(exact(plan.text()) for plan in report.plans)])


def escape(text: str) -> str:
    """Return foreign text on one line, with every character visible."""
    return exact(text).replace("\n", "\\n")


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
    screen.end_input()
    return line.decode(errors="replace").rstrip("\n")


def _read_line(descriptor: int, typed: asyncio.Future[bytes]) -> None:
    try:
        line = os.read(descriptor, _MAX_LINE_BYTES)
    except OSError:
        line = b""
    if not typed.done():
        typed.set_result(line)
