"""Setup: commands in order, their output kept, nothing spliced in, nothing left behind, on record."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import RuntimeFailed
from guildhall.core.request_frame import Frame
from guildhall.workflow.model import Values
from guildhall.workflow.setup import Commands, command_environment, run_steps, shell_tool
from guildhall.workflow.start import kickoff_message

if TYPE_CHECKING:
    from guildhall.tools.model import ToolCall, ToolResult
    from guildhall.workflow.model import Workflow
    from tests.workflow.conftest import Loaded

HEAD = "agents: {a: {system_prompt: x}}\n"


class CommandResult:
    """A setup that was run, and what was seen of it."""

    def __init__(self, workflow: Workflow, values: Values, frame: Frame) -> None:
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []
        self.heard: list[str] = []
        self._workflow = workflow
        self._values = values
        env = command_environment(workflow, frame)
        self._commands = Commands(
            folder=workflow.folder, env=env, on_output=lambda key, text: self.heard.append(f"{key}:{text}")
        )

    async def _call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        self.results.append(await self._commands(shell_tool, call))
        return self.results[-1]

    async def steps(self) -> dict[str, str]:
        return await run_steps(self._workflow, self._values, self._call)

    def outputs(self) -> dict[str, str]:
        return asyncio.run(self.steps())


def ran(workflow: Workflow, *, params: dict[str, str] | None = None, **environ: str) -> CommandResult:
    frame = Frame.here(workflow.folder, {"PATH": os.environ["PATH"], **environ}, allowed=frozenset(environ))
    env = {name: frame.env[name] for name in workflow.definition.env if name in frame.env}
    return CommandResult(workflow, Values(workflow=workflow.name, tag="main", params=params or {}, env=env), frame)


def gone(pid: int) -> bool:
    """Whether a process is no more, or only waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 5
    while not gone(pid):
        assert time.monotonic() < end, f"{pid} is still there"
        time.sleep(0.01)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.01)


@pytest.mark.req("AW-3")
def test_commands_run_in_order_and_what_they_print_is_kept(loaded: Loaded, project: Path):
    workflow = loaded(
        f"""{HEAD}
setup:
  - {{shell: "echo one > log; printf 'a\\n\\nb\\n\\n'; echo aside >&2", as: first}}
  - shell: echo two >> log
  - {{shell: 'cat log; printf %s "${{{{ first }}}}" | wc -l', as: second}}
kickoff: "@a ${{{{ second }}}}"
"""
    )
    setup = ran(workflow)
    assert setup.outputs() == {"first": "a\n\nb", "second": "one\ntwo\n2"}
    assert [call.key for call in setup.calls] == ["setup/1", "setup/2", "setup/3"]
    assert "setup/1:aside\n" in setup.heard
    said = kickoff_message(workflow, Values(workflow="review", tag="main", outputs={"first": "", "second": "@b"}))
    assert [(piece.text, piece.is_quoted) for piece in said.parts] == [("@a ", False), ("@b", True)]


@pytest.mark.req("AW-3")
def test_a_failing_one_stops_it_with_its_output_shown(loaded: Loaded, project: Path):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'echo said; echo why >&2; exit 7'}}, {{shell: touch never}}]")
    setup = ran(workflow)
    with pytest.raises(RuntimeFailed) as caught:
        setup.outputs()
    assert "setup step 1 (echo said; echo why >&2; exit 7) failed" in caught.value.message
    assert "said" in caught.value.message
    assert "why" in caught.value.message
    assert "[exit code 7]" in caught.value.message
    assert not (project / "never").exists()


def test_a_script_of_several_lines_stops_at_the_first_that_fails(loaded: Loaded, project: Path):
    workflow = loaded(f"{HEAD}setup:\n  - shell: |\n      false\n      touch never\n")
    with pytest.raises(RuntimeFailed, match="exit code 1"):
        ran(workflow).outputs()
    assert not (project / "never").exists()


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned #",
    '"; touch pwned; "',
    "'; touch pwned; '",
    "${{ params.x }}",
]


@pytest.mark.req("AW-4")
@pytest.mark.parametrize("value", [*HOSTILE, "a\nb", "-n", "*"])
def test_a_value_is_never_read_by_the_shell(loaded: Loaded, project: Path, value: str):
    workflow = loaded(
        f"""{HEAD}
params: [x]
setup:
  - {{shell: 'printf %s "${{{{ params.x }}}}"', as: told}}
  - {{shell: 'printf %s "${{{{ told }}}}"; : ${{{{ told }}}}', as: again}}
"""
    )
    assert ran(workflow, params={"x": value}).outputs() == {"told": value, "again": value}
    assert not (project / "pwned").exists()


def test_what_a_command_sees(loaded: Loaded, project: Path):
    workflow = loaded(
        f"{HEAD}env: [TEAM, GIT_DIR]\nsetup: [{{shell: 'env; pwd', as: seen}}, {{shell: cat, as: input}}]"
    )
    outputs = ran(
        workflow, TEAM="us", GIT_DIR="/elsewhere", SECRET_TOKEN="s", HOME="/home-of-mine", PYTHONPATH="/x"
    ).outputs()
    seen = dict(line.partition("=")[::2] for line in outputs["seen"].splitlines())
    assert (seen["TEAM"], seen["HOME"]) == ("us", "/home-of-mine")
    assert {"GIT_DIR", "SECRET_TOKEN", "PYTHONPATH"}.isdisjoint(seen)
    assert str(project) in seen
    assert outputs["input"] == ""


def test_what_a_command_leaves_running_is_ended(loaded: Loaded, project: Path):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'sleep 60 & echo $!', as: pid}}]")
    wait_until_gone(int(ran(workflow).outputs()["pid"]))


def test_a_command_that_takes_too_long_is_ended(loaded: Loaded, project: Path):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'echo $$ > pid; echo here; sleep 60', timeout: 0.2s}}]")
    with pytest.raises(RuntimeFailed, match=r"here\n\[timed out after 0.2 s"):
        ran(workflow).outputs()
    wait_until_gone(int((project / "pid").read_text()))


def test_it_is_ended_with_the_run(loaded: Loaded, project: Path):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'sleep 60 & echo $! > pid.new; mv pid.new pid; wait'}}]")

    async def cut_off() -> None:
        task = asyncio.create_task(ran(workflow).steps())
        await asyncio.to_thread(wait_for, project / "pid")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut_off())
    wait_until_gone(int((project / "pid").read_text()))


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("head -c 2000000 /dev/zero | tr '\\\\0' x", "larger than 900,000 bytes"),
        ("printf 'a\\\\0b'", "not text"),
        ("no-such-program-at-all", "exit code 127"),
        ("kill -9 $$", "exit code 137"),
        ("exec 1>&-; exit 3", "exit code 3"),
    ],
)
def test_what_cannot_be_kept_is_told(loaded: Loaded, shell: str, said: str):
    workflow = loaded(f'{HEAD}setup: [{{shell: "{shell}", as: x}}]')
    with pytest.raises(RuntimeFailed, match=said):
        ran(workflow).outputs()


def test_a_value_that_is_too_large_for_a_variable_is_told(loaded: Loaded):
    workflow = loaded(
        f"{HEAD}setup: [{{shell: 'head -c 200000 /dev/zero | tr \"\\\\0\" x', as: x}}, {{shell: 'echo ${{{{ x }}}}'}}]"
    )
    with pytest.raises(RuntimeFailed, match="larger than 120,000 bytes"):
        ran(workflow).outputs()


def test_bytes_that_are_no_text_become_marks(loaded: Loaded):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'printf \"\\\\377ok\"', as: x}}]")
    assert ran(workflow).outputs() == {"x": "\ufffdok"}


def test_much_that_is_only_shown_is_no_trouble(loaded: Loaded):
    workflow = loaded(f"{HEAD}setup: [{{shell: 'head -c 3000000 /dev/zero'}}]")
    setup = ran(workflow)
    assert setup.outputs() == {}
    assert sum(map(len, setup.heard)) > 3_000_000
