"""YAML output: reads back as the same data, and is laid out for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core import yaml
from guildhall.core.yaml_writer import dump

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LINES = st.lists(st.text(" \tab:#-{}[]'\"|>&*!%@`\\\u00e9\u2028\x85\r\ufeff", max_size=12), max_size=6).map("\n".join)
WORDS = st.lists(st.sampled_from(["a", "word", "  ", "#x", "- y", "z:", "'", "é" * 9]), max_size=80).map(" ".join)
SCALARS = st.one_of(
    TEXT, LINES, WORDS, st.booleans(), st.none(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | LINES, inner, max_size=4), max_leaves=12
)


def read(text: str) -> Any:
    return yaml.parse(Path("written.yaml"), text).data


@given(st.dictionaries(TEXT | LINES, VALUES, min_size=1, max_size=4))
def test_written_data_reads_back_unchanged(data: dict[str, Any]) -> None:
    assert read(dump(data)) == data


@given(st.one_of(TEXT, LINES, WORDS))
def test_text_reads_back_unchanged_in_every_position(text: str) -> None:
    data = {"say": text, "list": [text, [text, {"x": text}]], "with": {"content": text, "more": [text]}, text: 1}
    assert read(dump(data)) == data


@pytest.mark.parametrize(
    "text",
    ["", " ", "\n", "\n\n", "a\n", "a\n\n\n", "  a\nb", "\n a", "\ta\nb", "a\n\tb", "a \nb ", "\0", "\x7f", "\u2028",
     "\ufeff", "true", "no", "~", "1_000", "0x1f", "2026-01-01", "1e3", ".5", "-", "---", "...", "# no", "a: b",
     "a #b", "{", "}", "@x", "`", "%", "!tag", "&a", "*a", "| x", "> x", "'", '"', "\\", "x" * 5000, "a " * 900 + "a",
     "=", "<<", "null", "NaN", "a\r\nb", "\U0001f600", "😀\n😀", "a\n...\nb", "a\n---\nb"],
)  # fmt: skip
def test_text_that_yaml_could_misread_reads_back_unchanged(text: str) -> None:
    data = {"text": text, "list": [text], "flow": {"a": text}, "deep": {"a": [{"b": text, "c": "x\ny"}]}}
    assert read(dump(data)) == data


def test_output_uses_blocks_and_short_flow_mappings() -> None:
    data = {
        "test": {"worker": "greeter", "input": "Greet everybody in notes/team.md"},
        "workers": {
            "greeter": [
                [
                    {"call": "write", "with": {"path": "a.md", "content": "one\ntwo\n"}, "usage": {"input": 1}},
                    {"say": "word " * 40 + "end"},
                ]
            ]
        },
    }
    assert dump(data) == (
        "test: {worker: greeter, input: Greet everybody in notes/team.md}\n"
        "workers:\n"
        "  greeter:\n"
        "    - - call: write\n"
        "        with:\n"
        "          path: a.md\n"
        "          content: |\n"
        "            one\n"
        "            two\n"
        "        usage: {input: 1}\n"
        "      - say: >-\n"
        "          " + "word " * 19 + "word\n"
        "          " + "word " * 19 + "word\n"
        "          end\n"
    )
