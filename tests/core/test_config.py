"""Settings: those of the user, tightened by those of the project."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.config import _File, load_settings, parse_duration, resolve_script_path
from guildhall.core.errors import HallUnavailable, InvalidFile, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.paths import Home


def write_and_load(home: Home, root: Path, user: str = "", project: str = "") -> Settings:
    home.path.mkdir(parents=True, exist_ok=True)
    home.settings.write_text(user)
    (root / "guildhall.yaml").write_text(project)
    return load_settings(home, root)


def test_without_files_the_defaults_apply(home: Home, tmp_path: Path):
    found = load_settings(home, tmp_path)
    assert (found.model, found.budget, found.env, found.approvals.timeout) == (None, 5.0, (), None)
    assert (found.memory.limit_tokens, found.hall.idle, found.hall.run_memory) == (8000, 60.0, 1024**3)
    assert found == write_and_load(home, tmp_path)


def test_settings_of_the_user_apply(home: Home, tmp_path: Path):
    found = write_and_load(
        home,
        tmp_path,
        "model: anthropic:claude-sonnet-4-5\nbudget: 20\nenv: [DOCS_TOKEN]\nweb_search: {searxng: http://localhost:8888}\n"
        "approvals: {timeout: 2h}\nmemory: {limit_tokens: 12000}\nprojects: {}\nhall: {idle: 10m, run_memory: 512MB}\n"
        "worker_creation: {model: null, tools: [Read], sandboxes: {notes: {path: ./notes}}, tool_rules: {}}\n",
    )
    assert found.model == "anthropic:claude-sonnet-4-5"
    assert (found.budget, found.env, found.approvals.timeout) == (20.0, ("DOCS_TOKEN",), 7200.0)
    assert (found.memory.limit_tokens, found.hall.idle, found.hall.run_memory) == (12000, 600.0, 512 * 1024**2)
    assert found.web_search is not None
    assert found.web_search.searxng == "http://localhost:8888"
    assert found.worker_creation is not None
    assert found.worker_creation.tools == ("Read",)


# A value of each field that differs from its default, and a project that tightens it or None if only the user may.
FIELDS = {
    "model": ("anthropic:claude-sonnet-4-5", "openai:gpt-5"),
    "budget": ("20", "3"),
    "env": ("[DOCS_TOKEN]", "[]"),
    "web_search": ("{provider: brave}", None),
    "approvals": ("{timeout: 2h}", "{timeout: 1h}"),
    "model_timeouts": ("{connect: 5s}", None),
    "memory": ("{limit_tokens: 6000}", "{limit_tokens: 5000}"),
    "worker_creation": ("{tools: [Read]}", None),
    "hall": ("{idle: 10m}", None),
    "commissions": ("{max: 3}", None),
    "manager": ("{asks_before: [meeting]}", "{asks_before: [commission]}"),
    "projects": ("{shop: {path: /shop}}", None),
}


def test_each_field_of_a_settings_file_reaches_the_settings(home: Home, tmp_path: Path):
    assert set(FIELDS) == set(_File.model_fields)
    defaults = load_settings(home, tmp_path)
    for name, (user, project) in FIELDS.items():
        found = getattr(write_and_load(home, tmp_path, f"{name}: {user}"), name)
        assert found != getattr(defaults, name), name
        if project is not None:
            assert getattr(write_and_load(home, tmp_path, f"{name}: {user}", f"{name}: {project}"), name) != found, name
        else:
            with pytest.raises(InvalidFile, match="a project cannot set this field"):
                write_and_load(home, tmp_path, "", f"{name}: {user}")


@pytest.mark.parametrize(
    ("user", "project", "budget"),
    [
        ("budget: 20", "", 20.0),
        ("budget: 20", "budget: 3", 3.0),
        ("budget: 2", "budget: 3", 2.0),
        ("", "budget: 9", 5.0),
        ("", "budget: none", 5.0),
        ("budget: none", "", None),
        ("budget: none", "budget: 4", 4.0),
        ("budget:", "", 5.0),
    ],
)
def test_the_smaller_budget_applies(home: Home, tmp_path: Path, user: str, project: str, budget: float | None):
    assert write_and_load(home, tmp_path, user, project).budget == budget


def test_a_project_may_only_tighten_settings(home: Home, tmp_path: Path):
    user = "env: [A_NAME, B_NAME]\napprovals: {timeout: 1h}\nmemory: {limit_tokens: 4000}\nmodel: openai:gpt-4o"
    project = "env: [B_NAME, STOLEN]\napprovals: {timeout: 2h}\nmemory: {limit_tokens: 9000}\nmodel: script:s.yaml"
    found = write_and_load(home, tmp_path, user, project)
    assert (found.env, found.env_refused) == (("B_NAME",), ("STOLEN",))
    assert (found.approvals.timeout, found.memory.limit_tokens) == (3600.0, 4000)
    assert found.model == f"script:{tmp_path / 's.yaml'}"
    assert write_and_load(home, tmp_path, "", "memory: {limit_tokens: 500}").memory.limit_tokens == 500
    assert write_and_load(home, tmp_path, "", "env: [X]").env == ()


@pytest.mark.parametrize("field", ["web_search: {provider: native}", "worker_creation: {}", "hall: {}", "projects: {}"])
def test_a_project_may_not_set_fields_of_the_user(home: Home, tmp_path: Path, field: str):
    with pytest.raises(InvalidFile, match=r"guildhall.yaml:1: .*a project cannot set this field"):
        write_and_load(home, tmp_path, "", field)


@pytest.mark.parametrize(
    "text",
    [
        "port: 4321\nbackends: {}\n",
        "projects:\n  - name: a\n    path: /a\n",
        "projects: []\nsettings: {}\n",
    ],
)
def test_the_settings_of_another_product_are_refused_and_not_changed(home: Home, tmp_path: Path, text: str):
    with pytest.raises(HallUnavailable, match="another program") as caught:
        write_and_load(home, tmp_path, text)
    assert "GUILDHALL_HOME" in (caught.value.hint or "")
    assert home.settings.read_text() == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: x", "config.yaml:1: modle: unknown field\nDid you mean 'model'?"),
        ("model: x\nbudgett: 3", "config.yaml:2: budgett: unknown field\nDid you mean 'budget'?"),
        ("budget: lots", "budget: expected dollars, such as 5.0, or `none` (got 'lots')"),
        ("budget: -1", "budget: expected dollars"),
        ("budget: .nan", "budget: expected dollars"),
        ("budget: true", "budget: expected dollars"),
        ("budget: []", "budget: expected a number (got a list)"),
        ("env: ['A B']", "env[0]: invalid name of an environment variable: 'A B'"),
        ("env: [1]", "env[0]: expected text (got 1)"),
        ("web_search: {}", "web_search: set either `searxng` (a URL) or `provider`"),
        ("web_search: {provider: bing}", "web_search.provider: expected 'native', 'tavily' or 'brave'"),
        ("web_search: {searxng: 'file:///etc'}", "web_search.searxng: "),
        ("approvals: {timeout: soon}", "approvals.timeout: invalid duration 'soon'. Write a number with s, m, h or d"),
        ("memory: {limit_tokens: 0}", "memory.limit_tokens: must be more than 0 (got 0)"),
        ("hall: {idle: 0s}", "hall.idle: invalid duration '0s'"),
        ("hall: {idle: never}", "hall.idle: invalid duration 'never'"),
        ("hall: {run_memory: 1MB}", "hall.run_memory: expected a size from 64MB"),
        ("hall: {run_memory: 1024}", "hall.run_memory: expected a size from 64MB"),
        ("hall: {run_memory: 9999999GB}", "hall.run_memory: expected a size from 64MB"),
        ("hall: {port: 80}", "hall.port: unknown field"),
        ("hall: 60s", "hall: expected a mapping"),
        ("model: ''", "model: "),
        ("- a", "expected a mapping"),
        ("model: [", "not YAML"),
    ],
)
def test_an_invalid_field_is_reported_with_its_line(home: Home, tmp_path: Path, text: str, message: str):
    with pytest.raises(InvalidFile) as caught:
        write_and_load(home, tmp_path, text)
    assert message in str(caught.value)
    assert str(home.settings) in (caught.value.where or "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("30m", 1800), (" 1.5 h ", 5400), ("2d", 172800), ("45", 45), (45, 45), (0.5, 0.5)],
)
def test_durations_are_parsed_with_units(text: object, seconds: float):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0", 0, "1e9s", "5 weeks", True, None, [], float("nan"), "99999d"])
def test_an_invalid_duration_is_rejected_with_a_hint(text: object):
    with pytest.raises(UsageError, match=r"invalid duration .*\nWrite a number with s, m, h or d"):
        parse_duration(text)


@given(st.text() | st.integers() | st.floats())
@hypothesis.settings(deadline=None)
def test_any_duration_is_positive_or_an_error(value: object):
    with contextlib.suppress(UsageError):
        assert 0 < parse_duration(value) < float("inf")


def test_only_script_models_are_resolved_in_a_folder(tmp_path: Path):
    assert resolve_script_path("script:a/b.yaml", tmp_path) == f"script:{tmp_path}/a/b.yaml"
    assert resolve_script_path("script:/a/b.yaml", tmp_path) == "script:/a/b.yaml"
    assert resolve_script_path("openai:gpt-4o", tmp_path) == "openai:gpt-4o"
    assert resolve_script_path("script:", tmp_path) == "script:"


def test_a_project_may_only_add_approvals_of_the_manager(home: Home, tmp_path: Path) -> None:
    assert write_and_load(home, tmp_path, "").manager.asks_before == ()
    found = write_and_load(
        home, tmp_path, "manager: {asks_before: [pull_request]}", "manager: {asks_before: [commission]}"
    )
    assert found.manager.asks_before == ("pull_request", "commission")
    assert write_and_load(home, tmp_path, "manager: {asks_before: [meeting]}", "manager: {}").manager.asks_before == (
        "meeting",
    )
    with pytest.raises(InvalidFile, match="asks_before"):
        write_and_load(home, tmp_path, "manager: {asks_before: [merge]}")
