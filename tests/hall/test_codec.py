"""The codec: typed values and errors as JSON and back."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core import errors
from guildhall.core.errors import GuildError, LimitReached, MergeConflict, UsageError
from guildhall.core.request_frame import Frame
from guildhall.hall.client.codec import decode, decode_error, encode, fields_of, get_verb
from guildhall.hall.client.interface import VERBS
from guildhall.runs.model import Answer, Question, RunRequest, Usage
from guildhall.runs.purpose import CallPurpose


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_type_that_a_verb_names_is_known(name: str) -> None:
    """Evaluate every annotation of a verb, and of the dataclasses that it names."""
    known, seen = get_verb(name), set[Any]()

    def visit(kind: Any) -> None:
        if kind in seen:
            return
        seen.add(kind)
        for part in typing.get_args(kind):
            if not isinstance(part, str):
                visit(part)
        if dataclasses.is_dataclass(kind):
            for part, _ in fields_of(typing.cast("type", kind)).values():
                visit(part)

    for kind in (*known.parameters.values(), known.result):
        visit(kind)
    assert seen
    assert known.required <= set(known.parameters)


@dataclass(frozen=True, kw_only=True)
class _Inner:
    path: Path
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class _Outer:
    name: str
    inner: _Inner | None = None
    many: tuple[_Inner, ...] = ()
    pair: tuple[int, str] = (1, "x")
    names: frozenset[str] = frozenset()
    data: bytes = b""
    numbers: typing.Mapping[str, float] = field(default_factory=dict)
    problem: GuildError | None = None
    whatever: Any = None


def round_trip(value: Any) -> Any:
    return decode(type(value), json.loads(json.dumps(encode(value))))


@given(
    st.builds(
        _Outer,
        name=st.text(),
        inner=st.none() | st.builds(_Inner, path=st.sampled_from([Path("/a/b"), Path("c d/é")])),
        many=st.lists(st.builds(_Inner, path=st.just(Path("/x")), kind=st.sampled_from(["a", "b"]))).map(tuple),
        names=st.frozensets(st.text()),
        data=st.binary(),
        numbers=st.dictionaries(st.text(), st.floats(allow_nan=False)),
        whatever=st.recursive(st.none() | st.booleans() | st.text(), lambda part: st.lists(part), max_leaves=5),
    )
)
def test_a_value_is_equal_after_a_round_trip(value: _Outer) -> None:
    assert round_trip(value) == value


def test_requests_and_answers_are_equal_after_a_round_trip() -> None:
    for value in (
        RunRequest(
            worker="w",
            input="half a pair \udc80",
            attachments=("a", "b"),
            budget=1.5,
            purpose=CallPurpose(worker="x", input_data={"x": [1, None]}),
        ),
        Frame(cwd=Path("/a"), root=Path("/"), env={"A": "b"}, keys={"ANTHROPIC_API_KEY": "k"}, interactive=True),
        Answer(choice="yes", note=None),
        Question(title="t", body="b", choices=("yes", "no")),
        Usage(turns=1, cost_usd=None),
    ):
        assert round_trip(value) == value


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (str, 1, "expected text, got 1"),
        (int, True, "expected a whole number, got True"),
        (int, 1.0, "expected a whole number"),
        (float, "1", "expected a number"),
        (bool, 0, "expected true or false"),
        (Path, "", "expected a path"),
        (Path, "a\0b", "expected a path"),
        (Path, {}, "expected a path, got an object"),
        (list[str], "ab", "expected a list"),
        (list[str], ["a", 1], r"\[1\]: expected text"),
        (dict[str, int], [], "expected an object, got a list"),
        (tuple[int, str], [1], "expected 2 parts"),
        (bytes, "%%%", "expected bytes"),
        (bytes, 5, "expected bytes"),
        (Literal["a", "b"], "c", "expected one of a, b"),
        (Literal["a", "b"], [], "expected one of"),
        (str | None, 5, "expected text"),
        (_Outer, [], "expected an object"),
        (_Outer, {}, "name: this field is required"),
        (_Outer, {"name": "x", "nam": 1}, "nam: unknown field"),
        (_Outer, {"name": "x", "inner": {"path": 1}}, "inner.path: expected a path"),
        (_Outer, {"name": "x", "many": [{"path": "/"}, {}]}, r"many\[1\].path: this field is required"),
        (
            RunRequest,
            {"worker": "w", "input": "i", "max_turns": 0},
            "max_turns: expected a whole number above 0, got 0",
        ),
    ],
)
def test_a_wrong_type_is_reported_with_its_place(kind: Any, data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode(kind, data)


def every_error() -> list[type[GuildError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GuildError)]


@pytest.mark.parametrize("kind", every_error())
def test_an_error_keeps_its_class(kind: type[GuildError]) -> None:
    error = decode_error(json.loads(json.dumps(encode(kind("what", hint="do this", where="file:3")))))
    assert type(error) is kind
    assert (error.message, error.hint, error.where) == ("what", "do this", "file:3")


def test_an_error_keeps_its_extra_fields() -> None:
    error = decode_error(encode(LimitReached("enough", limit="budget", run="r-1")))
    assert isinstance(error, LimitReached)
    assert (error.limit, error.run) == ("budget", "r-1")
    clash = decode_error(json.loads(json.dumps(encode(MergeConflict("both", files=("a.txt", "b.txt"))))))
    assert isinstance(clash, MergeConflict)
    assert clash.files == ("a.txt", "b.txt")


@pytest.mark.parametrize("data", [None, [], "x", {}, {"code": "of tomorrow", "message": 5}, {"code": ["usage"]}])
def test_invalid_error_data_becomes_a_guild_error(data: Any) -> None:
    assert type(decode_error(data)) is GuildError
