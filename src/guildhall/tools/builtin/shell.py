"""Shell tool: implements Bash, which runs a confined command in the run's folder and returns its output.

Each call is a new shell. A command may run for 120 seconds by default and for at most 3600 seconds. Does not confine
the command itself (see `sandbox.jail`).

Invariant: no process of a command is left after the call.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.sandbox.jail import ConfinedProcess, Confinement, Kind, spawn
from guildhall.tools.definition import tool
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from guildhall.sandbox.view import View

MAX_CHARS = 30_000
DEFAULT_TIMEOUT_S = 120.0
MAX_TIMEOUT_S = 3600.0
_CHUNK_BYTES = 65_536
_DRAIN_TIMEOUT_S = 2.0


def shell_tools(
    view: View, env: Mapping[str, str], network: bool = False, *, kind: Kind | None = None
) -> tuple[Tool, ...]:
    """Return Bash. Its handler runs in the hall and starts the confined shell."""
    shell = _Shell(Confinement(view=view, env=env, network=network), kind)
    made = tool(name="Bash", capabilities=_capabilities(view, network), runs_in="hall")(shell.run)
    access = "It can use the network." if network else "It has no network."
    return (replace(made, description=f"{made.description} {access}"),)


def _capabilities(view: View, network: bool) -> set[str]:
    """Return the capabilities of a shell. They include file access, so that rules about files apply to the shell."""
    found = {"proc.exec"}
    if view.folders:
        found.add("fs.read")
    if any(folder.is_writable for folder in view.folders):
        found.add("fs.write")
    return found | ({"net"} if network else set())


class _Shell:
    def __init__(self, confinement: Confinement, kind: Kind | None) -> None:
        self._confinement = confinement
        self._kind: Kind | None = kind

    async def run(self, command: str, timeout: float = DEFAULT_TIMEOUT_S, description: str = "") -> ToolResult:  # noqa: ASYNC109 - the model's own argument
        """Run a shell command in the working folder. Returns its output and exit code. The command can read the run's
        folders and the installed programs, and can change only writable folders; .git is read-only. Each call starts
        a new shell without input. Background processes are killed at the end of the call.

        Args:
            command: The command, as typed into a shell.
            timeout: Seconds after which the command is killed, at most 3600.
            description: What the command does, in a few words, for the user who approves it.
        """
        if "\0" in command or not command.strip():
            raise UsageError("invalid command: empty, or contains a NUL character")
        if not 0 < timeout <= MAX_TIMEOUT_S:
            raise UsageError(f"timeout must be more than 0 and at most {MAX_TIMEOUT_S:g} seconds")
        shell = shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin") or "/bin/sh"
        program = await spawn([shell, "-c", command], self._confinement, kind=self._kind)
        output = _Output(MAX_CHARS)
        reader = asyncio.create_task(_read(program, output))
        code: int | None = None
        try:
            async with asyncio.timeout(timeout):
                code = await program.wait()
        except TimeoutError:
            pass
        finally:
            await program.kill()
            await asyncio.wait([reader], timeout=_DRAIN_TIMEOUT_S)
            reader.cancel()
        return _format_output(code, timeout, output.text())


async def _read(program: ConfinedProcess, output: _Output) -> None:
    stream = program.process.stdout
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        output.add(chunk)


def _format_output(code: int | None, timeout_s: float, text: str) -> ToolResult:
    body = text if not text or text.endswith("\n") else f"{text}\n"
    if code is None:
        return ToolResult.error(f"{body}[killed: the command took longer than the timeout of {timeout_s:g} s]")
    shown = f"{body}[exit code {code}]"
    return ToolResult.error(shown) if code else ToolResult.of(shown)


class _Output:
    """The first and the last part of the output of a program. The memory is limited."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        # A character has up to four bytes, so this many bytes are enough for half the limit in characters.
        room = 4 * self._half
        self._total += len(chunk)
        taken = max(0, room - len(self._head))
        self._head += chunk[:taken]
        self._tail += chunk[taken:]
        del self._tail[:-room]

    def text(self) -> str:
        if len(self._head) + len(self._tail) == self._total:
            text = (self._head + self._tail).decode("utf-8", "replace")
            if len(text) <= 2 * self._half:
                return text
            start, end, cut = text[: self._half], text[-self._half :], f"{len(text) - 2 * self._half:,} characters"
        else:
            start = self._head.decode("utf-8", "replace")[: self._half]
            end = self._tail.decode("utf-8", "replace")[-self._half :]
            shown = len(start.encode()) + len(end.encode())
            cut = f"about {max(0, self._total - shown):,} bytes"
        return f"{start}\n[... {cut} left out ...]\n{end}"
