"""The setup of a workflow: executes the commands of its file in order, before the agents begin.

Each command is a tool call of the workflow's run and passes the gate, so an ended command is not repeated after a
crash, and the user is asked about an interrupted one. Commands run without a sandbox: the file must be trusted.
Does not check trust (`loader.py`, `check_trust`).

Invariant: no process of a command survives the end of the command.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeFailed, ToolUnavailable
from guildhall.room.model import MAX_TEXT_BYTES
from guildhall.tools.definition import tool
from guildhall.tools.model import Text, Tool, ToolCall, ToolResult
from guildhall.workflow.instance import SETUP_KEY_PREFIX
from guildhall.workflow.placeholders import Values, references, shell_command

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.workflow.definition import Step
    from guildhall.workflow.model import Workflow

    Call = Callable[[ToolCall], Awaitable[ToolResult]]
    OnOutput = Callable[[str, str], None]  # receives the key of a call, and a piece of its output

TIMED_OUT = None  # replaces the exit code

# A watchdog in the process group reads a pipe from the hall. When the hall exits, the watchdog kills the group.
_WATCHDOG = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 -$$; } >/dev/null 2>&1 & exec "$@" 3<&-'
_CHUNK_BYTES = 65_536
_DRAIN_TIMEOUT_S = 1.0
_EXIT_TIMEOUT_S = 10.0
_MAX_LINE_CHARS = 10_000  # a longer line is reported in parts
_TAIL_BYTES = 100_000
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(kw_only=True)
class CommandExecution:
    """One execution of a command."""

    command: str
    cwd: Path
    env: Mapping[str, str]
    timeout_s: float
    max_output_bytes: int | None  # None if the output is not kept
    on_output: Callable[[str], None]  # receives all output
    output: bytearray = field(default_factory=bytearray)
    is_truncated: bool = False
    _tail: bytearray = field(default_factory=bytearray)

    async def run(self) -> int | None:
        """Run the command. Return its exit code (128 + N for signal N), or TIMED_OUT."""
        process = await self._start()
        readers = [
            asyncio.create_task(self._read(process.stdout, keep=self.max_output_bytes is not None)),
            asyncio.create_task(self._read(process.stderr, keep=False)),
        ]
        try:
            async with asyncio.timeout(self.timeout_s):
                await _wait_exit(process)
        except TimeoutError:
            return TIMED_OUT
        finally:
            # The watchdog still runs, so the group id is not reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait(readers, timeout=_DRAIN_TIMEOUT_S)
            for task in readers:
                task.cancel()
            await asyncio.wait([asyncio.create_task(process.wait())], timeout=_EXIT_TIMEOUT_S)
        code = process.returncode
        return 1 if code is None else code if code >= 0 else 128 - code

    def output_tail(self, max_chars: int) -> str:
        """Return the end of the output."""
        text = self._tail.decode("utf-8", "replace").strip("\n")
        return text if len(text) <= max_chars else f"[...]\n{text[-max_chars:]}"

    async def _start(self) -> asyncio.subprocess.Process:
        shell = shutil.which("bash", path=self.env["PATH"]) or "/bin/sh"
        try:
            return await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WATCHDOG, "sh", shell, "-e", "-c", self.command),
                cwd=self.cwd,
                env=self.env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolUnavailable(f"cannot start the command: {error}", where=str(self.cwd)) from None

    async def _read(self, stream: asyncio.StreamReader | None, *, keep: bool) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        line = ""
        while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
            if keep:
                free_bytes = (self.max_output_bytes or 0) - len(self.output)
                self.output += chunk[:free_bytes]
                self.is_truncated = self.is_truncated or len(chunk) > free_bytes
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
            line = self._report_lines(line + decoder.decode(chunk))
        if line:
            self.on_output(line)

    def _report_lines(self, text: str) -> str:
        """Report whole lines, so that redaction sees no half secret. Return the rest."""
        whole, newline, rest = text.rpartition("\n")
        if len(rest) > _MAX_LINE_CHARS:
            whole, newline, rest = text, "", ""
        if whole or newline:
            self.on_output(whole + newline)
        return rest


async def _wait_exit(process: asyncio.subprocess.Process) -> None:
    """Return when the command itself has exited. Unlike `Process.wait`, ignore processes that hold its output open."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


_MAX_OUTPUT_BYTES = MAX_TEXT_BYTES - 100_000  # leaves space for the text around it in a message
_MAX_VARIABLE_BYTES = 120_000  # the kernel accepts 128 KiB per variable
_MAX_TAIL_CHARS = 8_000  # of the output of a failed command


@tool(name="shell", capabilities={"proc.exec"}, runs_in="run")
def shell_tool(command: str, variables: dict[str, str], timeout: float, keep: bool) -> str:
    """Run a command of the workflow's setup.

    Args:
        command: The command, with variables in place of its placeholders.
        variables: The values of the variables.
        timeout: The timeout in seconds.
        keep: True to return the output.
    """
    raise AssertionError


TOOLS: tuple[Tool, ...] = (shell_tool,)


async def run_steps(workflow: Workflow, values: Values, call: Call) -> dict[str, str]:
    """Run the commands in order. Return the outputs by name. Raise RuntimeFailed if a command fails."""
    outputs: dict[str, str] = {}
    for number, step in enumerate(workflow.definition.setup, 1):
        known = replace(values, outputs=outputs)
        arguments = {
            "command": shell_command(step.shell),
            # The environment of the command has the variables of `env:` already.
            "variables": {name.variable: known.get(name) for name in references(step.shell) if name.kind != "env"},
            "timeout": step.timeout,
            "keep": step.name is not None,
        }
        result = await call(ToolCall(key=f"{SETUP_KEY_PREFIX}{number}", tool=shell_tool.name, arguments=arguments))
        output = _step_output(number, step, result, workflow)
        if step.name is not None:
            outputs[step.name] = output
    return outputs


def _step_output(number: int, step: Step, result: ToolResult, workflow: Workflow) -> str:
    """Return the output of a setup step. Raise RuntimeFailed if the step failed."""
    label = f"setup step {number} ({_first_line(step.shell)})"
    if result.is_error:
        raise RuntimeFailed(
            f"{label} failed:\n{result.text}",
            where=workflow.place,
            hint="Fix the problem, then start the workflow again.",
        )
    first = result.content[0] if len(result.content) == 2 else None  # 1 block if the user confirmed an interrupted call
    if step.name is None:
        return ""
    if not isinstance(first, Text):
        message = f"{label} was interrupted and its output is lost: ${{{{ {step.name} }}}} has no value"
        raise RuntimeFailed(message, where=workflow.place, hint="Start the workflow again.")
    return first.text


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Executes the calls of `shell` in the folder of the file, with the environment of the caller."""

    folder: Path
    env: Mapping[str, str]
    on_output: OnOutput

    async def __call__(self, tool: Tool, call: ToolCall) -> ToolResult:
        arguments = call.arguments or {}
        variables: Mapping[str, str] = arguments["variables"]
        for name, value in variables.items():
            if "\0" in value or len(value.encode("utf-8", "replace")) > _MAX_VARIABLE_BYTES:
                return ToolResult.error(
                    f"[not started: the value of ${name} is larger than {_MAX_VARIABLE_BYTES:,} bytes, or not text. "
                    "Let the earlier step write a file.]"
                )
        execution = CommandExecution(
            command=arguments["command"],
            cwd=self.folder,
            env={"PATH": _DEFAULT_PATH, **self.env, **variables},
            timeout_s=arguments["timeout"],
            max_output_bytes=_MAX_OUTPUT_BYTES if arguments["keep"] else None,
            on_output=lambda text: self.on_output(call.key, text),
        )
        return _build_result(await execution.run(), execution, keep=arguments["keep"])


def command_environment(workflow: Workflow, frame: Frame) -> dict[str, str]:
    """Return the environment of setup commands: basic variables of the user, and variables in `env:`."""
    listed = {name: frame.env[name] for name in workflow.definition.env if name in frame.env}
    variables = {**frame.user_env, **frame.harmless_env(), **listed}
    # Variables such as GIT_DIR would redirect git to another repository.
    return {name: value for name, value in variables.items() if not name.startswith("GIT_")}


def _build_result(code: int | None, execution: CommandExecution, *, keep: bool) -> ToolResult:
    if code == 0 and keep and execution.is_truncated:
        return ToolResult.error(f"[output larger than {_MAX_OUTPUT_BYTES:,} bytes: write a file and print its name]")
    if code == 0 and keep and b"\0" in execution.output:
        return ToolResult.error("[output is not text: write a file and print its name]")
    if code == 0:
        output = execution.output.decode("utf-8", "replace").rstrip("\n") if keep else ""
        return ToolResult(content=(Text(output), Text("[exit code 0]")))
    reason = f"[timed out after {execution.timeout_s:g} s]" if code == TIMED_OUT else f"[exit code {code}]"
    tail = execution.output_tail(_MAX_TAIL_CHARS)
    return ToolResult.error(f"{tail}\n{reason}" if tail else reason)


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 60 and line.isprintable() else f"{line[:60]!r}..."
