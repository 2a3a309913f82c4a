"""Tools from typed functions: schemas, arguments, results and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from guildhall.core.errors import Refused, ToolUnavailable
from guildhall.tools.definition import argument_problem, clean, invoke, to_result, tool
from guildhall.tools.model import Blob, Text, Tool, Toolbox, ToolResult

if TYPE_CHECKING:
    from decimal import Decimal


class Point(BaseModel):
    x: int
    y: int = 0


class Picky(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def explode(cls, value: str) -> str:
        raise RuntimeError("broken validator")


def call(made: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(invoke(made, arguments))


@tool(capabilities={"net"}, repeatable=True)
def move(point: Point, how: Literal["fast", "slow"] = "slow", times: Annotated[int, Field(ge=1)] = 1) -> str:
    """Moves
    a point.

    More that only people read.

    Args:
        point: Where to, on the
            wide plane.
        how (str): The pace.

    Returns:
        times: not a parameter's description
    """
    assert isinstance(point, Point)
    return f"{point.x},{point.y} {how} {times}"


@pytest.mark.req("WKR-6")
def test_a_tool_has_name_description_typed_schema_and_handler_and_a_toolbox_groups_them() -> None:
    assert move.name == "move"
    assert move.description == "Moves a point."
    assert move.capabilities == {"net"}
    assert move.repeatable
    assert move.runs_in == "host"
    schema = move.input_schema
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["point"]
    assert schema["properties"]["point"]["description"] == "Where to, on the wide plane."
    assert schema["properties"]["how"] == {
        "description": "The pace.",
        "enum": ["fast", "slow"],
        "type": "string",
        "default": "slow",
    }
    assert schema["properties"]["times"] == {"minimum": 1, "type": "integer", "default": 1}
    json.dumps(move.as_shown())
    assert call(move, point={"x": "3"}, how="fast").text == "3,0 fast 1"
    assert argument_problem(move, {"point": {"x": 1}}) is None
    box = Toolbox("space", move)
    assert [each.name for each in box.tools] == ["move"]


def test_annotated_descriptions_take_precedence_and_unusual_names_work() -> None:
    @tool(name="odd-names", runs_in="hall")
    def f(
        copy: Annotated[str, Field(description="the real one")], json: int, model_x: bool = True, _low: None = None
    ) -> str:
        """Odd.

        Args:
            copy: not this one
        """
        return f"{copy}{json}{model_x}"

    assert f.runs_in == "hall"
    assert f.input_schema["properties"]["copy"]["description"] == "the real one"
    assert f.input_schema["required"] == ["copy", "json"]
    assert call(f, copy="a", json=1).text == "a1True"
    assert f.handler(copy="b", json=2) == "b2True"


def test_an_async_function_without_parameters_is_a_tool() -> None:
    @tool
    async def ping() -> dict[str, int]:
        """Pings."""
        await asyncio.sleep(0)
        return {"pong": 1}

    assert ping.input_schema == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert call(ping).text == '{"pong":1}'
    assert "The tool has no arguments" in call(ping, x=1).text


def test_a_plain_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        return "later"

    @tool
    def soon() -> Any:
        """Soon."""
        return later()

    assert call(soon).text == "later"


def varargs(*names: str) -> None:
    """Doc."""


def keywords(**names: str) -> None:
    """Doc."""


def positional(name: str, /) -> None:
    """Doc."""


def without_type(name) -> None:  # type: ignore[no-untyped-def]
    """Doc."""


def without_docstring(name: str) -> None: ...


def only_args(name: str) -> None:
    """Args:
    name: what
    """


def unresolved_type(amount: Decimal) -> None:
    """Doc."""


def field_default(n: int = Field(default=3)) -> None:
    """Doc."""


def opaque(name: str, thing: asyncio.Task[str]) -> None:
    """Doc."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (varargs, "*names"),
        (keywords, "**names"),
        (positional, "positional-only"),
        (without_type, "'name' has no type"),
        (without_docstring, "no docstring"),
        (only_args, "no docstring"),
        (unresolved_type, "Decimal"),
        (field_default, "Annotated"),
        (opaque, "the tool 'opaque': the type of the parameter 'thing' has no JSON schema\nUse str, int"),
        (lambda: None, "invalid tool name"),
        (functools.partial(varargs), "invalid tool name"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_rejected_with_the_reason(function: Any, message: str) -> None:
    with pytest.raises(ToolUnavailable, match="tool") as caught:
        tool(function)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capabilities": {"netz"}}, "Did you mean 'net'?"),
        ({"capabilities": "net"}, 'capabilities={"net"}'),
        ({"name": "no spaces"}, "invalid tool name"),
        ({"name": "x" * 65}, "at most 64"),
    ],
)
def test_invalid_options_are_rejected_with_the_reason(options: dict[str, Any], message: str) -> None:
    def fine() -> None:
        """Fine."""

    with pytest.raises(ToolUnavailable) as caught:
        tool(**options)(fine)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "move: point: this argument is required"),
        ({"point": {"x": "far"}}, "move: point.x: expected a whole number"),
        ({"point": {"x": 1}, "how": "quick"}, "how: must be 'fast' or 'slow' (got 'quick')"),
        ({"point": {"x": 1}, "time": 2}, "time: unknown argument. Did you mean 'times'?"),
        ({"point": {"x": 1}, "times": 0}, "times: must be greater than or equal to 1"),
        ({"point": "x" * 5000}, "..."),
        ({"\ud800": 1}, "arguments"),
        ([1], "not an object"),
        (None, "not an object"),
    ],
)
def test_an_invalid_argument_gives_an_error_result_that_names_it(arguments: Any, message: str) -> None:
    result = asyncio.run(invoke(move, arguments))
    assert result.is_error
    assert message in result.text
    assert result.text == argument_problem(move, arguments)
    assert len(result.text) < 1500
    result.text.encode()


def test_a_failing_validator_gives_an_error_result() -> None:
    @tool
    def picky(picky: Picky) -> None:
        """Picky."""

    assert "cannot check the arguments: RuntimeError" in call(picky, picky={"word": "a"}).text


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("wrong"), "ValueError: wrong"),
        (KeyError(), "KeyError"),
        (Refused("no entry", hint="Go round."), "no entry\nGo round."),
        (StopIteration("end"), "StopIteration: end"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "CancelledError"),
        (Unprintable(), "Unprintable"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (RecursionError(), "RecursionError"),
    ],
)
def test_an_exception_of_a_handler_gives_an_error_result(error: BaseException, message: str) -> None:
    @tool
    def plain() -> None:
        """Plain."""
        raise error

    @tool
    async def later() -> None:
        """Later."""
        raise error

    assert call(plain) == ToolResult.error(message)
    if not isinstance(error, StopIteration):  # Python turns it into a RuntimeError
        assert call(later) == ToolResult.error(message)


def test_interrupts_and_cancellation_are_not_caught() -> None:
    @tool
    async def interrupt() -> None:
        """Interrupted."""
        raise KeyboardInterrupt

    @tool
    async def wait() -> None:
        """Waits."""
        await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(invoke(wait, {}))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(KeyboardInterrupt):
        call(interrupt)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


@dataclasses.dataclass
class Pair:
    a: int
    b: str


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", ToolResult.of("text")),
        ("a\udc80b\0", ToolResult.of("a\ufffdb\0")),
        (None, ToolResult.of("done")),
        (ToolResult.error("\ud800"), ToolResult.error("\ufffd")),
        (Text("t"), ToolResult.of("t")),
        (Blob(b"1", "image/png"), ToolResult(content=(Blob(b"1", "image/png"),))),
        ([Text("t"), Blob(b"1", "x/y")], ToolResult(content=(Text("t"), Blob(b"1", "x/y")))),
        ([], ToolResult.of("[]")),
        ([1, Text("t")], ToolResult.of('[1,{"text":"t"}]')),
        (True, ToolResult.of("true")),
        (1.5, ToolResult.of("1.5")),
        (Point(x=1), ToolResult.of('{"x":1,"y":0}')),
        (Pair(1, "b"), ToolResult.of('{"a":1,"b":"b"}')),
        ({"k": "\ud800"}, ToolResult.of('{"k": "\\ud800"}')),
    ],
)
def test_a_return_value_becomes_a_result(value: Any, expected: ToolResult) -> None:
    assert to_result(value) == expected


@pytest.mark.parametrize("value", [object(), b"\xff", LOOP, {"x": object()}])
def test_a_value_without_json_form_gives_an_error_result(value: Any) -> None:
    result = to_result(value)
    assert result.is_error
    assert "cannot be converted to JSON" in result.text


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_clean_text_can_be_encoded(text: str) -> None:
    clean(text).encode()
    assert clean(clean(text)) == clean(text)


def make_tool(schema: dict[str, Any], handler: Any = None) -> Tool:
    return Tool(name="hand", description="By hand.", input_schema=schema, handler=handler or (lambda **kw: kw))


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "deep": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_arguments_of_a_tool_with_a_schema_are_validated() -> None:
    made = make_tool(SCHEMA)
    assert call(made, n=1).text == '{"n":1}'
    assert "n: 'x' is not of type 'integer'" in call(made, n="x").text
    assert "'n' is a required property" in call(made).text
    assert "deep[1]: 3 is not of type 'string'" in call(made, n=1, deep=["a", 3]).text
    assert call(made, n=1, more=2).is_error
    assert len(call(made, n="x" * 9000).text) < 600

    class Later:
        async def __call__(self, n: int) -> int:
            return n + 1

    assert call(make_tool(SCHEMA, Later()), n=1).text == "2"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:1/never-asked.json"},
        {"properties": {"n": {"$ref": "#/nowhere"}}},
        {"$ref": "#"},
        {"properties": {"n": object()}},
    ],
)
def test_an_invalid_schema_gives_an_error_result(schema: dict[str, Any]) -> None:
    result = call(make_tool(schema), n="x")
    assert result.is_error
    assert result.text.startswith("hand: ")


def test_a_handler_with_other_parameters_gives_an_error_result() -> None:
    assert "TypeError" in call(make_tool({"type": "object"}, lambda n: n), m=1).text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["point", "how", "times", "n", "deep", "\ud800", "x\0"]), JSON, max_size=4))
def test_arbitrary_arguments_always_give_a_result(arguments: dict[str, Any]) -> None:
    for made in (move, make_tool(SCHEMA)):
        asyncio.run(invoke(made, arguments)).text.encode()
