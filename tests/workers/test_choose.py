"""Which model a run uses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.config import Settings
from guildhall.core.errors import ModelUnusable
from guildhall.workers.loader import load
from guildhall.workers.registry import MODEL_CONFIG, ModelChoice, choose_model, normalize_model
from tests.workers.conftest import make_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from tests.workers.conftest import Write


def test_worker_then_caller_then_frame_then_settings_and_override_beats_all(frame: Frame):
    worker = make_worker(model="a/worker")
    bare = make_worker(model=None)
    framed = replace(frame, model="c:frame")
    settings = Settings(model="d:settings")

    chosen = choose_model(worker, framed, settings, caller="b:caller", override="e:override")
    assert chosen == ModelChoice(model="e:override", by="override")
    assert choose_model(worker, framed, settings, caller="b:caller") == ModelChoice(model="a:worker", by="worker")
    assert choose_model(bare, framed, settings, caller="b:caller") == ModelChoice(model="b:caller", by="caller")
    assert choose_model(bare, framed, settings) == ModelChoice(model="c:frame", by="frame")
    assert choose_model(bare, frame, settings) == ModelChoice(model="d:settings", by="settings")


def test_no_model_is_a_clear_error(frame: Frame):
    with pytest.raises(ModelUnusable, match=r"no model set for worker 'w'\n.*or use --model") as caught:
        choose_model(make_worker(), frame, Settings())
    hint = caught.value.hint or ""
    assert "GUILDHALL_MODEL" in hint
    assert "dispatch" not in hint, "what was typed is named, and nothing else"
    with pytest.raises(ModelUnusable, match=r"or use --config '\{\"model\": \"provider:model\"\}'"):
        choose_model(make_worker(), frame, Settings(), model_option=MODEL_CONFIG)


def test_a_member_is_told_of_no_option_that_does_not_reach_it(frame: Frame):
    with pytest.raises(ModelUnusable, match=r"Dispatch with --config '\{\"model\": \"provider:model\"\}'") as caught:
        choose_model(make_worker(), replace(frame, caller="member"), Settings())
    hint = caught.value.hint or ""
    assert "GUILDHALL_MODEL" not in hint
    assert "--model" not in hint


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("anthropic/claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"),
        ("openrouter/meta/llama", "openrouter:meta/llama"),
        ("openrouter:meta/llama", "openrouter:meta/llama"),
        ("ollama/llama3:8b", "ollama:llama3:8b"),
        ("script:a/b.yaml", "script:a/b.yaml"),
        ("replay:r-2345678923", "replay:r-2345678923"),
        ("auto", "auto"),
        ("/model", "/model"),
        ("provider/", "provider/"),
    ],
)
def test_both_ways_to_write_a_model(written: str, meant: str):
    assert normalize_model(written) == meant


def test_a_script_is_looked_for_where_it_was_named(write: Write, project: Path, frame: Frame):
    below = replace(frame, cwd=project / "deep")
    worker = load(write("workers/w.yaml", "instructions: x\nmodel: script:tests/s.yaml"))
    bare = load(write("workers/b.yaml", "instructions: x"))
    assert choose_model(worker, below, Settings()).model == f"script:{project}/tests/s.yaml"
    assert choose_model(bare, below, Settings(), caller="script:s.yaml").model == f"script:{project}/deep/s.yaml"
    assert choose_model(worker, below, Settings(), override="script:/s.yaml").model == "script:/s.yaml"
