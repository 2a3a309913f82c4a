"""An output schema: what fits ends the run, what does not goes back to the model, the third miss is the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import NOTES, WRITE, journal, kinds, model_input, put_script, put_worker, run_until_ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, Ran

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer", "maximum": 10}, "why": {"type": "string"}},
    "required": ["score"],
    "additionalProperties": False,
}
FITS = {"output": {"score": 7}}
MISSES = {"output": {"score": "seven"}}


def judged(guild: Guild, project: Path, *answers: dict[str, Any], schema: Any = SCHEMA, **fields: Any) -> Ran:
    (project / "schemas").mkdir(exist_ok=True)
    (project / "schemas" / "report.json").write_text(schema if isinstance(schema, str) else json.dumps(schema))
    put_worker(project, output_schema_ref="schemas/report.json", **{"tool_rules": None, **fields})
    put_script(project, *answers)
    return guild("run", "scribe", "go", "--output", "json")


@pytest.mark.req("DO-10")
def test_what_fits_is_the_output(guild: Guild, project: Path) -> None:
    ran = judged(guild, project, FITS)
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})


@pytest.mark.req("DO-10")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (MISSES, "score: 'seven' is not of type 'integer'"),
        ({"output": {"score": 11}}, "score: 11 is greater than the maximum of 10"),
        ({"output": {}}, "'score' is a required property"),
        ({"output": {"score": 1, "x": 1}}, "Additional properties are not allowed"),
        ({"say": "seven"}, "Give the result by calling final_result once."),
        ({"calls": [{"call": "final_result", "with": {"score": 1}}] * 2}, "by calling final_result once"),
    ],
)
def test_what_does_not_fit_goes_back(guild: Guild, project: Path, answer: dict[str, Any], said: str) -> None:
    ran = judged(guild, project, answer, FITS)
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})
    assert said in model_input(journal(guild, ran.json["run"]))


@pytest.mark.req("DO-10")
def test_the_third_miss_in_a_row_is_an_error(guild: Guild, project: Path) -> None:
    ran = judged(guild, project, MISSES, MISSES, MISSES, FITS)
    assert (ran.code, ran.json["status"], ran.json["output"]) == (1, "failed", None)
    assert "3 unusable model answers in a row" in ran.json["error"]["message"]


def test_work_in_between_forgives(guild: Guild, project: Path) -> None:
    ran = judged(guild, project, MISSES, MISSES, WRITE, MISSES, MISSES, FITS)
    assert ran.code == 0


def test_calls_beside_the_result_are_made_first(guild: Guild, project: Path) -> None:
    ran = judged(guild, project, {**WRITE, "output": {"score": 3}})
    assert (ran.code, ran.json["output"]) == (0, {"score": 3})
    assert (project / "notes" / "a.md").read_text() == "one"
    order = kinds(journal(guild, ran.json["run"]))
    assert order.index("tool_ended") < order.index("ended")


def test_a_call_beside_the_result_may_wait_for_a_person(guild: Guild, project: Path) -> None:
    judged(guild, project, {"say": "x"})
    put_worker(project, output_schema_ref="schemas/report.json")
    put_script(project, {**WRITE, "output": {"score": 3}})
    _, _, ask = run_until_ask(guild)
    (project / "schemas" / "report.json").unlink()  # what was frozen at the start is what counts
    ran = guild("answer", ask, "yes", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, {"score": 3})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON Schema"),
        ('"text"', "not a JSON Schema"),
        ("true", "type: object"),
        ('{"type": "array"}', "type: object"),
        ('{"type": "objekt"}', "not a JSON Schema"),
        ('{"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}', "unresolvable reference"),
        ('{"type": "object", "properties": {"a": {"$ref": "other.json"}}}', "unresolvable reference"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}', "unresolvable reference"),
        ('{"type": "object", "allOf": [{"$ref": "#/type"}]}', "unresolvable reference"),
    ],
)
def test_a_wrong_schema_is_told_before_anything_runs(guild: Guild, project: Path, schema: str, said: str) -> None:
    ran = judged(guild, project, FITS, schema=schema)
    assert ran.code == 2
    assert said in ran.err
    assert "report.json" in ran.err


def test_a_schema_may_refer_to_its_own_parts(guild: Guild, project: Path) -> None:
    part = {"$defs": {"score": {"type": "integer"}}, "properties": {"score": {"$ref": "#/$defs/score"}}}
    ran = judged(guild, project, MISSES, FITS, schema={"type": "object", **part})
    assert (ran.code, ran.json["output"]) == (0, {"score": 7})


@pytest.mark.parametrize("reference", ["schemas/none.json", "../../etc/passwd", "package.module:Model", "/etc/passwd"])
def test_a_schema_that_is_not_there_is_told(guild: Guild, project: Path, reference: str) -> None:
    put_worker(project, output_schema_ref=reference, sandboxes=NOTES)
    put_script(project, FITS)
    ran = guild("run", "scribe", "go")
    assert ran.code in {1, 2, 3}
    assert "internal error" not in ran.err
    assert "Traceback" not in ran.err
