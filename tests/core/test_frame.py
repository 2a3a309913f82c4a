"""A frame brings along what is harmless or allowed, and secrets are recognised where text is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.frame import Frame, Redactor, looks_secret

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


def test_only_harmless_and_allowed_variables_come_along(tmp_path: Path):
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
    shown = frame.recorded().as_dict()
    assert shown["env"] == ["ANTHROPIC_API_KEY", "LANG", "PATH"]
    assert "sk-ant" not in json.dumps(shown)
    assert Frame(cwd=tmp_path, root=tmp_path).as_dict()["env"] == []


def test_keys_travel_apart_and_are_nowhere_to_be_seen(tmp_path: Path):
    frame = Frame.here(tmp_path, ENVIRONMENT, keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY"))
    assert frame.keys == {"ANTHROPIC_API_KEY": ENVIRONMENT["ANTHROPIC_API_KEY"]}
    assert "ANTHROPIC_API_KEY" not in frame.env
    for shown in (repr(frame), str(frame), json.dumps(frame.recorded().as_dict())):
        assert ENVIRONMENT["ANTHROPIC_API_KEY"] not in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "x"),
        ("token", "x"),
        ("DB_PASSWORD", "x"),
        ("AUTHORIZATION", "x"),
        ("X", "sk-abc"),
        ("X", "ghp_abc"),
        ("X", "AKIAABC"),
        ("X", "eyJhbGciOiJIUzI1NiJ9.e30.x"),
    ],
)
def test_secrets_are_known_by_name_or_by_value(name: str, value: str):
    assert looks_secret(name, value)


@pytest.mark.parametrize(("name", "value"), [("PATH", "/usr/bin"), ("LANG", "C"), ("X", "eyJx"), ("CUSTOMER", "skip")])
def test_plain_values_are_no_secrets(name: str, value: str):
    assert not looks_secret(name, value)


def test_secret_values_are_replaced_by_their_names():
    redact = Redactor({"API_KEY": "abcdefgh", "OTHER_KEY": "abcdefghij", "PIN_SECRET": "1234", "CITY": "Amsterdam"})
    assert redact("abcdefghij, abcdefgh; 1234 in Amsterdam") == "[OTHER_KEY], [API_KEY]; 1234 in Amsterdam"


def test_without_secrets_nothing_is_replaced():
    assert Redactor({"CITY": "Amsterdam"})("Amsterdam") == "Amsterdam"


@given(st.text(), st.text(min_size=8, alphabet=st.characters(exclude_characters="[]_KEY")), st.text())
def test_no_secret_survives_whatever_it_is_made_of(before: str, secret: str, after: str):
    assert secret not in Redactor({"THE_KEY": secret})(f"{before}{secret}{after}").replace("[THE_KEY]", "\0")
