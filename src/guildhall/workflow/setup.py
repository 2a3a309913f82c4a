"""The setup of a workflow: executes the commands of its file in order, before the agents begin.

Each command is a tool call of the workflow's run and passes the gate, so an ended command is not repeated after a
crash, and the user is asked about an interrupted one. Commands run without a sandbox: the file must be trusted.
Does not check trust (`loader.py`, `demand_trust`).

Invariant: no process of a command survives the end of the command.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shlex
import shutil
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeFailed, ToolUnavailable
from guildhall.room.model import MAX_TEXT
from guildhall.tools.definition import tool
from guildhall.tools.model import Text, Tool, ToolCall, ToolResult
from guildhall.workflow.model import Values, Workflow, command, references

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workflow.definition import Step

    Call = Callable[[ToolCall], Awaitable[ToolResult]]
    Told = Callable[[str, str], None]  # the key of a call, and a piece of what its command has written


TOO_LONG = None  # instead of an exit code

# A watcher in the same group waits for the end of the hall, which holds the other end of its input, and ends the group.
_WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 -$$; } >/dev/null 2>&1 & exec "$@" 3<&-'
_CHUNK = 65_536
_DRAIN_SECONDS = 1.0
_END_SECONDS = 10.0
_LONGEST_LINE = 10_000  # characters that are held back until there is a whole line
_LAST_WORDS = 100_000  # bytes that are held of what is only shown
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(kw_only=True)
class Program:
    """A command that is run once."""

    command: str
    cwd: Path
    env: Mapping[str, str]
    seconds: float
    most: int | None  # bytes of its output that are kept; None: no output is kept
    told: Callable[[str], None]  # receives all output, piece by piece
    kept: bytearray = field(default_factory=bytearray)
    too_much: bool = False
    _last: bytearray = field(default_factory=bytearray)

    async def run(self) -> int | None:
        """The exit code; from 128 on a signal ended it. TOO_LONG: it took too long. Nothing of it runs afterwards."""
        process = await self._started()
        reading = [
            asyncio.create_task(self._read(process.stdout, keep=self.most is not None)),
            asyncio.create_task(self._read(process.stderr, keep=False)),
        ]
        try:
            async with asyncio.timeout(self.seconds):
                await _exited(process)
        except TimeoutError:
            return TOO_LONG
        finally:
            # Ends all processes of the command. The watcher still runs, so the group belongs to the command.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait(reading, timeout=_DRAIN_SECONDS)
            for task in reading:
                task.cancel()
            await asyncio.wait([asyncio.create_task(process.wait())], timeout=_END_SECONDS)
        code = process.returncode
        return 1 if code is None else code if code >= 0 else 128 - code

    def last_words(self, most: int) -> str:
        """The end of what it wrote, for a person."""
        text = self._last.decode("utf-8", "replace").strip("\n")
        return text if len(text) <= most else f"[...]\n{text[-most:]}"

    async def _started(self) -> asyncio.subprocess.Process:
        shell = shutil.which("bash", path=self.env["PATH"]) or "/bin/sh"
        try:
            return await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WATCHED, "sh", shell, "-e", "-c", self.command),
                cwd=self.cwd,
                env=self.env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolUnavailable(f"the command cannot be started: {error}", where=str(self.cwd)) from None

    async def _read(self, stream: asyncio.StreamReader | None, *, keep: bool) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        line = ""
        while stream is not None and (chunk := await stream.read(_CHUNK)):
            if keep:
                room = (self.most or 0) - len(self.kept)
                self.kept += chunk[:room]
                self.too_much = self.too_much or len(chunk) > room
            self._last += chunk
            del self._last[:-_LAST_WORDS]
            line = self._tell(line + decoder.decode(chunk))
        if line:
            self.told(line)

    def _tell(self, text: str) -> str:
        """Tells whole lines, so that nobody sees half a secret; gives what is still to be told."""
        whole, newline, rest = text.rpartition("\n")
        if len(rest) > _LONGEST_LINE:
            whole, newline, rest = text, "", ""
        if whole or newline:
            self.told(whole + newline)
        return rest


async def _exited(process: asyncio.subprocess.Process) -> None:
    """Returns when the command itself has ended. asyncio's own wait is also for all that hold its output."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


_MOST_KEPT = MAX_TEXT - 100_000  # bytes of an output that is kept: with what is said around it, it is a message
_MOST_IN_VARIABLE = 120_000  # bytes: the system takes no more in one variable
_SHOWN = 8_000  # characters of a failed command's output


@tool(name="shell", capabilities={"proc.exec"}, runs_in="run")
def shell_tool(command: str, variables: dict[str, str], timeout: float, keep: bool) -> str:
    """A command of the workflow's setup.

    Args:
        command: As the file says it, with variables where its placeholders were.
        variables: What these hold.
        timeout: Seconds that it may take.
        keep: Whether what it prints is kept under a name.
    """
    raise AssertionError


TOOLS: tuple[Tool, ...] = (shell_tool,)


async def run_steps(workflow: Workflow, values: Values, call: Call) -> dict[str, str]:
    """Run the commands in order and return the outputs that are kept, by name. Raise RuntimeFailed if one fails."""
    outputs: dict[str, str] = {}
    for number, step in enumerate(workflow.definition.setup, 1):
        known = replace(values, outputs=outputs)
        arguments = {
            "command": command(step.shell),
            # The environment of the command has the variables of `env:` already.
            "variables": {one.variable: known.of(one) for one in references(step.shell) if one.kind != "env"},
            "timeout": step.timeout,
            "keep": step.name is not None,
        }
        result = await call(ToolCall(key=f"setup/{number}", tool=shell_tool.name, arguments=arguments))
        kept = _kept(number, step, result, workflow)
        if step.name is not None:
            outputs[step.name] = kept
    return outputs


def _kept(number: int, step: Step, result: ToolResult, workflow: Workflow) -> str:
    """What the command printed, if it went well."""
    what = f"setup step {number} ({_short(step.shell)})"
    if result.is_error:
        raise RuntimeFailed(
            f"{what} failed:\n{result.text}",
            where=workflow.place,
            hint="Put right what it says, then start the workflow again.",
        )
    first = result.content[0] if len(result.content) == 2 else None  # else a person has said that it was done
    if step.name is None:
        return ""
    if not isinstance(first, Text):
        message = f"{what} was interrupted, and what it printed is lost: ${{{{ {step.name} }}}} has no value"
        raise RuntimeFailed(message, where=workflow.place, hint="Start the workflow again.")
    return first.text


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Carries out the calls of `shell`, in the folder of the file and with the environment of whoever started it."""

    folder: Path
    env: Mapping[str, str]
    told: Told

    async def __call__(self, tool: Tool, call: ToolCall) -> ToolResult:
        arguments = call.arguments or {}
        variables: Mapping[str, str] = arguments["variables"]
        for name, value in variables.items():
            if "\0" in value or len(value.encode("utf-8", "replace")) > _MOST_IN_VARIABLE:
                return ToolResult.error(
                    f"[not started: the value of ${name} is larger than {_MOST_IN_VARIABLE:,} bytes, or not text. "
                    "Have the step before it write a file, and read that.]"
                )
        program = Program(
            command=arguments["command"],
            cwd=self.folder,
            env={"PATH": _USUAL_PATH, **self.env, **variables},
            seconds=arguments["timeout"],
            most=_MOST_KEPT if arguments["keep"] else None,
            told=lambda text: self.told(call.key, text),
        )
        return _result(await program.run(), program, arguments["timeout"], keep=arguments["keep"])


def environment(workflow: Workflow, frame: Frame) -> dict[str, str]:
    """What a command of the setup may see: where programs and the person's things are, and what the file names."""
    named = frame.harmless_env() | {name: frame.env[name] for name in workflow.definition.env if name in frame.env}
    # GIT_DIR and its like would send every git of the setup to another repository.
    return {name: value for name, value in {**frame.user_env, **named}.items() if not name.startswith("GIT_")}


def _result(code: int | None, program: Program, seconds: float, *, keep: bool) -> ToolResult:
    if code == 0 and keep and program.too_much:
        said = f"[what it prints is larger than {_MOST_KEPT:,} bytes. Have it write a file, and keep the file's name.]"
        return ToolResult.error(said)
    if code == 0 and keep and b"\0" in program.kept:
        return ToolResult.error("[what it prints is not text. Have it write a file, and keep the file's name.]")
    if code == 0:
        kept = program.kept.decode("utf-8", "replace").rstrip("\n") if keep else ""
        return ToolResult(content=(Text(kept), Text("[exit code 0]")))
    how = f"[ended after {seconds:g} s: the time limit of the step]" if code == TOO_LONG else f"[exit code {code}]"
    shown = program.last_words(_SHOWN)
    return ToolResult.error(f"{shown}\n{how}" if shown else how)


def _short(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return shlex.join([line])[1:-1] if len(line) <= 60 and line.isprintable() else f"{line[:60]!r}..."
