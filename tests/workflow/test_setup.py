"""Setup commands: run in order, output stored, values passed as variables, processes ended."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import RuntimeFailed
from guildhall.core.request_frame import Frame
from guildhall.workflow.placeholders import Values
from guildhall.workflow.setup_commands import Commands, command_environment, run_steps, shell_tool
from guildhall.workflow.start_values import kickoff_message

if TYPE_CHECKING:
    from guildhall.tools.model import ToolCall, ToolResult
    from guildhall.workflow.model import Workflow
    from tests.workflow.conftest import LoadWorkflow

HEAD = "agents: {a: {system_prompt: x}}\n"


class SetupRun:
    """A setup with its calls, results and printed output."""

    def __init__(self, workflow: Workflow, values: Values, frame: Frame) -> None:
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []
        self.printed: list[str] = []
        self._workflow = workflow
        self._values = values
        env = command_environment(workflow, frame)
        self._commands = Commands(
            folder=workflow.folder, env=env, on_output=lambda key, text: self.printed.append(f"{key}:{text}")
        )

    async def _call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        self.results.append(await self._commands(shell_tool, call))
        return self.results[-1]

    async def run_async(self) -> dict[str, str]:
        return await run_steps(self._workflow, self._values, self._call)

    def run(self) -> dict[str, str]:
        return asyncio.run(self.run_async())


def setup_of(workflow: Workflow, *, params: dict[str, str] | None = None, **environ: str) -> SetupRun:
    frame = Frame.here(workflow.folder, {"PATH": os.environ["PATH"], **environ}, allowed=frozenset(environ))
    env = {name: frame.env[name] for name in workflow.definition.env if name in frame.env}
    return SetupRun(workflow, Values(workflow=workflow.name, tag="main", params=params or {}, env=env), frame)


def is_gone(pid: int) -> bool:
    """Return True if a process has ended, even if its parent has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 5
    while not is_gone(pid):
        assert time.monotonic() < end, f"{pid} has not ended within 5 s"
        time.sleep(0.01)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not exist after 5 s"
        time.sleep(0.01)


@pytest.mark.req("AW-3")
def test_commands_run_in_order_and_their_output_is_stored(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(
        f"""{HEAD}
setup:
  - {{shell: "echo one > log; printf 'a\\n\\nb\\n\\n'; echo aside >&2", as: first}}
  - shell: echo two >> log
  - {{shell: 'cat log; printf %s "${{{{ first }}}}" | wc -l', as: second}}
kickoff: "@a ${{{{ second }}}}"
"""
    )
    setup = setup_of(workflow)
    assert setup.run() == {"first": "a\n\nb", "second": "one\ntwo\n2"}
    assert [call.key for call in setup.calls] == ["setup/1", "setup/2", "setup/3"]
    assert "setup/1:aside\n" in setup.printed
    kickoff = kickoff_message(workflow, Values(workflow="review", tag="main", outputs={"first": "", "second": "@b"}))
    assert [(piece.text, piece.is_quoted) for piece in kickoff.parts] == [("@a ", False), ("@b", True)]


@pytest.mark.req("AW-3")
def test_a_failed_command_stops_the_setup_and_its_output_is_shown(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'echo said; echo why >&2; exit 7'}}, {{shell: touch never}}]")
    setup = setup_of(workflow)
    with pytest.raises(RuntimeFailed) as caught:
        setup.run()
    assert "setup step 1 (echo said; echo why >&2; exit 7) failed" in caught.value.message
    assert "said" in caught.value.message
    assert "why" in caught.value.message
    assert "[exit code 7]" in caught.value.message
    assert not (project / "never").exists()


def test_the_error_of_a_failed_command_names_the_whole_command(load_workflow: LoadWorkflow):
    with pytest.raises(RuntimeFailed, match=r"setup step 1 \(false\) failed"):
        setup_of(load_workflow(f"{HEAD}setup: [{{shell: 'false'}}]")).run()


def test_a_script_of_several_lines_stops_at_the_first_failed_line(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}setup:\n  - shell: |\n      false\n      touch never\n")
    with pytest.raises(RuntimeFailed, match="exit code 1"):
        setup_of(workflow).run()
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
def test_a_value_is_never_parsed_by_the_shell(load_workflow: LoadWorkflow, project: Path, value: str):
    workflow = load_workflow(
        f"""{HEAD}
params: [x]
setup:
  - {{shell: 'printf %s "${{{{ params.x }}}}"', as: first}}
  - {{shell: 'printf %s "${{{{ first }}}}"; : ${{{{ first }}}}', as: again}}
"""
    )
    assert setup_of(workflow, params={"x": value}).run() == {"first": value, "again": value}
    assert not (project / "pwned").exists()


def test_a_command_has_only_the_declared_environment_and_no_input(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(
        f"{HEAD}env: [TEAM, GIT_DIR]\nsetup: [{{shell: 'env; pwd', as: seen}}, {{shell: cat, as: input}}]"
    )
    outputs = setup_of(
        workflow, TEAM="us", GIT_DIR="/elsewhere", SECRET_TOKEN="s", HOME="/home-of-mine", PYTHONPATH="/x"
    ).run()
    seen = dict(line.partition("=")[::2] for line in outputs["seen"].splitlines())
    assert (seen["TEAM"], seen["HOME"]) == ("us", "/home-of-mine")
    assert {"GIT_DIR", "SECRET_TOKEN", "PYTHONPATH"}.isdisjoint(seen)
    assert str(project) in seen
    assert outputs["input"] == ""


def test_a_background_process_of_a_command_is_ended(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'sleep 60 & echo $!', as: pid}}]")
    wait_until_gone(int(setup_of(workflow).run()["pid"]))


def test_a_command_is_ended_at_its_timeout(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'echo $$ > pid; echo here; sleep 60', timeout: 0.2s}}]")
    with pytest.raises(RuntimeFailed, match=r"here\n\[timed out after 0.2 s"):
        setup_of(workflow).run()
    wait_until_gone(int((project / "pid").read_text()))


def test_a_command_is_ended_if_the_run_is_cancelled(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'sleep 60 & echo $! > pid.new; mv pid.new pid; wait'}}]")

    async def cancel_setup() -> None:
        task = asyncio.create_task(setup_of(workflow).run_async())
        await asyncio.to_thread(wait_for, project / "pid")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_setup())
    wait_until_gone(int((project / "pid").read_text()))


@pytest.mark.parametrize(
    ("shell", "message"),
    [
        ("head -c 2000000 /dev/zero | tr '\\\\0' x", "larger than 900,000 bytes"),
        ("printf 'a\\\\0b'", "not text"),
        ("no-such-program-at-all", "exit code 127"),
        ("kill -9 $$", "exit code 137"),
        ("exec 1>&-; exit 3", "exit code 3"),
    ],
)
def test_output_that_cannot_be_stored_fails_the_setup(load_workflow: LoadWorkflow, shell: str, message: str):
    workflow = load_workflow(f'{HEAD}setup: [{{shell: "{shell}", as: x}}]')
    with pytest.raises(RuntimeFailed, match=message):
        setup_of(workflow).run()


def test_a_value_that_is_too_large_for_a_variable_fails_the_setup(load_workflow: LoadWorkflow):
    workflow = load_workflow(
        f"{HEAD}setup: [{{shell: 'head -c 200000 /dev/zero | tr \"\\\\0\" x', as: x}}, {{shell: 'echo ${{{{ x }}}}'}}]"
    )
    with pytest.raises(RuntimeFailed, match="larger than 120,000 bytes"):
        setup_of(workflow).run()


def test_bytes_that_are_not_text_become_replacement_characters(load_workflow: LoadWorkflow):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'printf \"\\\\377ok\"', as: x}}]")
    assert setup_of(workflow).run() == {"x": "\ufffdok"}


def test_large_output_that_is_not_stored_is_accepted(load_workflow: LoadWorkflow):
    workflow = load_workflow(f"{HEAD}setup: [{{shell: 'head -c 3000000 /dev/zero'}}]")
    setup = setup_of(workflow)
    assert setup.run() == {}
    assert sum(map(len, setup.printed)) > 3_000_000
