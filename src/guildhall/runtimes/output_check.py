"""Output check: decides if a model answer ends a run, and validates the output against the schema.

Without a schema, the output is text without a tool call. With a schema, it is a call of `final_result` that fits.
After three unusable answers in a row the run fails. A tool call in between resets the count.
Does not ask the model again: the runtimes do, all by this rule.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from guildhall.core.errors import RuntimeFailed
from guildhall.tools.model import is_shallow

if TYPE_CHECKING:
    from collections.abc import Mapping


OUTPUT_TOOL = "final_result"
_MISSES = 3  # answers in a row that are empty, cut off, or do not fit the schema
_CUT_OFF = "The answer was cut off at its maximum length, and nothing of it was done. Answer in fewer words at once."


class OutputJudge:
    """Text without a call is an output, or, where there is a schema, a final result that fits it."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._validator: Any = None
        self._misses: list[str] = []
        if schema is not None:
            from jsonschema.validators import validator_for
            from referencing.jsonschema import EMPTY_REGISTRY

            self._validator = validator_for(schema)(schema, registry=EMPTY_REGISTRY)  # it looks nothing up elsewhere

    def expects(self, call: ToolCallPart) -> bool:
        return self._validator is not None and call.tool_name == OUTPUT_TOOL

    def read(self, response: ModelResponse, final: list[ToolCallPart]) -> tuple[str | None, Any]:
        """What is wrong with the answer, if anything, and its output."""
        if response.finish_reason == "length":  # what it meant to call is not known to the end
            return _CUT_OFF, None
        if self._validator is None:
            text = text_of(response)
            return (None, text) if text.strip() else ("The answer was empty. Answer in text, or call a tool.", None)
        if len(final) != 1:
            return f"Give the result by calling {OUTPUT_TOOL} once.", None
        output = arguments_of(final[0])
        if output is None:
            return f"The arguments of {OUTPUT_TOOL} are not a JSON object.", None
        for error in self._validator.iter_errors(output):
            place = error.json_path.removeprefix("$").lstrip(".") or "the result"
            return f"{place}: {error.message}", None
        return None, output

    def gives_up(self) -> bool:
        """Whether one more answer that is not usable is once too often: a conversation is then the person's again."""
        return len(self._misses) == _MISSES - 1

    def missed(self, problem: str) -> None:
        """An answer that was meant to be the end was not usable. Raises when that is once too often."""
        self._misses.append(problem)
        if len(self._misses) == _MISSES:
            reasons = "; ".join(dict.fromkeys(self._misses))
            raise RuntimeFailed(f"the model's answer was not usable {_MISSES} times in a row: {reasons}")

    def went_on(self) -> None:
        """The model has called tools instead: what was missed before does not count."""
        self._misses.clear()


def text_of(response: ModelResponse) -> str:
    """What the model has said in an answer."""
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def arguments_of(call: ToolCallPart) -> Mapping[str, Any] | None:
    """The arguments of a call; None when the model did not write a JSON object."""
    arguments: Any = {} if call.args is None else call.args
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        read: Any = json.loads(text or "{}", parse_constant=_no_number)
    except (ValueError, TypeError, RecursionError):
        return None
    return cast("dict[str, Any]", read) if isinstance(read, dict) and is_shallow(read) else None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")  # and not equal to itself: the record could never be compared with it
