"""Activation: what a package's function says is taken only as far as it makes sense, and it can do nothing else."""

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
from guildhall.workers.code import Code, CodeFile
from guildhall.workers.loader import worker_from_fields

TOLD = {"tools": [{"name": "weigh"}]}


def said(text: str, *, seconds: float = 10.0) -> Activation:
    """What a function with this body says."""
    source = CodeFile(
        path=Path("/box/begin.py"), display_path="begin.py", content=f"def go(context):\n    {text}\n".encode()
    )
    code = Code(kind="activation", name="box", root=Path("/box"), files=(source,), is_own=True, entry="begin:go")
    worker = worker_from_fields({"name": "box", "instructions": "x"})
    return asyncio.run(call_activation(worker, code, TOLD, timeout_s=seconds))


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (5, "returned 5"),
        (["weigh"], "returned a list"),
        ({"": []}, "an unknown field ''"),
        ({"tools": [""]}, "the tool '', which the worker does not have"),
        ({"tool": []}, "an unknown field 'tool'"),
        ({"tools": ["weigh", "Bash"]}, "the tool 'Bash', which the worker does not have"),
        ({"tools": "weigh"}, "invalid tools (not a list of names)"),
        ({"tools": [["weigh"]]}, "invalid tools (not a list of names)"),
        ({"system_prompt": " "}, "an invalid system_prompt"),
        ({"system_prompt": "x\0"}, "an invalid system_prompt"),
        ({"system_prompt": "x" * 400_001}, "an invalid system_prompt"),
        ({"system_prompt": ["x"]}, "an invalid system_prompt"),
        ({"limits": 5}, "invalid limits (not a mapping)"),
        ({"limits": {"turns": 5}}, "an unknown limit 'turns'"),
        ({"limits": {"budget": 5}}, "an unknown limit 'budget'"),
        ({"limits": {"max_turns": 2.5}}, "max_turns = 2.5"),
        ({"limits": {"max_turns": True}}, "max_turns = true"),
        ({"limits": {"timeout": -1}}, "timeout = -1"),
        ({"limits": {"max_budget_usd": "5"}}, "max_budget_usd = '5'"),
    ],
)
def test_what_makes_no_sense_is_refused(nonsense: Any, message: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_activation(nonsense, "begin:go", "box/pyproject.toml", ["weigh"])
    assert f"activate: begin:go {'' if message.startswith('returned') else 'returned '}{message}" in str(caught.value)
    assert caught.value.where == "box/pyproject.toml"


def test_what_it_does_not_say_is_as_without_it() -> None:
    assert parse_activation(None, "begin:go", "box", []) == parse_activation({}, "begin:go", "box", []) == DEFAULT
    some = parse_activation({"tools": ["weigh", "weigh"], "limits": {"max_turns": 5}}, "begin:go", "box", ["weigh"])
    assert some == Activation.from_dict(asdict(some))
    assert some.tools == ("weigh",)
    assert some.tighten(Bounds(max_turns=3, timeout=9)) == Bounds(max_turns=3, timeout=9)
    assert some.tighten(Bounds(max_turns=None, budget=2)) == Bounds(max_turns=5, budget=2)


def test_what_a_run_is_for() -> None:
    plain = RunRequest(worker="writer", input="Write")
    assert activation_context(plain, None) == {"project": None, "context": "run", "input": "Write"}
    job = JobPurpose(id="j-1", description="A letter", remembers=True, contract=Contract(artifacts=("a.md",)))
    facts = {"id": "j-1", "description": "A letter", "remembers": True, "artifacts": ("a.md",), "schema": None}
    assert activation_context(RunRequest(worker="writer", input="Write", purpose=job), "letters") == {
        "project": "letters",
        "context": "job",
        "input": "Write",
        "job": facts,
    }
    review = CommissionPurpose(id="c-1", attempt=1, title="A letter", contract=None)
    context = activation_context(RunRequest(worker="writer", input="Read", purpose=review), None)
    assert context["commission"] == {"id": "c-1", "attempt": 1, "title": "A letter", "review": True}


def test_a_function_is_called_with_what_it_is_told() -> None:
    assert said("return {'tools': [tool['name'] for tool in context['tools']]}").tools == ("weigh",)


@pytest.mark.req("WKR-4a")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no')", "begin:go failed: ValueError: no"),
        ("raise SystemExit(0)", "SystemExit"),
        ("return object()", "is not JSON serializable"),
        ("return {'limits': {'timeout': float('nan')}}", "ValueError"),
        ("import os; os._exit(0)", "ended before it was ready"),
        ("return 'x' * 3_000_000", "returned too much"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    ],
)
def test_a_function_that_fails_says_so(body: str, message: str) -> None:
    with pytest.raises(ToolUnavailable, match="activate: ") as caught:
        said(body)
    assert message in str(caught.value)


def test_a_function_that_never_ends_is_ended() -> None:
    with pytest.raises(ToolUnavailable, match="timed out after 2 s"):
        said("while True: pass", seconds=2)


def test_a_function_reaches_neither_files_nor_network(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("42")
    with pytest.raises(GuildError, match=r"No such file|Permission denied"):
        said(f"open({str(secret)!r}).read()")
    with pytest.raises(GuildError, match=r"failed: (OSError|PermissionError|ConnectionRefusedError)"):
        said("import socket; socket.create_connection(('127.0.0.1', 9), 1)")
