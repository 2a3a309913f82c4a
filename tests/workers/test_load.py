"""Worker files: what loads, and what is said about what does not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile
from guildhall.workers.definition import Definition
from guildhall.workers.loader import load, load_definition, read_definition

if TYPE_CHECKING:
    from tests.workers.conftest import Write

FULL = """\
name: evaluator
description: Judge one pitch deck
instructions: |
  Judge it.
model: anthropic/claude-sonnet-4-5
runtime: claude
tools: [Read, Grep, Glob]
toolboxes: [mail]
members: [researcher]
mcp_servers:
  docs: {command: [uvx, docs-mcp], env: [DOCS_TOKEN], tools: [search]}
  wiki: {url: "https://wiki.example/mcp"}
sandboxes:
  input:
    path: ./input
    mode: ro
    allowed_suffixes: [.PDF, md]
    text_suffixes: [.md]
    attachment_suffixes: [.pdf]
    max_bytes: 1000
attachment_policy: {max_attachments: 1, max_total_bytes: 10, allowed_suffixes: [.pdf], denied_suffixes: [.exe]}
allow_workers: [summarizer, home/critic]
tool_rules:
  fs.write: {allowed: true, approval_required: true, timeout: 2h}
  mail_send: {allowed: false, description: never}
output_schema_ref: schemas/report.json
limits: {max_turns: 20, max_budget_usd: 2, timeout: 30m}
checkout: full
status: draft
locked: true
base: false
accepts_risk: true
"""


@pytest.mark.req("DO-1")
def test_every_field_of_a_worker_file(write: Write):
    worker = load(write("workers/evaluator.yaml", FULL))
    definition = worker.definition
    assert worker.instructions == "Judge it.\n"
    assert (worker.name, worker.status, worker.description) == ("evaluator", "draft", "Judge one pitch deck")
    assert (definition.model, definition.runtime) == ("anthropic/claude-sonnet-4-5", "claude")
    assert definition.mcp_servers["docs"].command == ("uvx", "docs-mcp")
    assert definition.sandboxes["input"].allowed_suffixes == (".pdf", ".md")
    assert definition.allow_workers == ("summarizer", "home/critic")
    assert definition.tool_rules["fs.write"].timeout == 7200
    assert definition.limits.timeout == 1800
    assert definition.limits.max_budget_usd == 2.0
    assert (definition.checkout, definition.locked, definition.base, definition.accepts_risk) == (
        "full",
        True,
        False,
        True,
    )


@pytest.mark.req("DO-1")
def test_yaml_and_json_are_the_same_worker(write: Write, project: Path):
    from_yaml = load(write("workers/evaluator.yaml", FULL))
    data = yaml.read(project / "workers/evaluator.yaml").data
    from_json = load(write("json/evaluator.json", json.dumps(data)))
    assert from_yaml.definition == from_json.definition
    assert from_yaml.instructions == from_json.instructions


def test_little_is_needed(write: Write):
    definition = load(write("workers/short.yaml", "instructions: Be short.")).definition
    assert definition == Definition(name="short", instructions="Be short.")
    assert (definition.status, definition.runtime, definition.limits.max_turns) == ("active", "pydantic", 150)
    assert (definition.model, definition.tools, definition.base, definition.accepts_risk) == (None, (), "auto", False)


# As the earlier system of seed 003 wrote them: sorted, whole, names inside, nulls and empty parts.
EARLIER = [
    """\
    allow_workers: []
    attachment_policy:
      allowed_suffixes: []
      denied_suffixes: []
      max_attachments: 4
      max_total_bytes: 10000000
    description: null
    instructions: Summarise.
    locked: false
    model: null
    name: old
    output_schema_ref: null
    sandboxes: {}
    tool_rules: {}
    """,
    """\
    name: old
    description: Evaluate documents using a predefined rubric
    instructions: Evaluate.
    model: gpt-4
    output_schema_ref: EvaluationResult
    sandboxes:
      input:
        name: input
        path: ./documents
        mode: ro
      output: {path: ./evaluations, mode: rw, text_suffixes: [.md], attachment_suffixes: [.pdf]}
    allow_workers: ["*"]
    tool_rules:
      sandbox.write:
        name: sandbox.write
        approval_required: true
        description: Writing requires explicit approval.
      worker.call: {allowed: true, approval_required: false}
      worker.create: {allowed: true, approval_required: true}
    locked: true
    """,
    """\
    name: old
    instructions: Go.
    tool_rules:
      - name: sandbox.write
        allowed: true
        approval_required: true
      - {name: worker.create, allowed: false}
    """,
]


@pytest.mark.req("DO-1")
@pytest.mark.req("DO-13")
@pytest.mark.parametrize("text", EARLIER)
def test_files_of_the_earlier_system_load_unchanged(write: Write, text: str):
    worker = load(write("workers/old.yaml", text))
    names = {rule.name for rule in worker.rules}
    assert names <= {"fs.write", "worker.call", "worker.create"}
    assert not any(rule.name == "sandbox.write" for rule in worker.rules)


WRONG: list[tuple[str, int, str, str | None]] = [
    ("instructons: x", 1, "instructons: unknown field", "Did you mean 'instructions'?"),
    ("name: w\ntools:\n- Raed", 3, "tools[0]: unknown built-in tool 'Raed'", "Did you mean 'Read'?"),
    ("tools: [read]", 1, "tools[0]: unknown built-in tool 'read'", "Did you mean 'Read'?"),
    (
        "tool_rules:\n  fs.wirte: {}",
        2,
        "tool_rules.fs.wirte: unknown capability or tool",
        "Did you mean 'fs.write'?",
    ),
    (
        "tool_rules:\n- name: fs.read\n- name: sandbox.wrte",
        3,
        "tool_rules.sandbox.wrte: unknown capability or tool",
        "Did you mean 'sandbox.write'?",
    ),
    (
        "tool_rules:\n- name: net\n- name: fs.read\n  alowed: true",
        4,
        "tool_rules.fs.read.alowed: unknown field",
        "Did you mean 'allowed'?",
    ),
    ("tool_rules:\n- allowed: true", 1, "tool_rules: in a list, each rule needs a `name:`", None),
    ("tool_rules: [{name: net}, {name: net}]", 1, "tool_rules: duplicate rule 'net'", None),
    ("tool_rules: {net: {name: fs.read}}", 1, "tool_rules: the rule 'net' has a different `name:` inside", None),
    ("tool_rules: 3", 1, "tool_rules: expected a mapping (got 3)", None),
    ("tool_rules: {net: no}", 1, "tool_rules.net: expected a mapping (got 'no')", None),
    ("tool_rules: {net: {allowed: 'false'}}", 1, "tool_rules.net.allowed: expected true or false", None),
    ("name: w\nbackend: cloud", 2, "backend: expected 'pydantic', 'claude', 'codex'", "Did you mean 'claude'?"),
    ("runtime: claude\nbackend: claude", 1, "`runtime` and `backend` are the same field: remove one of them", None),
    ("sandboxes:\n  in:\n    mode: ro", 2, "sandboxes.in.path: this field is required", None),
    ("sandboxes:\n  in:\n    path: a\n    mdoe: ro", 4, "sandboxes.in.mdoe: unknown field", "Did you mean 'mode'?"),
    ("sandboxes: {in: {path: a, mode: w}}", 1, "sandboxes.in.mode: expected 'ro' or 'rw'", None),
    ('sandboxes: {in: {path: "a\\0b"}}', 1, "sandboxes.in.path: contains the non-printable character", None),
    ("sandboxes: {../in: {path: a}}", 1, "sandboxes", None),
    ("sandboxes: {in: {path: a, name: out}}", 1, "the sandbox 'in' has a different `name:` inside, 'out'", None),
    ("sandboxes: {in: {path: a, allowed_suffixes: ['']}}", 1, "allowed_suffixes[0]: invalid suffix ''", None),
    ("sandboxes: {in: {path: a, allowed_suffixes: [1]}}", 1, "allowed_suffixes[0]: expected text", None),
    ("mcp_servers: {d: {}}", 1, "mcp_servers.d: set either `command` (a list) or `url`", None),
    ("mcp_servers: {d: {command: uvx x}}", 1, "mcp_servers.d.command: expected a list", None),
    ("mcp_servers: {d: {url: 'file:///x'}}", 1, "mcp_servers.d.url: ", None),
    (
        "mcp_servers: {d: {url: 'http://x', env: [A=b]}}",
        1,
        "env[0]: invalid name of an environment variable: 'A=b'",
        None,
    ),
    ("limits: {timeout: soon}", 1, "limits.timeout: invalid duration 'soon'", None),
    ("limits: {max_turns: 1.5}", 1, "limits.max_turns: ", None),
    ("limits: {max_turns: true}", 1, "limits.max_turns: expected a whole number (got true)", None),
    ("limits: {max_turns: 0}", 1, "limits.max_turns: must be more than 0", None),
    ("limits: {max_budget_usd: .inf}", 1, "limits.max_budget_usd: ", None),
    ("limits: {max_budget_usd: '2'}", 1, "limits.max_budget_usd: ", None),
    ("status: actve", 1, "status: expected 'draft', 'active' or 'retired'", "Did you mean 'active'?"),
    ("locked: 'yes'", 1, "locked: expected true or false", None),
    ("allow_workers: other", 1, "allow_workers: expected a list", None),
    ("allow_workers: [a/b]", 1, "allow_workers[0]: invalid name 'a/b'", None),
    ("attachment_policy: {max_attachments: -1}", 1, "attachment_policy.max_attachments: must be at least 0", None),
    ("model: ''", 1, "model: ", None),
    ("name: 7", 1, "name: expected text", None),
    ("name: other", 1, "name: the worker name 'other' differs from the file name", "Rename the file to other.yaml"),
    ("instructions: ' '", 1, "instructions: the instructions are empty", None),
    ("description: x", 1, "the worker has no instructions", "Add `instructions:`, or create"),
    ("- x", 1, "expected a mapping", None),
    ("", 1, "expected a mapping", None),
]


@pytest.mark.req("DO-1")
@pytest.mark.parametrize(("text", "line", "message", "hint"), WRONG)
def test_an_error_names_file_line_field_and_the_nearest_name(
    write: Write, text: str, line: int, message: str, hint: str | None
):
    if not text.startswith(("instruct", "description", "- ", "name: other")) and text:
        text += "\ninstructions: x"
    path = write("workers/w.yaml", text)
    with pytest.raises(InvalidFile) as caught:
        load(path)
    assert caught.value.where == f"{path}:{line}"
    assert message in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


def test_json_errors_have_lines_too(write: Write):
    path = write("workers/w.json", '{\n  "instructions": "x",\n  "limits": {\n    "max_tuns": 3\n  }\n}')
    with pytest.raises(InvalidFile, match=r"w.json:4: limits.max_tuns: unknown field\nDid you mean 'max_turns'"):
        load(path)


def test_rules_may_name_tools_that_only_a_run_knows(write: Write):
    worker = load(
        write("workers/w.yaml", "instructions: x\ntoolboxes: [mail]\ntool_rules: {mail_sned: {allowed: false}}")
    )
    assert worker.rules_for(["mail_sned"]) == worker.rules
    with pytest.raises(InvalidFile, match="unknown capability or tool\nDid you mean 'mail_send'"):
        worker.rules_for(["mail_send"])


def test_a_file_whose_name_cannot_be_a_name(write: Write):
    with pytest.raises(InvalidFile, match="invalid worker name 'my worker'"):
        load(write("workers/my worker.yaml", "instructions: x"))


def test_the_digest_follows_the_text_and_the_prompt(write: Write):
    path = write("workers/w.yaml", "description: one")
    prompt = write("prompts/w.md", "first")
    first = load(path)
    assert load(path).digest == first.digest
    prompt.write_text("second")
    assert load(path).digest != first.digest
    prompt.write_text("first")
    path.write_text("description: two")
    assert load(path).digest != first.digest


def test_backend_is_runtime(write: Write):
    assert load(write("workers/w.yaml", "backend: codex\ninstructions: x")).definition.runtime == "codex"
    assert Definition.model_validate({"name": "w", "backend": "codex"}).runtime == "codex"


def test_checking_a_file_renders_nothing(write: Write):
    write("prompts/w.j2", "{{ nothing.here }}")
    assert load_definition(write("workers/w.yaml", "description: d")).description == "d"


names = st.sampled_from(sorted(Definition.model_fields)) | st.sampled_from(["backend", "path", "mode", "x"]) | st.text()
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["ro", "rw", "*", "30m", "w", "active", "fs.write", "Read", "claude"])
)
data = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=15
)


@given(data)
@settings(deadline=None)
def test_any_data_is_a_worker_or_a_plain_error(value: Any):
    with contextlib.suppress(GuildError):
        read_definition(yaml.Source(Path("w.yaml"), "", value, {(): 1}))


@given(st.text(alphabet=" \n:-[]{}'\"&*!|>#?,abw012.~") | st.text())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_worker_or_a_plain_error(tmp_path: Path, text: str):
    for name in ("w.yaml", "w.json"):
        path = tmp_path / name
        path.write_bytes(text.encode(errors="surrogatepass"))
        with contextlib.suppress(GuildError):
            load(path)


@given(st.binary())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_worker_or_a_plain_error(tmp_path: Path, content: bytes):
    path = tmp_path / "w.yaml"
    path.write_bytes(content)
    with contextlib.suppress(GuildError):
        load(path)
