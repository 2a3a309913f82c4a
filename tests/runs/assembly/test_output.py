"""Output schemas: matching output ends the run, other output is returned to the model, the third mismatch fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import NOTES, WRITE, journal, kinds, model_input, put_script, put_worker, run_until_ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import CommandResult, Guild

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "maximum": 10}, "why": {"type": "string"}},
    "required": ["score"],
    "additionalProperties": False,
}
MATCH = {"output": {"score": 7}}
MISMATCH = {"output": {"score": "seven"}}


def run_with_schema(
    guild: Guild, project: Path, *answers: dict[str, Any], schema: Any = SCHEMA, **fields: Any
) -> CommandResult:
    (project / "schemas").mkdir(exist_ok=True)
    (project / "schemas" / "report.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    put_worker(project, output_schema_ref="schemas/report.json", **{"tool_rules": None, **fields})
    put_script(project, *answers)
    return guild("run", "scribe", "go", "--output", "json")


@pytest.mark.req("DO-10")
def test_matching_output_is_the_result(guild: Guild, project: Path) -> None:
    ran = run_with_schema(guild, project, MATCH)
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})


@pytest.mark.req("DO-10")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (MISMATCH, "score: 'seven' is not of type 'integer'"),
        ({"output": {"score": 11}}, "score: 11 is greater than the maximum of 10"),
        ({"output": {}}, "'score' is a required property"),
        ({"output": {"score": 1, "x": 1}}, "Additional properties are not allowed"),
        ({"say": "seven"}, "Give the result by calling final_result once."),
        ({"calls": [{"call": "final_result", "with": {"score": 1}}] * 2}, "by calling final_result once"),
    ],
)
def test_a_mismatch_is_returned_to_the_model(guild: Guild, project: Path, answer: dict[str, Any], message: str) -> None:
    ran = run_with_schema(guild, project, answer, MATCH)
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})
    assert message in model_input(journal(guild, ran.json["run"]))


@pytest.mark.req("DO-10")
def test_the_third_mismatch_in_a_row_fails_the_run(guild: Guild, project: Path) -> None:
    ran = run_with_schema(guild, project, MISMATCH, MISMATCH, MISMATCH, MATCH)
    assert (ran.code, ran.json["status"], ran.json["output"]) == (1, "failed", None)
    assert "3 unusable model responses in a row" in ran.json["error"]["message"]


def test_a_tool_call_resets_the_count_of_mismatches(guild: Guild, project: Path) -> None:
    ran = run_with_schema(guild, project, MISMATCH, MISMATCH, WRITE, MISMATCH, MISMATCH, MATCH)
    assert ran.code == 0


def test_calls_in_the_same_answer_are_made_before_the_run_ends(guild: Guild, project: Path) -> None:
    ran = run_with_schema(guild, project, {**WRITE, "output": {"score": 3}})
    assert (ran.code, ran.json["output"]) == (0, {"score": 3})
    assert (project / "notes" / "a.md").read_text() == "one"
    order = kinds(journal(guild, ran.json["run"]))
    assert order.index("tool_ended") < order.index("ended")


def test_a_call_in_the_same_answer_may_wait_for_approval(guild: Guild, project: Path) -> None:
    run_with_schema(guild, project, {"say": "x"})
    put_worker(project, output_schema_ref="schemas/report.json")
    put_script(project, {**WRITE, "output": {"score": 3}})
    _, _, ask = run_until_ask(guild)
    (project / "schemas" / "report.json").unlink()  # the run keeps the schema that it was started with
    ran = guild("answer", ask, "yes", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, {"score": 3})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "invalid JSON"),
        ("[" * 100_000, "invalid JSON"),
        ("[]", "invalid JSON Schema"),
        ('"text"', "invalid JSON Schema"),
        ("true", "type: object"),
        ('{"type": "array"}', "type: object"),
        ('{"type": "objekt"}', "invalid JSON Schema"),
        ('{"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}', "unresolvable reference"),
        ('{"type": "object", "properties": {"a": {"$ref": "other.json"}}}', "unresolvable reference"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}', "unresolvable reference"),
        ('{"type": "object", "allOf": [{"$ref": "#/type"}]}', "unresolvable reference"),
    ],
)
def test_an_invalid_schema_is_reported_before_the_run_starts(
    guild: Guild, project: Path, schema: str, message: str
) -> None:
    ran = run_with_schema(guild, project, MATCH, schema=schema)
    assert ran.code == 2
    assert message in ran.err
    assert "report.json" in ran.err


def test_a_schema_may_refer_to_its_own_parts(guild: Guild, project: Path) -> None:
    part = {"$defs": {"score": {"type": "integer"}}, "properties": {"score": {"$ref": "#/$defs/score"}}}
    ran = run_with_schema(guild, project, MISMATCH, MATCH, schema={"type": "object", **part})
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})


@pytest.mark.parametrize("reference", ["schemas/none.json", "../../etc/passwd", "package.module:Model", "/etc/passwd"])
def test_a_missing_schema_is_reported(guild: Guild, project: Path, reference: str) -> None:
    put_worker(project, output_schema_ref=reference, sandboxes=NOTES)
    put_script(project, MATCH)
    ran = guild("run", "scribe", "go")
    assert ran.code in {1, 2, 3}
    assert "internal error" not in ran.err
    assert "Traceback" not in ran.err
