"""Frames: harmless and allowed variables, and keys that are never shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.core.request_frame import Frame

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "PATH": "/usr/bin",
    "LANG": "C.UTF-8",
    "ANTHROPIC_API_KEY": "sk-ant-1234567890",
    "GUILDHALL_MODEL": "script:x.yaml",
    "LD_PRELOAD": "/tmp/evil.so",
    "GIT_DIR": "/elsewhere",
    "CUSTOMER": "Ada",
}


def test_a_frame_has_only_harmless_and_allowed_variables(tmp_path: Path):
    frame = Frame.here(tmp_path, ENVIRONMENT, allowed=frozenset({"CUSTOMER", "MISSING"}))
    assert frame.env == {"PATH": "/usr/bin", "LANG": "C.UTF-8", "CUSTOMER": "Ada"}
    assert Frame.here(tmp_path, ENVIRONMENT).env == {"PATH": "/usr/bin", "LANG": "C.UTF-8"}


def test_a_frame_knows_its_project_and_its_model(tmp_path: Path):
    (tmp_path / "workers").mkdir()
    deep = tmp_path / "a"
    deep.mkdir()
    frame = Frame.here(deep, ENVIRONMENT, interactive=True, caller="api")
    assert (frame.cwd, frame.root, frame.model) == (deep, tmp_path, "script:x.yaml")
    assert (frame.interactive, frame.caller) == (True, "api")
    assert Frame.here(deep, ENVIRONMENT, model="openai:gpt").model == "openai:gpt"
    assert Frame.here(deep, {"GUILDHALL_MODEL": ""}).model is None


def test_the_record_has_the_names_of_variables_and_no_values(tmp_path: Path):
    frame = Frame.here(tmp_path, ENVIRONMENT, allowed=frozenset({"ANTHROPIC_API_KEY"}))
    shown = frame.to_record().as_dict()
    assert shown["env"] == ["ANTHROPIC_API_KEY", "LANG", "PATH"]
    assert "sk-ant" not in json.dumps(shown)
    assert Frame(cwd=tmp_path, root=tmp_path).to_record().as_dict()["env"] == []


def test_keys_are_separate_from_the_environment_and_never_shown(tmp_path: Path):
    frame = Frame.here(tmp_path, ENVIRONMENT, keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"))
    assert frame.keys == {"ANTHROPIC_API_KEY": ENVIRONMENT["ANTHROPIC_API_KEY"]}
    assert "ANTHROPIC_API_KEY" not in frame.env
    for shown in (repr(frame), str(frame), json.dumps(frame.to_record().as_dict())):
        assert ENVIRONMENT["ANTHROPIC_API_KEY"] not in shown
