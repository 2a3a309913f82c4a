"""The tools of a worker in a commission, and the desk at which their calls are carried out.

Made again under the same key, a call has no second effect: that is what `repeatable` says of these tools. Answers that
people have given meanwhile come with the result of the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import NotFulfilled, UsageError
from guildhall.jobs.toolbox import SUBMIT, carried_out, check_words, shaped
from guildhall.tools.define import tool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from guildhall.jobs.model import Asked
    from guildhall.tools.model import Tool, ToolCall, ToolResult

SERVER = "commission"
TOOLS = ("report_progress", "log_question", SUBMIT)
_SUMMARY = 20_000  # characters at most
_WORDS = 10_000
_RESULT = 1_000_000


def commission_tools(schema: Mapping[str, Any] | None) -> tuple[Tool, ...]:
    """The tools as the worker is shown them; `schema` is the form of its result."""
    verbs = _Verbs(cast("Desk", None), "")
    made = {name: tool(name=name, repeatable=True, runs_in="run")(getattr(verbs, name)) for name in TOOLS}
    made[SUBMIT] = shaped(made[SUBMIT], schema, verbs.submit_result)
    return tuple(made.values())


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where the calls of the run that carries out a commission are carried out."""

    progress: Callable[[str], Awaitable[None]]
    ask: Callable[[str, str, bool], Awaitable[str | None]]
    heard: Callable[[str], Awaitable[Sequence[Asked]]]
    submit: Callable[[Any], Awaitable[str]]  # what is to be known of it; NotFulfilled: what is missing

    async def execute(self, tool: Tool, call: ToolCall) -> ToolResult:
        return await carried_out(_Verbs(self, call.key), tool, call, self.heard)


class _Verbs:
    """One method for each tool; what the model is told of it is its docstring."""

    def __init__(self, desk: Desk, key: str) -> None:
        self._desk = desk
        self._key = key

    async def report_progress(self, summary: str) -> str:
        """Say how far you are: what is done, what you are at, what comes next. It replaces what you said before.

        Args:
            summary: A few sentences.
        """
        check_words("summary", summary, _SUMMARY)
        await self._desk.progress(summary)
        return "Noted."

    async def log_question(self, question: str) -> str:
        """Put a question to a person: something that you cannot find out and should not decide. You go on without the
        answer; if one comes while you work, you are told.

        Args:
            question: The question, understandable without having seen your work.
        """
        check_words("question", question, _WORDS)
        await self._desk.ask(self._key, question, False)
        return "The question is noted for a person. Go on without the answer."

    async def submit_result(self, output: str) -> str:
        """Submit the result of the commission, when all of the work is in the files. What has to be there is looked
        for and checked; if something is missing you are told, and submit again once it is there.

        Args:
            output: What was done and what came of it; the files speak for themselves.
        """
        if isinstance(output, str):  # with a schema it may be anything  # pyright: ignore[reportUnnecessaryIsInstance]
            check_words("output", output, _RESULT)
        try:
            known = await self._desk.submit(output)
        except NotFulfilled as error:
            raise UsageError(f"Not accepted: {error.message}", hint=error.hint) from None
        if known:
            return f"The result is submitted. {known} Otherwise nothing more is to be done: end with a short word."
        return "The result is submitted. Nothing more is to be done: end with a short word."
