"""`guild-member.json`: what may stand in it, and what is said where something is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from scripts.docs import MANIFEST_SCHEMA, generated

from guildhall.core.errors import InvalidFile
from guildhall.members.manifest import Manifest, fill_placeholders
from guildhall.members.registry import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

WHOLE: dict[str, Any] = {
    "$schema": "https://example.org/guild-member.schema.json",
    "name": "researcher",
    "displayName": "The Researcher",
    "description": "Looks things up.",
    "version": "1.2.0",
    "transport": "http",
    "mcp": {"command": "${PYTHON}", "args": ["server.py", "--port", "${PORT}"], "env": {"KEY": "${A_KEY}"}},
    "capabilities": ["worker"],
}
LEAST: dict[str, Any] = {"name": "clock", "mcp": {"command": "bun", "args": ["run", "x.ts", "${PORT}"]}}


def put(folder: Path, manifest: Any) -> Path:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest, indent=2)
    (folder / "guild-member.json").write_text(text)
    return folder


@pytest.mark.req("WD-37")
def test_a_whole_manifest_is_read(tmp_path: Path):
    manifest = read_manifest(put(tmp_path, WHOLE))
    assert (manifest.name, manifest.display_name, manifest.version) == ("researcher", "The Researcher", "1.2.0")
    assert manifest.capabilities == ("worker",)
    assert manifest.mcp.variables == ("A_KEY",)


@pytest.mark.req("WD-38")
def test_a_manifest_without_capabilities_has_an_empty_list(tmp_path: Path):
    manifest = read_manifest(put(tmp_path, LEAST))
    assert manifest.capabilities == ()
    assert manifest.transport == "http"


@pytest.mark.parametrize(
    ("change", "said", "line"),
    [
        ({"capabilites": []}, "Did you mean 'capabilities'?", 11),
        ({"display_name": "x"}, "Did you mean 'displayName'?", 11),
        ({"name": "../etc"}, "invalid name", 2),
        ({"name": 5}, "name: expected text", 2),
        ({"transport": "stdio"}, "transport: expected 'http'", 11),
        ({"capabilities": "worker"}, "capabilities: expected a list", 11),
        ({"capabilities": [5]}, "capabilities[0]: expected text", 12),
        ({"mcp": {"command": "x", "args": ["${PORTS}", "${PORT}"]}}, "unknown placeholder ${PORTS}", 6),
        ({"mcp": {"command": "x"}}, "does not receive its port", 3),
        ({"mcp": {"args": ["${PORT}"]}}, "mcp.command: this field is required", 3),
        ({"mcp": {"command": "a\u0000b", "args": ["${PORT}"]}}, "non-printable", 4),
        ({"mcp": {"command": "x", "args": ["${PORT}"], "env": {"A B": "x"}}}, "of an environment variable", 9),
        ({"mcp": {"command": "x", "args": ["${PORT}"], "env": {"A": "${a b}"}}}, "invalid placeholder", 9),
        ({"mcp": {"command": "x", "args": ["${PORT}"], "env": {"GUILDHALL_HOME": "x"}}}, "are reserved", 3),
        ({"mcp": {"command": "x", "args": "${PORT}"}}, "mcp.args: expected a list", 5),
    ],
)
def test_an_invalid_field_is_reported_with_its_line(tmp_path: Path, change: dict[str, Any], said: str, line: int):
    with pytest.raises(InvalidFile) as caught:
        read_manifest(put(tmp_path, {**LEAST, **change}))
    assert said in str(caught.value)
    assert caught.value.where == f"{tmp_path}/guild-member.json:{line}"


@pytest.mark.parametrize("text", ["", "[]", "{", "5", '{"name": "a", "name": "b"}', "[" * 5000, '{"name": "\\ud800"}'])
def test_a_file_that_is_not_a_manifest_is_refused(tmp_path: Path, text: str):
    with pytest.raises(InvalidFile, match=r"guild-member\.json"):
        read_manifest(put(tmp_path, text))


def test_placeholders_are_replaced_once():
    assert fill_placeholders("a ${PORT} ${X}b", {"PORT": "${X}", "X": "no"}) == "a ${X} nob"
    assert fill_placeholders("${GONE}", {}) == ""


def test_the_shipped_schema_matches_the_loader():
    assert MANIFEST_SCHEMA.read_text() == generated()[MANIFEST_SCHEMA], "run `make docs`"
    schema = json.loads(MANIFEST_SCHEMA.read_text())
    for right in (WHOLE, LEAST):
        jsonschema.validate(right, schema)
        Manifest.model_validate(right)
    for wrong in ({**LEAST, "capabilites": []}, {"name": "x"}, {**LEAST, "transport": "stdio"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
