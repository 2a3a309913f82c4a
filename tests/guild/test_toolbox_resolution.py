"""Toolbox resolution: the model gets exactly the base, context, domain and built-in tools, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core.errors import Refused, ToolUnavailable
from guildhall.core.paths import Home
from tests.guild.worker_contexts import IN_PROJECTS, PLAIN, WorkerContexts

if TYPE_CHECKING:
    from pathlib import Path

# The tables are written by hand, independent of the code under test.
MEMORY = ["memory_read", "memory_write", "memory_list"]
BASE = [*MEMORY, "record_decision"]  # of a worker with `base: true`
ARTIFACTS = ["artifact_read", "artifact_write", "artifact_list"]
READ_TOOLS = ["Read", "Grep", "Glob"]
WRITE_TOOLS = ["Write", "Edit"]
CONTEXT = {
    "run": [],
    "called": [],
    "room": [
        *["channel_send", "no_action", "channel_read", "more_tools"],
        *["inbox_read", "inbox_ack", "status_set", "team_list"],
        *["document_read", "document_write", "document_append", "document_list", "document_create", "document_suggest"],
        *["proposal_create", "proposal_vote", "proposal_status", "proposal_cancel"],
        *["resource_create", "resource_read"],
    ],
    "job": ["update_summary", "record_decision", "log_question", "store_memory", "write_artifact", "submit_result"],
    "commission": ["report_progress", "log_question", "submit_result"],
    "meeting": ["link_artifact", "propose_followup", "summarize_progress"],
}
FREE = {
    "job": READ_TOOLS,
    "commission": [*READ_TOOLS, *WRITE_TOOLS],
    "meeting": [*READ_TOOLS, *WRITE_TOOLS],
}  # without a declaration in the worker file
DOMAIN = {"dice": ["roll", "flip"], "mail": ["weigh"]}
MANAGER = [
    *["list_workers", "list_projects", "list_commissions", "create_commission", "dispatch_commission"],
    *["redispatch_commission", "cancel_commission", "wait_for_commissions", "open_pull_request", "request_meeting"],
]


def expected_tools(context: str, fields: dict[str, Any], *, registered: bool) -> list[str]:
    """Return all tools of a worker with these fields, in the order of the model request."""
    context_tools = [name for name in CONTEXT[context] if fields["base"] or name != "store_memory"]
    memory = MEMORY if fields["base"] is True else ["memory_write"]  # the memory is empty
    if context == "job":
        memory = [name for name in memory if name != "memory_write"]  # it has store_memory
    decisions = ["record_decision"] if fields["base"] is True or context not in ("run", "called") else []
    base = [*(ARTIFACTS if registered else []), *memory, *decisions] if fields["base"] else []
    calling = ["worker_call"] if fields["allow_workers"] else []
    boxes = ["sandbox_list", "sandbox_read_text"] if fields["sandboxes"] else []
    domain = [tool for name in fields["toolboxes"] for tool in DOMAIN[name]]
    free = FREE.get(context, [])
    built_in = [*free, *(name for name in fields["tools"] if name not in free)]
    last = [name for name in base if name not in context_tools]
    return [*built_in, *boxes, *domain, *calling, *context_tools, *last]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> WorkerContexts:
    folder: Path = tmp_path_factory.mktemp("contexts")
    return WorkerContexts.create(folder, Home(folder / "home"))


WORKERS = st.fixed_dictionaries(
    {
        "base": st.sampled_from([True, False, "auto"]),
        "tools": st.lists(st.sampled_from([*READ_TOOLS, *WRITE_TOOLS, "Bash"]), unique=True, max_size=4),
        "toolboxes": st.lists(st.sampled_from(sorted(DOMAIN)), unique=True),
        "allow_workers": st.sampled_from([[], ["caller"]]),
        "sandboxes": st.sampled_from([{}, {"in": {"path": "notes"}}]),
    }
)
CONTEXTS = [*PLAIN, *IN_PROJECTS]


@pytest.mark.req("WKR-12", "WKR-16", "WKR-8")
@settings(suppress_health_check=list(HealthCheck), max_examples=18)
@given(context=st.sampled_from(CONTEXTS), fields=WORKERS, registered=st.booleans())
def test_the_model_gets_exactly_these_tools_in_this_order(
    contexts: WorkerContexts, context: str, fields: dict[str, Any], registered: bool
) -> None:
    registered = registered or context in IN_PROJECTS
    contexts.write_workers(**fields)
    if context == "job" and {*fields["tools"]} & {*WRITE_TOOLS}:
        with pytest.raises(Refused, match="cannot run as a job: it has"):
            contexts.tools_in(context, registered=registered)
        return
    assert contexts.tools_in(context, registered=registered) == expected_tools(context, fields, registered=registered)


@pytest.mark.req("WKR-9", "WKR-10", "WKR-11")
@pytest.mark.parametrize("context", CONTEXTS)
def test_each_context_adds_its_own_toolbox(contexts: WorkerContexts, context: str) -> None:
    fields = {"base": True, "tools": [], "toolboxes": [], "allow_workers": [], "sandboxes": {}}
    contexts.write_workers(**fields)
    shown = contexts.tools_in(context)
    assert shown == expected_tools(context, fields, registered=True)
    others = {tool for other, tools in CONTEXT.items() if other != context for tool in tools}
    assert not (others - {*shown}) & {*shown}
    assert not {*MANAGER} & {*shown}


@pytest.mark.req("WKR-13")
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_missing_toolbox_is_reported_in_every_context(contexts: WorkerContexts, context: str) -> None:
    contexts.write_workers(toolboxes=["dice", "cards"])
    if context == "called":  # the caller gets the error
        assert "unknown toolbox 'cards'" in contexts.run_in_hall(lambda contexts: contexts.failed_call_result("smith"))
        return
    with pytest.raises(ToolUnavailable, match="unknown toolbox 'cards'"):  # before a commission is created
        contexts.tools_in(context)
