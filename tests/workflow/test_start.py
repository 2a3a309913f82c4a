"""The start of a workflow: params, variables, secrets, budget and paths are checked before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.config import Settings
from guildhall.core.errors import InvalidFile, Refused, UsageError
from guildhall.core.request_frame import Frame
from guildhall.workflow.definition import Wakeup, parse_wakeup
from guildhall.workflow.start_values import (
    after_setup,
    bind_params,
    check_paths,
    kickoff_message,
    start_values,
    team_budget,
    wakeup_message,
)
from guildhall.workflow.target import parse_params

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.placeholders import Values
    from tests.workflow.conftest import LoadWorkflow, Write

HEAD = "agents: {a: {system_prompt: x}}\n"


def resolve_values(workflow: Workflow, *, tag: str = "main", allowed: tuple[str, ...] = (), **environ: str) -> Values:
    frame = Frame.here(workflow.folder, environ, allowed=frozenset(allowed))
    return start_values(workflow, tag=tag, params={}, frame=frame, allowed=allowed)


def test_params_are_parsed_from_the_command_line():
    assert parse_params(["a=1", "b=", "c=x=y", "d= z "]) == {"a": "1", "b": "", "c": "x=y", "d": " z "}
    for pairs, message in (
        (["a"], "it has no value or no name"),
        (["=1"], "it has no value or no name"),
        (["a=1", "a=2"], "duplicate"),
        ([""], "no value"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_params(pairs)
    with pytest.raises(UsageError, match="not text"):
        parse_params(["a=\0"])


def test_params_get_their_values_and_defaults(load_workflow: LoadWorkflow):
    workflow = load_workflow(
        f"{HEAD}params: {{pr: {{description: its number}}, topic: all, note: {{required: false}}}}"
    )
    assert bind_params(workflow, {"pr": "1"}) == {"pr": "1", "topic": "all", "note": ""}
    assert bind_params(workflow, {"pr": "", "topic": "x"}) == {"pr": "", "topic": "x", "note": ""}
    with pytest.raises(UsageError, match="unknown param 'pri'") as caught:
        bind_params(workflow, {"pri": "1"})
    assert caught.value.hint == "Did you mean 'pr'?"
    with pytest.raises(UsageError, match="missing param") as caught:
        bind_params(workflow, {})
    assert caught.value.hint == "Add --param pr=VALUE (its number)."
    with pytest.raises(UsageError, match="unknown param"):
        bind_params(load_workflow(HEAD), {"x": "1"})


def test_a_variable_must_be_allowed_by_the_file_and_the_settings(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow(f"{HEAD}env: [TEAM]\nkickoff: '${{{{ env.TEAM }}}}'")
    with pytest.raises(Refused, match=r"env\[0\]: your settings do not allow the variable TEAM") as caught:
        resolve_values(workflow, TEAM="us")
    assert (caught.value.where, "config.yaml" in str(caught.value)) == (f"{project}/review.yaml:2", True)
    assert resolve_values(workflow, allowed=("TEAM",), TEAM="us").env == {"TEAM": "us"}
    with pytest.raises(InvalidFile, match=r"kickoff: .* TEAM is not set"):
        resolve_values(workflow, allowed=("TEAM",))


def test_a_variable_in_a_command_may_be_unset(load_workflow: LoadWorkflow):
    workflow = load_workflow(f"{HEAD}env: [TEAM]\nsetup: [{{shell: 'echo ${{{{ env.TEAM }}}}'}}]")
    assert resolve_values(workflow, allowed=("TEAM",)).env == {}


@pytest.mark.req("AW-4")
def test_a_secret_is_refused_before_the_workflow_starts_and_the_fix_is_shown(load_workflow: LoadWorkflow, write: Write):
    write("a.md", "Use ${{ env.API_KEY }}")
    for text in ("kickoff: '${{ env.API_KEY }}'", "context: {config: {dir: 'x/${{ env.API_KEY }}'}}"):
        workflow = load_workflow(f"{HEAD}env: [API_KEY]\n{text}")
        with pytest.raises(Refused, match="API_KEY looks like a secret") as caught:
            resolve_values(workflow, allowed=("API_KEY",), API_KEY="1234")
        assert "Use $API_KEY" in (caught.value.hint or "")
    workflow = load_workflow("agents: {a: {system_prompt: a.md}}\nenv: [API_KEY]")
    with pytest.raises(Refused) as caught:
        resolve_values(workflow, allowed=("API_KEY",), API_KEY="1234")
    assert caught.value.where == str(workflow.folder / "a.md")
    fine = load_workflow(f"{HEAD}env: [API_KEY]\nsetup: [{{shell: 'curl -H \"${{{{ env.API_KEY }}}}\"'}}]")
    assert resolve_values(fine, allowed=("API_KEY",), API_KEY="1234").env == {"API_KEY": "1234"}


def test_setup_output_with_a_secret_is_refused(load_workflow: LoadWorkflow):
    workflow = load_workflow(
        f"{HEAD}env: [API_KEY]\nsetup: [{{shell: 'echo $API_KEY', as: out}}]\nkickoff: '@a ${{{{ out }}}}'"
    )
    values = resolve_values(workflow, allowed=("API_KEY",), API_KEY="a-long-secret")
    with pytest.raises(Refused, match="seems to contain a secret"):
        after_setup(workflow, values, {"out": "it is a-long-secret"})
    done = after_setup(workflow, values, {"out": "fine"})
    assert kickoff_message(workflow, done).text == "@a fine"


def test_a_tag_must_be_a_name(load_workflow: LoadWorkflow):
    with pytest.raises(UsageError, match="invalid tag"):
        resolve_values(load_workflow(HEAD), tag="../x")


def test_the_smaller_budget_applies_unless_the_command_sets_one(load_workflow: LoadWorkflow):
    workflow = load_workflow(f"{HEAD}budget: 8")
    assert team_budget(workflow, Settings()) == 5.0
    assert team_budget(workflow, Settings(budget=None)) == 8
    assert team_budget(workflow, Settings(), 20.0) == 20.0
    assert team_budget(load_workflow(f"{HEAD}budget: none"), Settings()) == 5.0
    assert team_budget(load_workflow(HEAD), Settings(budget=None)) is None


@pytest.mark.parametrize("folder", ["workers/x", ".git", "{home}/x", "{home}", "loop", "."])
def test_documents_are_not_allowed_among_files_that_define_permissions(
    load_workflow: LoadWorkflow, project: Path, home: Home, frame: Frame, folder: str
):
    (project / "workers").mkdir()
    (project / "loop").symlink_to("workers")
    where = folder.replace("{home}", str(home.path))
    workflow = load_workflow(f"{HEAD}context: {{config: {{dir: '{where}'}}}}")
    values = resolve_values(workflow)
    if folder == ".":
        check_paths(workflow, values, home, frame)
        return
    with pytest.raises(InvalidFile, match="agents must not write"):
        check_paths(workflow, values, home, frame)


def test_wakeups_are_parsed_and_have_a_message(load_workflow: LoadWorkflow):
    from datetime import UTC, datetime

    workflow = load_workflow("agents: {a: {system_prompt: x, wakeup: 90, wakeup_prompt: 'in ${{ workflow.tag }}'}}")
    agent, values = workflow.agents[0], resolve_values(workflow, tag="t")
    assert wakeup_message(agent, values).text == "in t"
    assert wakeup_message(replace(agent, wakeup_prompt=None), values).text.startswith("Scheduled wake-up")
    now = datetime(2026, 1, 2, 8, 30, tzinfo=UTC)
    assert Wakeup(every=90).after(now) == datetime(2026, 1, 2, 8, 31, 30, tzinfo=UTC)
    assert parse_wakeup("0 9 * * 1-5").after(now) == datetime(2026, 1, 2, 9, 0, tzinfo=UTC)
    assert parse_wakeup("0 9 * * 1-5").after(now.replace(hour=10)) == datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    assert [str(parse_wakeup(text)) for text in ("30s", "5m", "1.5h", "2d", "* * * * *")] == [
        *("every 30s", "every 5m", "every 90m", "every 2d"),
        "cron * * * * *",
    ]
