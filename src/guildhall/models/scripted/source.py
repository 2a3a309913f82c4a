"""Scripted model (`script:FILE`): loads a YAML file and answers model calls from it.

docs/scripted-model.md describes the format. Patterns can take text from messages and put it into later arguments.
Does not read the section `test:`: `test_case` defines it, `hall.testrun` uses it.

Invariant: a source keeps no state. The query alone selects the run and the answer, so that answers are identical after
a crash, in a replay and in every wire format.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, model_validator

from guildhall.core import yaml
from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import ModelFailed, ScriptExhausted, ScriptMismatch
from guildhall.core.text import did_you_mean
from guildhall.models.model import (
    VOTER,
    OnText,
    Query,
    is_transient,
    pieces,
    sent_each_time,
    sent_text,
    system_text,
    text_of,
    tokens,
)
from guildhall.models.provider_errors import kind_of
from guildhall.models.scripted.test_case import Case, Strict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart
    from pydantic_ai.usage import RequestUsage


_TAKEN = re.compile(r"\$\{(\w+)\}")


def taken(patterns: Sequence[str | None], messages: Sequence[ModelMessage]) -> dict[str, str]:
    """What the named groups of these patterns found, each in what was sent before its answer. The last one counts."""
    found: dict[str, str] = {}
    if not any("(?P<" in pattern for pattern in patterns if pattern):
        return found
    for pattern, sent in zip(patterns, sent_each_time(messages), strict=False):
        if pattern and (match := re.search(pattern, sent)):
            found.update({name: text for name, text in match.groupdict().items() if text is not None})
    return found


def filled(value: Any, taken: Mapping[str, str]) -> Any:
    """Arguments with what was taken in the place of `${name}`. What no group is named after stays as it is."""
    if isinstance(value, str):
        return _TAKEN.sub(lambda match: taken.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [filled(one, taken) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: filled(one, taken) for name, one in cast("dict[str, Any]", value).items()}
    return value


ANYONE = "*"
_SHOWN = 2_000  # characters of what was sent, in the error about it
_BALLOT = re.compile(r'(?s)^Options: ([^\n]+)$.*?proposal_vote\(proposal="([^"\n]+)"', re.MULTILINE)
_ASK_AGAIN_AFTER = 0.05  # a scripted failure is over at once


class Price(Strict):
    """Dollars per million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat


class ScriptedUsage(Strict):
    """The tokens that an answer is said to have cost. `input` includes what came from, or went into, the cache."""

    input: NonNegativeInt
    output: NonNegativeInt
    cache_read: NonNegativeInt = 0
    cache_write: NonNegativeInt = 0

    @model_validator(mode="after")
    def _cache_is_input(self) -> ScriptedUsage:
        if self.cache_read + self.cache_write > self.input:
            raise ValueError("cache_read and cache_write are parts of input and cannot be more than it")
        return self


class ScriptedResult(Strict):
    """What a call gave back when it was recorded."""

    text: str
    is_error: bool = False


class ScriptedCall(Strict):
    """One call of a tool. Arguments that are text are what the model wrote, JSON or not."""

    call: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] | str | None = Field(default=None, alias="with")
    result: ScriptedResult | None = None  # for `guild test`: what came of it, where the call is not to be made again


class Answer(Strict):
    """One answer of the model, or one failure in its place."""

    sent: str | list[str] | None = None  # for `guild test`: what the model was newly told before it answered
    call: Annotated[str, Field(min_length=1)] | None = None
    arguments: dict[str, Any] | str | None = Field(default=None, alias="with")
    result: ScriptedResult | None = None
    calls: Annotated[list[ScriptedCall], Field(min_length=1)] | None = None
    say: str | None = None
    output: dict[str, Any] | None = None
    cut_off: bool = False  # at the longest that an answer may be
    sleep: Annotated[float, Field(ge=0, le=3600)] = 0
    usage: ScriptedUsage | None = None
    expect: str | None = None
    expect_system: str | None = None  # the same for the system prompt
    fail: Annotated[int, Field(ge=400, le=599)] | None = None

    @model_validator(mode="after")
    def _one_meaning(self) -> Answer:
        names = ("call", "calls", "say", "output", "usage", "expect", "expect_system", "sent")
        content = {name for name in names if getattr(self, name) is not None}
        if self.fail is not None and content:
            raise ValueError(f"`fail` stands alone: an answer that fails has no `{min(content)}`")
        if self.fail is None and not content & {"call", "calls", "say", "output"}:
            raise ValueError("an answer needs one of `say`, `call`, `calls`, `output` or `fail`")
        for name, value in (("with", self.arguments), ("result", self.result)):
            if value is not None and self.call is None:
                raise ValueError(f"`{name}` belongs to a `call`, and there is none here")
        if self.call is not None and self.calls is not None:
            raise ValueError("use either `call` or `calls`")
        _check_pattern("expect", self.expect or "")
        _check_pattern("expect_system", self.expect_system or "")
        return self

    @property
    def every_call(self) -> list[ScriptedCall]:
        if self.call is not None:
            return [ScriptedCall.model_validate({"call": self.call, "with": self.arguments, "result": self.result})]
        return list(self.calls or ())


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"`{name}` is not a regular expression: {error}") from None


def _a_run(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError("a run is a list of answers: write `- - say: ...` for the first answer of a run")
    return value


ScriptedRun = Annotated[list[Answer], BeforeValidator(_a_run)]


class Script(Strict):
    """The whole file."""

    price: Price | None = None
    accepts: list[Literal["image", "pdf"]] = Field(default=["image", "pdf"])
    workers: dict[str, list[ScriptedRun]]
    election: dict[str, str] = Field(default_factory=dict)
    repeat: bool = False
    test: Case | None = None

    def runs_of(self, worker: str) -> list[list[Answer]] | None:
        """The runs of a worker, or of anyone; None: nobody thought of it."""
        return self.workers.get(worker, self.workers.get(ANYONE))

    def run_of(self, worker: str, ordinal: int) -> list[Answer] | None:
        """The answers of the how-manieth run of a worker; None: there are none for it."""
        runs = self.runs_of(worker) or []
        if ordinal < len(runs):
            return runs[ordinal]
        return runs[-1] if self.repeat and runs else None


def load_script(path: Path) -> Script:
    """The script in this file; what is wrong with it is an error with its line, its field and the nearest name."""
    return yaml.validate(Script, yaml.read(path))


@dataclass(frozen=True)
class ScriptSource:
    """Answers from a script."""

    path: Path
    script: Script
    clock: Clock = field(default_factory=SystemClock)

    @property
    def name(self) -> str:
        return f"script:{self.path.name}"

    def cost(self, usage: RequestUsage) -> float | None:
        price = self.script.price
        if price is None:
            return None
        return (usage.input_tokens * price.input + usage.output_tokens * price.output) / 1_000_000

    def takes(self, media_type: str) -> bool:
        return ("pdf" if media_type == "application/pdf" else media_type.partition("/")[0]) in self.script.accepts

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        self._refuse_files(query)
        answer = self._find(query)
        self._expect(answer, query)
        if answer.sleep:
            await self.clock.sleep(answer.sleep)
        if answer.fail is not None:
            raise kind_of(answer.fail, "")(
                f"the scripted provider failed with HTTP {answer.fail}",
                transient=is_transient(answer.fail),
                status=answer.fail,
                retry_after=_ASK_AGAIN_AFTER,
                where=self._place(query),
            )
        for piece in pieces(answer.say or ""):
            on_text(piece)
        patterns = [entry.expect for entry in self._run(query) if entry.fail is None]
        return _response(self.name, answer, query, taken(patterns, query.messages))

    def _find(self, query: Query) -> Answer:
        """The entry that the question leads to: the worker's list, the run's answers, the step, the attempt."""
        run = self._run(query)
        failures: list[Answer] = []
        step = 0
        for entry in run:
            if entry.fail is not None:
                failures.append(entry)
                continue
            if step == query.step:
                return [*failures, entry][min(query.attempt, len(failures))]
            step += 1
            failures = []
        if step == query.step and query.attempt < len(failures):
            return failures[query.attempt]
        raise ScriptExhausted(
            f"the script is used up: it has {step} answers for this run, and answer {query.step + 1} was asked for",
            hint="Add the answer, or end the run with one that only has `say`.",
            where=self._place(query),
        )

    def _run(self, query: Query) -> list[Answer]:
        workers = self.script.workers
        if query.worker.startswith(VOTER) and query.worker not in workers:
            return self._vote(query)
        runs = self.script.runs_of(query.worker)
        if runs is None:
            raise ScriptExhausted(
                f"the script has no answers for the worker {query.worker!r}",
                hint=did_you_mean(query.worker, workers) or "Add it under `workers:`.",
                where=str(self.path),
            )
        if (run := self.script.run_of(query.worker, query.ordinal)) is not None:
            return run
        raise ScriptExhausted(
            f"the script is used up: it has {len(runs)} runs of {query.worker!r}, and run {query.ordinal + 1} began",
            hint="Add a run, or say `repeat: true` to use the last one again.",
            where=self._place(query),
        )

    def _vote(self, query: Query) -> list[Answer]:
        """An agent's vote: for the one that `election` names, else for the first one that stands for it."""
        ballot = _BALLOT.search(sent_text(query.messages[:1]))
        if ballot is None:
            raise ScriptExhausted("the script was asked for a vote, and shown no ballot", where=self._place(query))
        choice = self.script.election.get(query.worker.removeprefix(VOTER), ballot[1].split(", ")[0])
        vote = {"call": "proposal_vote", "with": {"proposal": ballot[2], "choice": choice}}
        return [Answer.model_validate(vote), Answer(say="voted")]

    def _refuse_files(self, query: Query) -> None:
        """As a provider does with what its model cannot look at."""
        from pydantic_ai.messages import BinaryContent

        for message in query.messages:
            for part in message.parts if message.kind == "request" else ():
                content = getattr(part, "content", None)
                for item in content if isinstance(content, list | tuple) else ():  # pyright: ignore[reportUnknownVariableType]
                    if isinstance(item, BinaryContent) and not self.takes(item.media_type):
                        text = f"the scripted model does not accept {item.media_type}"
                        raise ModelFailed(text, status=400, where=str(self.path))

    def _expect(self, answer: Answer, query: Query) -> None:
        for pattern, shown_in in ((answer.expect, sent_text), (answer.expect_system, system_text)):
            if pattern is None or re.search(pattern, sent := shown_in(query.messages)) is not None:
                continue
            shown = sent if len(sent) <= _SHOWN else f"{sent[:_SHOWN]} ... ({len(sent)} characters)"
            raise ScriptMismatch(
                f"the model was sent something else than the script expects\nexpected: {pattern}\nsent: {shown}",
                where=self._place(query),
            )

    def _place(self, query: Query) -> str:
        return f"{self.path}, worker {query.worker}, run {query.ordinal + 1}, answer {query.step + 1}"


def _response(name: str, answer: Answer, query: Query, taken: Mapping[str, str]) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    parts: list[ModelResponsePart] = []
    if answer.say is not None:
        parts.append(TextPart(answer.say))
    calls: list[tuple[str, Any]] = [(call.call, filled(call.arguments or {}, taken)) for call in answer.every_call]
    if answer.output is not None:
        if query.parameters.output_tools:
            calls.append((query.parameters.output_tools[0].name, answer.output))
        else:
            parts.append(TextPart(json.dumps(answer.output, ensure_ascii=False)))
    parts += [ToolCallPart(*call, f"call_{query.step}_{index}") for index, call in enumerate(calls)]
    return ModelResponse(
        parts=parts,
        usage=_usage(answer, query, parts),
        model_name=name,
        finish_reason="length" if answer.cut_off else "tool_call" if calls else "stop",
    )


def _usage(answer: Answer, query: Query, parts: Sequence[ModelResponsePart]) -> RequestUsage:
    from pydantic_ai.usage import RequestUsage

    if given := answer.usage:
        return RequestUsage(
            input_tokens=given.input,
            output_tokens=given.output,
            cache_read_tokens=given.cache_read,
            cache_write_tokens=given.cache_write,
        )
    return RequestUsage(
        input_tokens=tokens(sum(_length(message) for message in query.messages)),
        output_tokens=tokens(sum(_part_length(part) for part in parts)),
    )


def _length(message: ModelMessage) -> int:
    if message.kind == "response":
        return sum(_part_length(part) for part in message.parts)
    return len(message.instructions or "") + sum(len(text_of(part)) for part in message.parts)


def _part_length(part: ModelResponsePart) -> int:
    if part.part_kind == "tool-call":
        return len(part.tool_name) + len(part.args_as_json_str())
    content = getattr(part, "content", None)
    return len(content) if isinstance(content, str) else 0
