"""Activation functions of packages: context, results, errors and confinement."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable
from guildhall.runs.assembly.activation import (
    DEFAULT,
    Activation,
    activation_context,
    call_activation,
    parse_activation,
)
from guildhall.runs.model import Bounds, RunRequest
from guildhall.runs.purpose import CommissionPurpose, Contract, JobPurpose
from guildhall.workers.code_trust import Code, CodeFile
from tests.workers.conftest import make_worker

CONTEXT = {"tools": [{"name": "weigh"}]}


def call_function(text: str, *, timeout_s: float = 10.0) -> Activation:
    """Call an activation function with this body and return its result."""
    source = CodeFile(
        path=Path("/box/begin.py"), display_path="begin.py", content=f"def go(context):\n    {text}\n".encode()
    )
    code = Code(kind="activation", name="box", root=Path("/box"), files=(source,), is_own=True, entry="begin:go")
    worker = make_worker("box")
    return asyncio.run(call_activation(worker, code, CONTEXT, timeout_s=timeout_s))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (5, "returned 5"),
        (["weigh"], "returned a list"),
        ({"": []}, "an unknown field ''"),
        ({"tools": [""]}, "the tool '', which the worker does not have"),
        ({"tool": []}, "an unknown field 'tool'"),
        ({"tools": ["weigh", "Bash"]}, "the tool 'Bash', which the worker does not have"),
        ({"tools": "weigh"}, "invalid tools (expected a list of names)"),
        ({"tools": [["weigh"]]}, "invalid tools (expected a list of names)"),
        ({"system_prompt": " "}, "an invalid system_prompt"),
        ({"system_prompt": "x\0"}, "an invalid system_prompt"),
        ({"system_prompt": "x" * 400_001}, "an invalid system_prompt"),
        ({"system_prompt": ["x"]}, "an invalid system_prompt"),
        ({"limits": 5}, "invalid limits (expected a mapping)"),
        ({"limits": {"turns": 5}}, "an unknown limit 'turns'"),
        ({"limits": {"budget": 5}}, "an unknown limit 'budget'"),
        ({"limits": {"max_turns": 2.5}}, "an invalid limit max_turns = 2.5"),
        ({"limits": {"max_turns": True}}, "an invalid limit max_turns = true"),
        ({"limits": {"timeout": -1}}, "an invalid limit timeout = -1"),
        ({"limits": {"max_budget_usd": "5"}}, "an invalid limit max_budget_usd = '5'"),
    ],
)
def test_an_invalid_result_is_rejected(result: Any, message: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_activation(result, "begin:go", "box/pyproject.toml", ["weigh"])
    assert f"activate: begin:go {'' if message.startswith('returned') else 'returned '}{message}" in str(caught.value)
    assert caught.value.where == "box/pyproject.toml"


def test_missing_fields_keep_the_defaults() -> None:
    assert parse_activation(None, "begin:go", "box", []) == parse_activation({}, "begin:go", "box", []) == DEFAULT
    some = parse_activation({"tools": ["weigh", "weigh"], "limits": {"max_turns": 5}}, "begin:go", "box", ["weigh"])
    assert some == Activation.from_dict(asdict(some))
    assert some.tools == ("weigh",)
    assert some.tighten(Bounds(max_turns=3, timeout=9)) == Bounds(max_turns=3, timeout=9)
    assert some.tighten(Bounds(max_turns=None, budget=2)) == Bounds(max_turns=5, budget=2)


def test_the_context_names_project_input_and_purpose() -> None:
    plain = RunRequest(worker="writer", input="Write")
    assert activation_context(plain, None) == {"project": None, "context": "run", "input": "Write"}
    job = JobPurpose(id="j-1", description="A letter", has_memory=True, contract=Contract(artifacts=("a.md",)))
    facts = {"id": "j-1", "description": "A letter", "has_memory": True, "artifacts": ("a.md",), "schema": None}
    assert activation_context(RunRequest(worker="writer", input="Write", purpose=job), "letters") == {
        "project": "letters",
        "context": "job",
        "input": "Write",
        "job": facts,
    }
    review = CommissionPurpose(id="c-1", attempt=1, title="A letter", contract=None)
    context = activation_context(RunRequest(worker="writer", input="Read", purpose=review), None)
    assert context["commission"] == {"id": "c-1", "attempt": 1, "title": "A letter", "review": True}


def test_the_function_receives_the_context() -> None:
    assert call_function("return {'tools': [tool['name'] for tool in context['tools']]}").tools == ("weigh",)


@pytest.mark.req("WKR-4a")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no')", "cannot call begin:go: ValueError: no"),
        ("raise SystemExit(0)", "SystemExit"),
        ("return object()", "is not JSON serializable"),
        ("return {'limits': {'timeout': float('nan')}}", "ValueError"),
        ("import os; os._exit(0)", "exited before it was ready"),
        ("return 'x' * 3_000_000", "at most 2,000,000 are allowed"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    ],
)
def test_an_error_of_the_function_is_reported(body: str, message: str) -> None:
    with pytest.raises(ToolUnavailable, match="activate: ") as caught:
        call_function(body)
    assert message in str(caught.value)


def test_a_function_that_does_not_return_is_stopped_at_the_timeout() -> None:
    with pytest.raises(ToolUnavailable, match="timed out after 2 s"):
        call_function("while True: pass", timeout_s=2)


def test_a_function_reaches_neither_files_nor_network(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("42")
    with pytest.raises(GuildError, match=r"No such file|Permission denied"):
        call_function(f"open({str(secret)!r}).read()")
    with pytest.raises(GuildError, match=r"cannot call begin:go: (OSError|PermissionError|ConnectionRefusedError)"):
        call_function("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
