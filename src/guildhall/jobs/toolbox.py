"""The tools of a worker in a job, and the desk at which their calls are carried out.

They write the job's directory and nothing else. Made again under the same key, a call has no second effect: that is
what `repeatable` says of these tools. Answers that people have given meanwhile come with the result of the next call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, UsageError
from guildhall.jobs.contract import fulfil
from guildhall.jobs.model import Decided, artifact_path
from guildhall.runs.model import is_text
from guildhall.tools.define import TypedHandler, invoke, tool
from guildhall.tools.model import Text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from guildhall.jobs.folder import JobFolder
    from guildhall.jobs.model import Asked
    from guildhall.runs.purpose import Contract
    from guildhall.tools.model import Tool, ToolCall, ToolResult

SERVER = "job"
SUBMIT = "submit_result"
TOOLS = {
    "update_summary": frozenset[str](),
    "record_decision": frozenset[str](),
    "log_question": frozenset[str](),
    "store_memory": frozenset({"memory.write"}),
    "write_artifact": frozenset[str](),
    SUBMIT: frozenset[str](),
}
_SUMMARY = 20_000  # characters at most
_WORDS = 10_000
_FILE = 10_000_000


def job_tools(contract: Contract, *, remembers: bool) -> tuple[Tool, ...]:
    """The tools as the worker is shown them; one that `remembers` nothing has no store_memory."""
    verbs = _Verbs(cast("Desk", None), "")
    names = [name for name in TOOLS if remembers or name != "store_memory"]
    made = {name: _tool(verbs, name) for name in names}
    made[SUBMIT] = shaped(made[SUBMIT], contract.schema, verbs.submit_result)
    return tuple(made.values())


def _tool(verbs: _Verbs, name: str) -> Tool:
    return tool(name=name, capabilities=TOOLS[name], repeatable=True, runs_in="run")(getattr(verbs, name))


def shaped(plain: Tool, schema: Mapping[str, Any] | None, handler: Callable[..., Any]) -> Tool:
    """The tool that takes a result: its form is the one that the worker's file demands."""
    if schema is None:
        return plain
    inner = {name: part for name, part in schema.items() if name not in ("$schema", "$id", "$defs", "definitions")}
    shape = cast("dict[str, Any]", plain.input_schema)
    outer = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    if _refers_elsewhere(inner, outer):  # to places that are others inside a larger schema; the desk checks it all
        inner = {"type": "object", "description": "Its form is told when it does not fit."}
    properties = {**shape["properties"], "output": inner}
    return replace(plain, input_schema={**shape, **outer, "properties": properties}, handler=handler)


def _refers_elsewhere(*parts: Any) -> bool:
    level = list(parts)
    while level:
        part = level.pop()
        if isinstance(part, dict):
            for name, value in cast("dict[str, Any]", part).items():
                if name == "$ref" and not str(value).startswith(("#/$defs/", "#/definitions/")):
                    return True
                level.append(value)
        elif isinstance(part, list):
            level += cast("list[Any]", part)
    return False


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where the calls of the run that does a job are carried out."""

    folder: JobFolder
    contract: Contract
    writing: asyncio.Lock  # calls side by side write one after another
    ask: Callable[[str, str, bool], Awaitable[str | None]]  # key, question, whether to wait: the answer, if it waited
    remember: Callable[[str, str], Awaitable[ToolResult]]  # key, content
    heard: Callable[[str], Awaitable[Sequence[Asked]]]  # by the key of a call: what people have answered meanwhile

    async def execute(self, tool: Tool, call: ToolCall) -> ToolResult:
        """The result of a call, and what was answered meanwhile."""
        return await carried_out(_Verbs(self, call.key), tool, call, self.heard)

    async def write(self, write: Callable[[JobFolder], object]) -> None:
        """Changes the directory. What is wrong with it is told without where it is: that is nothing for a model."""
        try:
            async with self.writing:
                await asyncio.to_thread(write, self.folder)
        except (Conflict, InvalidFile) as error:
            raise Conflict(f"Not done: {error.message}") from None


async def by_method(verbs: object, tool: Tool, call: ToolCall) -> ToolResult:
    """The result of a call that the method of its name carries out."""
    bound = getattr(verbs, tool.name)
    known = tool.handler
    handler = TypedHandler(bound, known.form) if isinstance(known, TypedHandler) else bound
    return await invoke(replace(tool, handler=handler), call.arguments or {})


async def carried_out(
    verbs: object, tool: Tool, call: ToolCall, heard: Callable[[str], Awaitable[Sequence[Asked]]]
) -> ToolResult:
    """The same, with what was answered meanwhile."""
    result = await by_method(verbs, tool, call)
    answers = await heard(call.key)
    return replace(result, content=(*result.content, *map(_told, answers)))


def _told(asked: Asked) -> Text:
    return Text(f"A person has answered your question {asked.question!r}: {asked.answer}")


class _Verbs:
    """One method for each tool; what the model is told of it is its docstring."""

    def __init__(self, desk: Desk, key: str) -> None:
        self._desk = desk
        self._key = key

    async def update_summary(self, summary: str) -> str:
        """Say how far you are: what is done, what you are at, what comes next. It replaces what you said before, and
        is all that others see of your work until there is a result.

        Args:
            summary: A few sentences.
        """
        check_words("summary", summary, _SUMMARY)
        await self._desk.write(lambda folder: folder.summarise(summary))
        return "Noted."

    async def record_decision(self, question: str, decision: str, reasoning: str) -> str:
        """Record a judgement call that you made on your own, so that a person can review it later.

        Args:
            question: What had to be decided.
            decision: What you decided.
            reasoning: Why.
        """
        for name, text in (("question", question), ("decision", decision), ("reasoning", reasoning)):
            check_words(name, text, _WORDS)
        decided = Decided(question=question, decision=decision, reasoning=reasoning)
        await self._desk.write(lambda folder: folder.decide(self._key, decided))
        return "Recorded."

    async def log_question(self, question: str, wait: bool = False) -> str:
        """Put a question to a person: something that you cannot find out and should not decide. You go on without the
        answer; if one comes while you work, you are told.

        Args:
            question: The question, understandable without having seen your work.
            wait: true: go on only with the answer, which may take hours.
        """
        check_words("question", question, _WORDS)
        answer = await self._desk.ask(self._key, question, wait)
        if wait:
            return "Nobody will answer: decide it yourself." if answer is None else f"A person has answered: {answer}"
        return "The question is noted for a person. Go on without the answer."

    async def store_memory(self, key: str, content: str) -> ToolResult:
        """Save a note for later jobs: a fact, a preference of the user, an approach that worked. Storing an existing
        key replaces its whole content.

        Args:
            key: Short name such as build-commands. Letters, digits, "_", "-" and "."; no slash, no file suffix.
            content: The whole note. Never save passwords or API keys.
        """
        return await self._desk.remember(key, content)

    async def write_artifact(self, path: str, content: str) -> str:
        """Write a file that belongs to the result. Writing a path again replaces the file.

        Args:
            path: Its name, such as report.md or tables/prices.csv.
            content: All of its text.
        """
        place = artifact_path(path)
        check_words("content", content, _FILE, empty=True)
        await self._desk.write(lambda folder: folder.write_artifact(place, content))
        return f"Written: artifacts/{place}"

    async def submit_result(self, output: str, artifacts: list[str] | None = None) -> str:
        """Submit the result of the job, when all of it is there. Files that belong to it are written before, with
        write_artifact. Submitted again, it replaces what was submitted before.

        Args:
            output: The whole result; whoever asked for the job reads this and the artifacts, and nothing else.
            artifacts: The files that belong to it, to be sure that they are there.
        """
        desk = self._desk
        if isinstance(output, str):  # with a schema it may be anything  # pyright: ignore[reportUnnecessaryIsInstance]
            check_words("output", output, _FILE)
        named = tuple(map(artifact_path, artifacts or ()))
        contract = replace(desk.contract, artifacts=tuple(dict.fromkeys((*desk.contract.artifacts, *named))))
        try:
            await desk.write(lambda folder: folder.give(fulfil(folder, contract, output)))
        except NotFulfilled as error:
            raise UsageError(f"Not accepted: {error.message}", hint=error.hint) from None
        return "The result is submitted. Nothing more is to be done: end with a short word."


def check_words(name: str, text: str, most: int, *, empty: bool = False) -> None:
    """Refuses what a model has written where it is no text, or too much of it."""
    if not is_text(text):
        raise UsageError(f"{name}: there is a NUL in it, or half a character")
    if not empty and not text.strip():
        raise UsageError(f"{name}: it is empty")
    if len(text) > most:
        raise UsageError(f"{name}: it is longer than {most:,} characters")


def submitted(entries: Sequence[Any]) -> bool:
    """Whether a result was submitted and taken, by the entries of a run's journal."""
    return any(not result["is_error"] for result in _results(entries))


def not_taken(entries: Sequence[Any]) -> str | None:
    """Why the result was not taken that was submitted last; None: none was, or it was taken."""
    last = (_results(entries) or [None])[-1]
    if last is None or not last["is_error"]:
        return None
    return str(last["content"][0].get("text", "")) if last["content"] else ""


def _results(entries: Sequence[Any]) -> list[Mapping[str, Any]]:
    """What submit_result gave, call by call, those that were refused before they were made among them."""
    begun = ("tool_started", "tool_refused")
    tools: Mapping[str, str] = {e.key: e.data["tool"] for e in entries if e.kind in begun and e.key}
    ends = ("tool_ended", "tool_refused")
    return [e.data["result"] for e in entries if e.kind in ends and tools.get(e.key) == SUBMIT]
