"""Setup: the commands of a workflow file, one after another, before the agents begin.

Each is a tool call of the run, through the gate: on record before and after. One that has ended is not made again when
the run goes on after a crash; one that was caught in between is asked about. The commands are the person's own and run
unconfined, which is why the file has to be trusted first (`trust.py`).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeFailed
from guildhall.room.model import MAX_TEXT
from guildhall.tools.define import tool
from guildhall.tools.model import Text, ToolCall, ToolResult
from guildhall.workflow.commands import TOO_LONG, Program
from guildhall.workflow.interpolate import command, references

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.tools.model import Tool
    from guildhall.workflow.definition import Step
    from guildhall.workflow.interpolate import Values
    from guildhall.workflow.model import Workflow

    Call = Callable[[ToolCall], Awaitable[ToolResult]]
    Told = Callable[[str, str], None]  # the key of a call, and a piece of what its command has written

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
    """Makes the calls; what was kept of their outputs, by name. RuntimeFailed where one fails."""
    outputs: dict[str, str] = {}
    for number, step in enumerate(workflow.definition.setup, 1):
        result = await call(call_of(number, step, values, outputs))
        kept = _kept(number, step, result, workflow)
        if step.name is not None:
            outputs[step.name] = kept
    return outputs


def call_of(number: int, step: Step, values: Values, outputs: Mapping[str, str]) -> ToolCall:
    """The call of a step. Values are variables of the command; those of the environment it has already."""
    filled = replace(values, outputs=outputs)
    named = [one for one in references(step.shell) if one.kind != "env"]
    arguments = {
        "command": command(step.shell),
        "variables": {one.variable: filled.of(one) for one in named},
        "timeout": step.timeout,
        "keep": step.name is not None,
    }
    return ToolCall(key=f"setup/{number}", tool=shell_tool.name, arguments=arguments)


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
            arguments["command"],
            cwd=self.folder,
            env={**self.env, **variables},
            seconds=arguments["timeout"],
            most=_MOST_KEPT if arguments["keep"] else None,
            told=lambda text: self.told(call.key, text),
        )
        return _result(await program.run(), program, arguments["timeout"], keep=arguments["keep"])


def environment(workflow: Workflow, frame: Frame) -> dict[str, str]:
    """What a command of the setup may see: where programs and the person's things are, and what the file names."""
    named = frame.plain() | {name: frame.env[name] for name in workflow.definition.env if name in frame.env}
    # GIT_DIR and its like would send every git of the setup to another repository.
    return {name: value for name, value in {**frame.own, **named}.items() if not name.startswith("GIT_")}


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
