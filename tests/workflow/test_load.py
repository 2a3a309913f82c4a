"""Workflow files: valid files load, and invalid files are refused with file, line and field."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile
from guildhall.workflow.definition import Wakeup
from guildhall.workflow.loader import from_record, load, parse_definition, to_record
from guildhall.workflow.placeholders import Values

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.workflow.conftest import LoadWorkflow, Write

SIMPLE = """\
name: review

agents:
  reviewer:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/reviewer.md

setup:
  - shell: gh pr diff
    as: diff

kickoff: |
  Please review this PR:
  ${{ diff }}
  @reviewer
"""

PAIR = """\
name: code-review

agents:
  reviewer:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/reviewer.md

  coder:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/coder.md

setup:
  - shell: gh pr diff
    as: diff

kickoff: |
  PR diff:
  ${{ diff }}

  @reviewer please review these changes.
  When issues found, @coder to fix them.
"""
TEAM = """\
name: code-review

agents:
  coordinator:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/coordinator.md

  reviewer:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/reviewer.md

  coder:
    model: anthropic/claude-sonnet-4-5
    system_prompt: prompts/coder.md

context:
  documentOwner: coordinator

setup:
  - shell: gh pr view --json title,body,files
    as: pr_info

kickoff: |
  New PR to review:
  ${{ pr_info }}

  @coordinator please orchestrate.
"""

FULL = """\
name: everything
description: All that there is
agents:
  lead:
    worker: chief
    prompt: {append: "You work for ${{ workflow.name }}."}
    description: leads
    model: script:answers.yaml
    runtime: pydantic
    tools: [Read]
    tool_rules: {fs.read: {approval_required: true}}
    workdir: ./src
    max_turns: 7
    max_budget_usd: 0.5
    timeout: 2m
    wakeup: 5m
    wakeup_prompt: Anything new about ${{ params.topic }}?
  helper:
    system_prompt: Help ${{ env.TEAM }}.
    tools: [Read, Write]
    wakeup: "0 9 * * 1-5"
context:
  enabled: true
  provider: file
  documents: file
  documentOwner: none
  config: {dir: "shared/${{ workflow.tag }}"}
params:
  topic: {default: 3, description: what it is about}
  pr: {required: true}
env: [TEAM]
setup:
  - {shell: "echo ${{ params.pr }}", as: printed, timeout: 30s}
  - shell: 'echo "${{ printed }}"'
kickoff: "@lead ${{ printed }}"
budget: 2.5
limits: {max_hops: 10, max_repeats: 2, max_rounds_without_progress: 4}
"""

CHIEF = """\
description: the chief
instructions: |
  Lead, and write ${{ as you like }}.
model: anthropic:claude-sonnet-5-5
tools: [Read, Grep, Write]
tool_rules:
  fs.read: {timeout: 1h}
  fs.write: {allowed: false}
limits: {max_turns: 99, max_tokens: 1000}
"""


@pytest.fixture
def prompts(write: Write) -> None:
    for name in ("coordinator", "reviewer", "coder"):
        write(f"prompts/{name}.md", f"You are the {name}.\n")


@pytest.mark.req("AW-1")
@pytest.mark.usefixtures("prompts")
def test_the_examples_of_the_seed_load_unchanged(load_workflow: LoadWorkflow):
    simple, team = load_workflow(SIMPLE), load_workflow(TEAM, "team.yaml")
    assert simple.name == "review"
    assert simple.definition.setup[0].shell == "gh pr diff"
    assert [agent.name for agent in team.agents] == ["coordinator", "reviewer", "coder"]
    assert team.definition.context.document_owner == "coordinator"
    coder = team.agent("coder").worker
    assert (coder.name, coder.instructions) == ("coder", "You are the coder.\n")
    assert coder.definition.model == "anthropic:claude-sonnet-4-5"


@pytest.mark.req("AW-1")
def test_every_field_is_loaded(load_workflow: LoadWorkflow, write: Write, project: Path):
    write("workers/chief.yaml", CHIEF)
    (project / "src").mkdir()
    workflow = load_workflow(FULL)
    values = Values(workflow="everything", tag="t", params={"topic": "3", "pr": "9"}, env={"TEAM": "us"})
    lead = workflow.worker_of(workflow.agent("lead"), values)
    assert lead.instructions == "Lead, and write ${{ as you like }}.\n\nYou work for everything."
    assert (lead.name, lead.description, lead.path) == ("lead", "leads", project / "workers/chief.yaml")
    assert lead.definition.model == f"script:{project}/answers.yaml"
    assert lead.definition.tools == ("Read",)
    rules = {rule.name: rule for rule in lead.rules}
    assert (rules["fs.read"].approval_required, rules["fs.read"].timeout) == (True, 3600)
    assert rules["fs.write"].allowed is False
    assert (lead.definition.limits.max_turns, lead.definition.limits.max_tokens) == (7, 1000)
    assert (lead.definition.limits.max_budget_usd, lead.definition.limits.timeout) == (0.5, 120)
    assert lead.workdir == project / "src"
    assert workflow.agents[0].wakeup == Wakeup(every=300)
    helper = workflow.worker_of(workflow.agent("helper"), values)
    assert (helper.instructions, helper.workdir, helper.scope) == ("Help us.", project, "workflow")
    assert workflow.agents[1].wakeup == Wakeup(cron="0 9 * * 1-5")
    assert workflow.documents_folder(values) == project / "shared/t/documents"
    assert workflow.definition.params["topic"].default == "3"
    assert workflow.definition.params["pr"].is_required
    assert workflow.budget == 2.5
    assert workflow.definition.limits.max_hops == 10
    assert {project / "review.yaml", project / "shared/t/documents"} <= set(helper.workflow_paths)


def test_each_agent_of_each_file_has_its_own_identity(load_workflow: LoadWorkflow):
    text = "agents: {a: {system_prompt: x}, b: {system_prompt: x}}"
    one, other = load_workflow(text), load_workflow(text, "other.yaml")
    identities = {agent.worker.identity for agent in (*one.agents, *other.agents)}
    assert len(identities) == 4


def test_agents_of_the_same_worker_share_its_identity(load_workflow: LoadWorkflow, write: Write):
    write("workers/chief.yaml", CHIEF)
    workflow = load_workflow("agents: {a: {worker: chief}, b: {ref: chief}}")
    one, other = (agent.worker for agent in workflow.agents)
    assert one.identity == other.identity
    assert (one.name, other.name) == ("a", "b")
    assert one.workdir is None


def test_a_workflow_needs_only_one_agent(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow("agents: {a: {system_prompt: Be kind.}}", "solo.yaml")
    assert workflow.name == "solo"
    assert workflow.budget is None
    assert workflow.documents_folder(Values(workflow="solo", tag="main")) == project / ".workflow/solo/main/documents"


@pytest.mark.parametrize(
    ("context", "enabled", "files"),
    [
        ("false", False, False),
        ("true", True, True),
        ("", True, True),
        ("{documents: sqlite}", True, False),
        ("{provider: memory}", True, False),
        ("{provider: file}", True, True),
        ("{enabled: false}", False, False),
    ],
)
def test_a_context_decides_on_the_room_and_its_files(
    load_workflow: LoadWorkflow, context: str, enabled: bool, files: bool
):
    workflow = load_workflow(f"agents: {{a: {{system_prompt: x}}}}\ncontext: {context}")
    assert workflow.definition.context.enabled is enabled
    assert (workflow.documents_folder(Values(workflow="review", tag="main")) is not None) is files


def test_params_are_a_list_or_a_mapping(load_workflow: LoadWorkflow):
    head = "agents: {a: {system_prompt: x}}\n"
    listed = load_workflow(f"{head}params: [pr, {{name: topic, default: true, required: false}}]").definition.params
    mapped = load_workflow(f"{head}params: {{pr: , topic: true, name: Ada, n: 1.5}}").definition.params
    assert (listed["pr"].is_required, mapped["pr"].is_required) == (True, True)
    assert (listed["topic"].default, mapped["topic"].default) == ("true", "true")
    assert (mapped["name"].default, mapped["n"].default) == ("Ada", "1.5")


def test_a_budget_of_none_means_no_budget(load_workflow: LoadWorkflow):
    assert load_workflow("agents: {a: {system_prompt: x}}\nbudget: none").budget is None


def test_a_sentence_that_names_a_file_is_not_read_as_a_path(load_workflow: LoadWorkflow, write: Write):
    write("notes.md", "the notes")
    workflow = load_workflow("agents: {a: {system_prompt: Look at notes.md}, b: {system_prompt: ./notes.md}}")
    assert [agent.prompt for agent in workflow.agents] == ["Look at notes.md", "the notes"]


@pytest.mark.req("AW-4")
def test_a_prompt_in_a_file_is_filled_in(load_workflow: LoadWorkflow, write: Write):
    write("a.md", "For ${{ workflow.tag }}.")
    workflow = load_workflow("agents: {a: {system_prompt: a.md}}")
    values = Values(workflow="review", tag="pr-1")
    assert workflow.worker_of(workflow.agents[0], values).instructions == "For pr-1."
    write("a.md", "For ${{ nobody }}.")
    with pytest.raises(InvalidFile, match=r"a\.md: \$\{\{ nobody \}\}: unknown name"):
        load_workflow("agents: {a: {system_prompt: a.md}}")


WRONG = [
    (
        "agents: {a: {system_prompt: x}}\nkickof: hi",
        "review.yaml:2: kickof: unknown field\nDid you mean 'kickoff'",
    ),
    ("agents:\n  a: {sytem_prompt: x}", "review.yaml:2: agents.a.sytem_prompt: unknown field\nDid you mean"),
    ("agents: {a: {system_prompt: x}}\ncontext: {documentowner: a}", "Did you mean 'documentOwner'?"),
    ("kickoff: hi", "agents: this field is required"),
    ("agents: {}", "agents: define at least one agent"),
    ("agents: 5", "agents: expected a mapping"),
    ("agents: {a: }", "agents.a: expected a mapping"),
    ("agents: {a: {model: x}}", "needs a `system_prompt` or a `worker`"),
    ("agents: {a: {system_prompt: x, worker: b}}", "its own instructions"),
    ("agents: {a: {system_prompt: x, prompt: {append: y}}}", "adds to the instructions of a `worker`"),
    ("agents: {a: {worker: b, ref: c}}", "keep one of them"),
    ("agents: {a: {system_prompt: x, backend: pydantic, runtime: pydantic}}", "keep one of them"),
    ("agents: {a: {system_prompt: x, backend: pydantc}}", "review.yaml:1: agents.a.backend: expected"),
    ("agents: {a: {worker: nobody}}", "agents.a.worker: unknown worker 'nobody'"),
    ("agents: {a: {worker: chief, tools: [Bash]}}", "agents.a.tools[0]: the worker chief has no tool 'Bash'"),
    ("agents: {a: {system_prompt: x, tools: [Raed]}}", "unknown built-in tool 'Raed'\nDid you mean 'Read'?"),
    ("agents: {a b: {system_prompt: x}}", "invalid agent name 'a b'"),
    ("agents: {all: {system_prompt: x}}", "invalid agent name 'all'"),
    ("agents: {Person: {system_prompt: x}}", "invalid agent name 'Person'"),
    ("agents: {a@b: {system_prompt: x}}", "invalid agent name"),
    ("name: global\nagents: {a: {system_prompt: x}}", "review.yaml:1: name: invalid name 'global'"),
    ("name: a:b\nagents: {a: {system_prompt: x}}", "invalid name"),
    ("name: ../x\nagents: {a: {system_prompt: x}}", "invalid name"),
    ("agents: {a: {system_prompt: nothing.md}}", "agents.a.system_prompt: file not found"),
    ("agents: {a: {system_prompt: ../outside.md}}", "outside of the project"),
    ("agents: {a: {system_prompt: '  '}}", "invalid prompt: empty"),
    ("agents: {a: {system_prompt: x, workdir: ./nowhere}}", "agents.a.workdir: folder not found"),
    ("agents: {a: {system_prompt: x, wakeup: soon}}", "agents.a.wakeup: invalid wakeup 'soon'"),
    ("agents: {a: {system_prompt: x, wakeup: 0.1s}}", "the minimum is 1 s"),
    ("agents: {a: {system_prompt: x, wakeup: 61 * * * *}}", "invalid cron line"),
    ("agents: {a: {system_prompt: x, wakeup: 0 0 31 2 *}}", "cron line"),
    ("agents: {a: {system_prompt: x, wakeup_prompt: hi}}", "needs a `wakeup`"),
    ("agents: {a: {system_prompt: x}}\ncontext: {documentOwner: b}", "unknown agent 'b'"),
    ("agents: {a: {system_prompt: x}}\ncontext: {config: {dir: a, bind: b}}", "keep one of them"),
    ("agents: {a: {system_prompt: x}}\ncontext: {provider: file, config: {db: a}}", "needs `provider: sqlite`"),
    ("agents: {a: {system_prompt: x}}\ncontext: {provider: memory, documents: file}", "cannot be used with"),
    ("agents: {a: {system_prompt: x}}\ncontext: 5", "context: expected a mapping"),
    ("agents: {a: {system_prompt: x}}\nparams: [a, a]", "duplicate param 'a'"),
    ("agents: {a: {system_prompt: x}}\nparams: [{default: 1}]", "a mapping with `name:`"),
    ("agents: {a: {system_prompt: x}}\nparams: {a: {name: b}}", "it contains another `name:`"),
    ("agents: {a: {system_prompt: x}}\nparams: {env: 1}", "invalid name 'env'"),
    ("agents: {a: {system_prompt: x}}\nparams: [a-b, a_b]", "the same environment variable"),
    ("agents: {a: {system_prompt: x}}\nparams: 5", "params: expected a mapping"),
    ("agents: {a: {system_prompt: x}}\nenv: [A-B]", "invalid name of an environment variable"),
    ("agents: {a: {system_prompt: x}}\nsetup: [{as: x}]", "setup[0].shell: this field is required"),
    (
        "agents: {a: {system_prompt: x}}\nsetup: [{shell: a, as: x}, {shell: b, as: x}]",
        "duplicate output name 'x'",
    ),
    ("agents: {a: {system_prompt: x}}\nsetup: [{shell: a, as: params}]", "invalid name"),
    ('agents: {a: {system_prompt: x}}\nsetup: [{shell: "a\\0b"}]', "NUL"),
    ("agents: {a: {system_prompt: x}}\nsetup: [{shell: a, timeout: 0}]", "invalid duration"),
    ("agents: {a: {system_prompt: x}}\nbudget: lots", "expected dollars"),
    ("agents: {a: {system_prompt: x}}\nbudget: -1", "expected dollars"),
    ("agents: {a: {system_prompt: x}}\nlimits: {max_hops: 0}", "limits.max_hops"),
    ("agents: {a: {system_prompt: x}}\nlimits: {max_hop: 1}", "Did you mean 'max_hops'?"),
    ("agents: {a: {system_prompt: x}}\nagents: {b: {system_prompt: x}}", "duplicate key"),
    ("[1, 2]", "expected a mapping"),
    ("", "expected a mapping"),
    ("agents: &a {a: *a}", ""),
    ("agents: !!python/object:os.system {a: 1}", ""),
]


@pytest.mark.req("AW-1")
@pytest.mark.parametrize(("text", "message"), WRONG)
def test_errors_name_the_file_the_line_and_the_field(
    load_workflow: LoadWorkflow, write: Write, project: Path, text: str, message: str
):
    write("workers/chief.yaml", CHIEF)
    (project.parent / "outside.md").write_text("secret")
    with pytest.raises(InvalidFile) as caught:
        load_workflow(text)
    assert str(caught.value).startswith(str(project / "review.yaml"))
    assert message in str(caught.value)


UNKNOWN_NAMES = [
    ("kickoff", "${{ dif }}", "Did you mean 'diff'?"),
    ("kickoff", "${{ params.toppic }}", "Did you mean 'topic'?"),
    ("kickoff", "${{ env.HOME }}", "`env: [HOME]`"),
    ("kickoff", "${{ workflow.path }}", "unknown name"),
    ("kickoff", "${{ githb.sha }}", "unknown name"),
    ("kickoff", "${{ a b }}", "invalid placeholder"),
    ("kickoff", "${{ diff", "invalid placeholder"),
    ("kickoff", "${{}}", "invalid placeholder"),
    ("kickoff", "${{ ${{ diff }} }}", "invalid placeholder"),
    ("setup", "[{shell: 'cat ${{ later }}', as: later}]", "not available here"),
    ("context", "{config: {dir: 'x/${{ diff }}'}}", "not available here"),
]


@pytest.mark.req("AW-4")
@pytest.mark.parametrize(("field", "text", "message"), UNKNOWN_NAMES)
def test_an_unknown_placeholder_is_refused_before_the_workflow_starts(
    load_workflow: LoadWorkflow, field: str, text: str, message: str
):
    fields: dict[str, Any] = {"setup": "[{shell: git diff, as: diff}]"}
    fields[field] = json.dumps(text) if field == "kickoff" else text
    rest = "".join(f"{name}: {value}\n" for name, value in fields.items())
    with pytest.raises(InvalidFile, match=re.escape(message)) as caught:
        load_workflow(f"agents: {{a: {{system_prompt: x}}}}\nparams: [topic]\n{rest}")
    assert f"{field}" in caught.value.message


@pytest.mark.parametrize(
    "kickoff",
    [
        "begin",
        "@a and @nobody",
        "@ALL begin",
        "@person look",
        "`@nobody`",
        "a@nobody",
        "${{ params.x }}",
        "@n${{ params.x }}",
    ],
)
def test_a_kickoff_that_mentions_only_unknown_agents_is_refused(load_workflow: LoadWorkflow, kickoff: str):
    agents = "agents: {a: {system_prompt: x}}\nparams: {x: '@nobody'}\n"
    assert load_workflow(f"{agents}kickoff: '{kickoff}'").definition.kickoff == kickoff
    load_workflow(f"{agents}context: false\nkickoff: '@nobody'")
    with pytest.raises(InvalidFile, match="kickoff: unknown agent @nobody"):
        load_workflow(f"{agents}kickoff: '@nobody {kickoff if '@' not in kickoff else ''}'")


def test_hostile_files_are_refused(load_workflow: LoadWorkflow, write: Write, project: Path, home: Home):
    for text in ("a: " * 100_000, "[" * 5000, "x: &x [*x, *x]", "agents:\n" + "  a: {system_prompt: x}\n" * 2):
        with pytest.raises(InvalidFile):
            load_workflow(text)
    laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{n}: &a{n} [{','.join(f'*a{n - 1}' for _ in range(10))}]\n" for n in range(1, 9)
    )
    with pytest.raises(InvalidFile, match="more than 20,000 values"):
        load_workflow(laughs)
    (project / "big.yaml").write_bytes(b"#" * 1_100_000)
    with pytest.raises(InvalidFile, match="larger than"):
        load(project / "big.yaml", lambda name: pytest.fail(name))
    with pytest.raises(InvalidFile, match="not a regular file"):
        load(project, lambda name: pytest.fail(name))
    many = "".join(f"  a{n}: {{system_prompt: x}}\n" for n in range(101))
    with pytest.raises(InvalidFile, match="agents"):
        load_workflow(f"agents:\n{many}")


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_fields = ["name", "agents", "context", "params", "env", "setup", "kickoff", "budget", "limits", "description"]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(_fields), _anything, max_size=4), _anything)
def test_any_fields_are_parsed_or_refused(fields: dict[str, Any], agent: Any):
    for agents in (fields.get("agents", {"a": {"system_prompt": "x"}}), {"a": agent}):
        source = yaml.Source(Path("review.yaml"), "", {**fields, "agents": agents}, {})
        with contextlib.suppress(GuildError):
            parse_definition(source)


def test_a_recorded_workflow_is_restored_without_its_files(load_workflow: LoadWorkflow, write: Write, project: Path):
    chief = write("workers/chief.yaml", CHIEF)
    prompt = write("a.md", "Be ${{ workflow.tag }}.")
    (project / "src").mkdir()
    workflow = load_workflow(FULL.replace("Help ${{ env.TEAM }}.", "a.md"))
    kept = json.loads(json.dumps(to_record(workflow)))
    for path in (chief, prompt, workflow.path):
        path.unlink()
    assert from_record(workflow.text, kept) == workflow
