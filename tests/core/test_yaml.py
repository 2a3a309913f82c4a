"""YAML and JSON files of users: plain data with line numbers, and errors with places."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile

YAML = Path("worker.yaml")
JSON = Path("worker.json")


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    mode: Literal["ro", "rw"] = "ro"
    size: StrictInt = 1


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: StrictStr
    yes: StrictBool = True
    inner: dict[str, Inner] = {}
    items: tuple[StrictStr, ...] = ()
    one: Inner | None = None


def load_error(path: Path, text: str) -> InvalidFile:
    """Return the error of loading a text."""
    with pytest.raises(InvalidFile) as caught:
        yaml.validate(Outer, yaml.parse(path, text))
    return caught.value


def test_yaml_and_json_give_the_same_data():
    text = '{"name": "x", "items": ["a", "b"], "inner": {"one": {"size": 3}}, "none": null, "half": 0.5}'
    assert yaml.parse(YAML, text).data == yaml.parse(JSON, text).data == json.loads(text)


def test_scalars_are_plain_python_values():
    data = yaml.parse(
        YAML, "a: 0x10\nb: 'q'\nc: yes\nd: true\ne: 2020-01-02\nf: !mine x\ng: ~\n1: one\nt: |\n  x\n"
    ).data
    assert data == {
        "a": 16,
        "b": "q",
        "c": "yes",
        "d": True,
        "e": "2020-01-02",
        "f": "x",
        "g": None,
        "1": "one",
        "t": "x\n",
    }
    assert [type(value) for value in data.values()] == [int, str, str, bool, str, str, type(None), str, str]


def test_each_part_has_its_line():
    text = "# top\nname: x\ninner:\n  one:\n    size: 3\nitems:\n  - a\n  - b\n"
    lines = yaml.parse(YAML, text).lines
    assert lines[("name",)] == 2
    assert lines[("inner", "one", "size")] == 5
    assert lines[("items", 1)] == 8


def test_json_has_line_numbers():
    text = (
        '{\n  "name": "x\\"}{",\n  "inner": {\n    "one": {"size": 3}\n  },\n  "items": [\n    "a",\n    []\n  ]\n}\n'
    )
    source = yaml.parse(JSON, text)
    assert source.lines[("inner", "one", "size")] == 4
    assert source.lines[("items", 1)] == 8
    assert source.line(("items", 1, "deeper")) == 8


def test_a_source_without_lines_names_the_file_alone():
    error = yaml.Source(YAML, "", {}, {}).error("wrong", ("a", 1, "b"))
    assert str(error) == "worker.yaml: a[1].b: wrong"


@pytest.mark.parametrize(
    ("text", "where", "message", "hint"),
    [
        ("nmae: x", "worker.yaml:1", "nmae: unknown field", "Did you mean 'name'?"),
        ("items: []", "worker.yaml:1", "name: this field is required", None),
        ("name: 3", "worker.yaml:1", "name: expected text (got 3)", None),
        ("name: x\nyes: 'on'", "worker.yaml:2", "yes: expected true or false (got 'on')", None),
        ("name: x\nitems: a", "worker.yaml:2", "items: expected a list (got 'a')", None),
        ("name: x\nitems: [a, {}]", "worker.yaml:2", "items[1]: expected text (got a mapping)", None),
        ("name: x\nitems:\n- a\n- []", "worker.yaml:4", "items[1]: expected text (got a list)", None),
        ("name: x\ninner: 1", "worker.yaml:2", "inner: expected a mapping (got 1)", "Write it like {mode: ...}."),
        ("name: x\none: 1", "worker.yaml:2", "one: expected a mapping (got 1)", "Write it like {mode: ...}."),
        (
            "name: x\none:\n  mode: rww",
            "worker.yaml:3",
            "one.mode: expected 'ro' or 'rw' (got 'rww')",
            "Did you mean 'rw'?",
        ),
        ("name: x\none:\n  mode: true", "worker.yaml:3", "one.mode: expected 'ro' or 'rw' (got true)", None),
        ("name: x\none:\n  mod: ro", "worker.yaml:3", "one.mod: unknown field", "Did you mean 'mode'?"),
        (
            "name: x\ninner:\n  a:\n    sise: 1",
            "worker.yaml:4",
            "inner.a.sise: unknown field",
            "Did you mean 'size'?",
        ),
        ("name: x\none:\n  size:", "worker.yaml:3", "one.size: expected a whole number (got empty)", None),
        ("- a", "worker.yaml:1", "expected a mapping, like `name: value`", None),
        ("", "worker.yaml:1", "expected a mapping, like `name: value`", None),
    ],
)
def test_an_error_has_place_message_and_hint(text: str, where: str, message: str, hint: str | None):
    error = load_error(YAML, text)
    assert (error.where, error.message, error.hint) == (where, message, hint)


def test_a_part_can_be_validated_alone():
    source = yaml.parse(YAML, "parts:\n  - mode: ro\n  - mode: xx\n")
    assert yaml.validate(Inner, source, ("parts", 0)).mode == "ro"
    with pytest.raises(InvalidFile, match=r"worker.yaml:3: parts\[1\].mode"):
        yaml.validate(Inner, source, ("parts", 1))


@pytest.mark.parametrize(
    ("path", "text", "where"),
    [
        (YAML, "a: 1\nb: [", "worker.yaml:2"),
        (YAML, "a: b: c", "worker.yaml:1"),
        (YAML, "a: 1\na: 2", "worker.yaml:2"),
        (YAML, "a: 1\n'1': 1\n1: 2", "worker.yaml:3"),
        (YAML, "a: 1\n--- \nb: 2", "worker.yaml:2"),
        (YAML, "a: \x01", "worker.yaml"),
        (YAML, "[" * 5000, "worker.yaml"),
        (YAML, 'a: "\\ud800"', "worker.yaml:1"),
        (JSON, '{\n"a": }', "worker.json:2"),
        (JSON, '{"a": 1,\n"a": 2}', "worker.json:2"),
        (JSON, '{"a": NaN}', "worker.json"),
        (JSON, "[" * 100_000, "worker.json"),
        (JSON, "[" * 100 + "]" * 100, "worker.json"),
        (JSON, '{"a": ' + "9" * 5000 + "}", "worker.json"),
        (JSON, '{"a": "\\ud800"}', "worker.json:1"),
        (JSON, "", "worker.json:1"),
    ],
)
def test_invalid_text_is_rejected_with_its_place(path: Path, text: str, where: str):
    with pytest.raises(InvalidFile) as caught:
        yaml.parse(path, text)
    assert (caught.value.where or "").startswith(where)


def test_a_small_file_cannot_expand_into_much_data():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(InvalidFile, match="more than 20,000 values"):
        yaml.parse(YAML, "\n".join(levels))


def test_an_anchor_may_be_used_again():
    assert yaml.parse(YAML, "a: &x 1\nb: &x 2\nc: *x\n").data == {"a": 1, "b": 2, "c": 2}


def test_tags_and_cycles_are_harmless():
    assert yaml.parse(YAML, "a: !!python/object/apply:os.system [x]").data == {"a": ["x"]}
    assert "a" in yaml.parse(YAML, "a: &x [*x]").data


def test_a_value_that_is_too_long_to_show_is_described():
    error = load_error(YAML, f"name: 0x{'f' * 5000}")
    assert error.message == "name: expected text (got a very long number)"
    assert len(load_error(YAML, f"name: x\nyes: {'f' * 5000}").message) < 200


def test_only_regular_readable_text_files_are_read(tmp_path: Path):
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"a: \xff")
    large = tmp_path / "l.yaml"
    large.write_bytes(b"#" * (yaml.MAX_BYTES + 1))
    fifo = tmp_path / "f.yaml"
    os.mkfifo(fifo)
    for path, message in (
        (tmp_path / "no.yaml", "file not found"),
        (tmp_path, "not a regular file"),
        (fifo, "not a regular file"),
        (binary, "offset 3"),
        (large, "larger than"),
        (tmp_path / "a\0b.yaml", "file not found|cannot read the file"),
        (tmp_path / ("n" * 300), "cannot read the file"),
    ):
        with pytest.raises(InvalidFile, match=message):
            yaml.read(path)


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert yaml.read(path).data == {"a": 1}


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 2]))
@settings(deadline=None)
def test_any_json_is_read_like_json(value: Any, indent: int | None):
    text = json.dumps(value, indent=indent)
    try:
        text.encode().decode("unicode_escape").encode()
    except UnicodeError:
        return
    assert yaml.parse(JSON, text).data == value


@given(st.text(alphabet=" \n\t:-[]{}'\"&*!|>%@`#?,abc01.~<=\\\r") | st.text())
@settings(deadline=None)
def test_any_text_is_data_or_an_error(text: str):
    for path in (YAML, JSON):
        with contextlib.suppress(GuildError):
            yaml.validate(Outer, yaml.parse(path, text))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": [1, -2.5, true, null, "x\\n\\u00e9"]},\n "c": [],\n "d": {}}',
        "{}\n",
        '{"a": [[["deep"]]],\n\n"b": 1e3}',
        "{a: plain, 'b': [single]}",
        '{"a": 1, # a comment\n"b": 2}',
    ],
)
def test_json_in_a_yaml_file_is_read_like_yaml(tmp_path: Path, text: str) -> None:
    # The space prevents the fast path for JSON.
    results = [yaml.parse(tmp_path / "a.yaml", before + text) for before in ("", " ")]
    assert results[0].data == results[1].data
    assert results[0].lines == results[1].lines


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN, "a": 1}', '{"a": ', '{"a": 1}}', '{"a": "\\ud800"}'])
def test_errors_of_json_in_a_yaml_file_are_those_of_yaml(tmp_path: Path, text: str) -> None:
    results: list[str] = []
    for before in ("", " "):
        with pytest.raises(InvalidFile) as caught:
            yaml.parse(tmp_path / "a.yaml", before + text)
        results.append(f"{caught.value.where}: {caught.value.message}")
    assert results[0] == results[1]
