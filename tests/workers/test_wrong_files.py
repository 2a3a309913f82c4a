"""Errors in worker files and workflow files: `guild check` reports every error, and `guild run` rejects the same files.

The wrong files are generated from the JSON Schemas: each field gets values of other types and values out of range.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import guildhall
from guildhall.core.yaml_writer import dump

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Guild

PACKAGE = Path(guildhall.__file__).parent
VALUES: tuple[Any, ...] = (7, -1, 0, 1.5, "zz top", "", True, ["zz"], [5], [], {"zz": 5}, {"zz": {"zz": 1}}, {})
SAMPLE = 23  # every 23rd file is also run
# Words of pydantic, jsonschema, ruamel and Python that say nothing about the file.
LIBRARY_WORDS = re.compile(
    r"(?i)\binput\b should|\bshould (be|have|match)|valid (dictionary|string|tuple|list|number|integer|boolean)"
    r"|after validation|validation error|jsonschema|ruamel|is not valid under|of type '|Extra inputs|NoneType"
    r"|Traceback|<class|value_error|Unable to parse|instance of|Dictionary|Tuple\b|while (parsing|scanning)|found '<"
)
SCRIPT = 'price: {input: 1.0, output: 1.0}\nrepeat: true\nworkers: {"*": [[{say: hi}]]}\n'


def fields_of(schema: dict[str, Any], part: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the location of every field of a part of a schema. `*` is a name that the user chooses."""
    for kind in part.get("anyOf", ()):
        yield from fields_of(schema, kind, place)
    if "$ref" in part:
        yield from fields_of(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], place)
    for name, inner in part.get("properties", {}).items():
        yield (*place, name)
        yield from fields_of(schema, inner, (*place, name))
    if isinstance(part.get("additionalProperties"), dict):
        yield (*place, "*")
        yield from fields_of(schema, part["additionalProperties"], (*place, "*"))


def set_field(data: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the data with a value at a location, in a valid surrounding."""
    name, *rest = place
    name = "extra" if name == "*" else name
    if not rest:
        return {**data, name: value}
    inner = data.get(name)
    surrounding = {("sandboxes",): {"path": "."}, ("setup",): {"shell": "true"}}.get(place[:1], {})
    surrounding = {"system_prompt": "x"} if place[:1] == ("agents",) else surrounding
    below = inner if isinstance(inner, dict) else surrounding if place[1:2] != ("*",) else {}
    if len(place) > 2 and place[1] == "*":
        below = {**below, "extra": {**surrounding}}
    return {**data, name: set_field(below, tuple(rest), value)}


def write_files(project: Path) -> None:
    (project / "workers").mkdir()
    (project / "s.yaml").write_text(SCRIPT)
    worker = json.loads((PACKAGE / "workers" / "schema" / "worker.schema.json").read_text())
    workflow = json.loads((PACKAGE / "workflow" / "schema" / "workflow.schema.json").read_text())
    cases = [(worker, {"instructions": "x"}, "workers/w"), (workflow, {"agents": {"a": {"system_prompt": "x"}}}, "f")]
    for schema, base, stem in cases:
        places = [place for place in dict.fromkeys(fields_of(schema, schema)) if place != ("name",)]
        for number, place in enumerate(places):
            for index, value in enumerate(VALUES):
                data = set_field(base, place, value)
                (project / f"{stem}{number}-{index}.yaml").write_text(dump(data))


@pytest.mark.req("DO-1")
@pytest.mark.timeout(300)
def test_wrong_files_are_reported_with_line_and_field_and_not_run(guild: Guild, project: Path) -> None:
    write_files(project)
    reports = guild("check", "--json").json
    assert len(reports) > 800
    errors = [error for report in reports for error in report["errors"]]
    assert [error for error in errors if LIBRARY_WORDS.search(f"{error['message']} {error.get('hint', '')}")] == []
    invalid = [error for error in errors if error["code"] == "invalid_file"]
    assert [error for error in invalid if not re.search(r"\.yaml:\d+$", error.get("where", ""))] == []
    assert [error for error in invalid if not error["message"].startswith(error.get("field", "-"))] == []
    assert sum(bool(report["errors"]) for report in reports) > 600
    for report in reports[::SAMPLE]:
        file = report["errors"][0]["where"].rpartition(":")[0] if report["errors"] else report["file"]
        words = [file] if report["kind"] == "workflow" else [file, "go"]
        ran = guild("run", *words, "--model", "script:s.yaml", "--approve-all", "--json")
        assert (ran.code == 0) == report["ok"], (report, ran)
        if not report["ok"]:
            assert report["errors"][0]["message"] in ran.err
