"""Scripted model (`script:FILE`): loads a YAML file and answers model calls from it.

docs/scripted-model.md describes the format. Patterns can take text from messages and put it into later arguments.
Does not read the section `test:`: `test_section` defines it, `hall.testrun` uses it.

Invariant: a source keeps no state. The query alone selects the run and the answer, so that answers are identical after
a crash, in a replay and in every wire format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, model_validator

from guildhall.core import yaml
from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import ModelFailed, ScriptExhausted, ScriptMismatch
from guildhall.core.text_checks import did_you_mean
from guildhall.models.model import (
    VOTER_PREFIX,
    OnText,
    Query,
    estimate_tokens,
    inputs_by_step,
    is_transient,
    latest_input,
    part_text,
    split_text,
    system_text,
)
from guildhall.models.provider_errors import error_class
from guildhall.models.scripted.test_section import Case, Strict

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart
    from pydantic_ai.usage import RequestUsage


_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")


def captured_values(patterns: Sequence[str | None], messages: Sequence[ModelMessage]) -> dict[str, str]:
    """Return the values of the named groups in `expect` patterns. Each pattern is matched against its own input."""
    found: dict[str, str] = {}
    if not any("(?P<" in pattern for pattern in patterns if pattern):
        return found
    for pattern, sent in zip(patterns, inputs_by_step(messages), strict=False):
        if pattern and (match := re.search(pattern, sent)):
            found.update({name: text for name, text in match.groupdict().items() if text is not None})
    return found


def substitute(value: Any, captured: Mapping[str, str]) -> Any:
    """Replace `${name}` in arguments by the captured value. Unknown names stay unchanged."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: captured.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [substitute(item, captured) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: substitute(item, captured) for name, item in cast("dict[str, Any]", value).items()}
    return value


ANY_WORKER = "*"
_MAX_SHOWN_CHARS = 2_000  # of the input, in an error
_BALLOT = re.compile(r'(?s)^Options: ([^\n]+)$.*?proposal_vote\(proposal="([^"\n]+)"', re.MULTILINE)
_RETRY_AFTER_S = 0.05


class Price(Strict):
    """Dollars per million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat


class ScriptedUsage(Strict):
    """The token counts of an answer. `input` includes cached tokens."""

    input: NonNegativeInt
    output: NonNegativeInt
    cache_read: NonNegativeInt = 0
    cache_write: NonNegativeInt = 0

    @model_validator(mode="after")
    def _check_cache_tokens(self) -> ScriptedUsage:
        if self.cache_read + self.cache_write > self.input:
            raise ValueError("cache_read and cache_write are parts of input and cannot exceed it")
        return self


class ScriptedResult(Strict):
    """The recorded result of a tool call."""

    text: str
    is_error: bool = False


class ScriptedCall(Strict):
    """A tool call. Arguments as text are sent unchanged, even if they are not JSON."""

    call: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] | str | None = Field(default=None, alias="with")
    result: ScriptedResult | None = None  # for `guild test`, if the call is not executed again


class Answer(Strict):
    """A scripted model response, or a failure in its place."""

    sent: str | list[str] | None = None  # for `guild test`: the new input before this answer
    call: Annotated[str, Field(min_length=1)] | None = None
    arguments: dict[str, Any] | str | None = Field(default=None, alias="with")
    result: ScriptedResult | None = None
    calls: Annotated[list[ScriptedCall], Field(min_length=1)] | None = None
    say: str | None = None
    output: dict[str, Any] | None = None
    cut_off: bool = False  # at the maximum length of an answer
    sleep: Annotated[float, Field(ge=0, le=3600)] = 0
    usage: ScriptedUsage | None = None
    expect: str | None = None
    expect_system: str | None = None  # a pattern for the system prompt
    fail: Annotated[int, Field(ge=400, le=599)] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Answer:
        names = ("call", "calls", "say", "output", "usage", "expect", "expect_system", "sent")
        content = {name for name in names if getattr(self, name) is not None}
        if self.fail is not None and content:
            raise ValueError(f"`fail` cannot be combined with `{min(content)}`")
        if self.fail is None and not content & {"call", "calls", "say", "output"}:
            raise ValueError("an answer needs one of `say`, `call`, `calls`, `output` or `fail`")
        for name, value in (("with", self.arguments), ("result", self.result)):
            if value is not None and self.call is None:
                raise ValueError(f"`{name}` needs a `call`")
        if self.call is not None and self.calls is not None:
            raise ValueError("use either `call` or `calls`")
        _check_pattern("expect", self.expect or "")
        _check_pattern("expect_system", self.expect_system or "")
        return self

    @property
    def all_calls(self) -> list[ScriptedCall]:
        if self.call is not None:
            return [ScriptedCall.model_validate({"call": self.call, "with": self.arguments, "result": self.result})]
        return list(self.calls or ())


def _check_pattern(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"`{name}`: invalid regular expression: {error}") from None


def _check_run(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError("a run is a list of answers: write `- - say: ...` for the first answer of a run")
    return value


ScriptedRun = Annotated[list[Answer], BeforeValidator(_check_run)]


class Script(Strict):
    """A parsed script file."""

    price: Price | None = None
    accepts: list[Literal["image", "pdf"]] = Field(default=["image", "pdf"])
    workers: dict[str, list[ScriptedRun]]
    election: dict[str, str] = Field(default_factory=dict)
    repeat: bool = False
    test: Case | None = None

    def find_runs(self, worker: str) -> list[list[Answer]] | None:
        """Return the runs of a worker, or of any worker, or None if the script has neither."""
        return self.workers.get(worker, self.workers.get(ANY_WORKER))

    def find_run(self, worker: str, ordinal: int) -> list[Answer] | None:
        runs = self.find_runs(worker) or []
        if ordinal < len(runs):
            return runs[ordinal]
        return runs[-1] if self.repeat and runs else None


def load_script(path: Path) -> Script:
    """Read a script. Raise InvalidFile with the line and the field of an error."""
    return yaml.validate(Script, yaml.read(path))


@dataclass(frozen=True)
class ScriptSource:
    path: Path
    script: Script
    clock: Clock = field(default_factory=SystemClock)

    @property
    def name(self) -> str:
        return f"script:{self.path.name}"

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        price = self.script.price
        if price is None:
            return None
        return (usage.input_tokens * price.input + usage.output_tokens * price.output) / 1_000_000

    def accepts(self, media_type: str) -> bool:
        return ("pdf" if media_type == "application/pdf" else media_type.partition("/")[0]) in self.script.accepts

    def upstream(self, api: str) -> None:
        return None

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        return []

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        self._check_files(query)
        answer = self._find_answer(query)
        self._check_expectations(answer, query)
        if answer.sleep:
            await self.clock.sleep(answer.sleep)
        if answer.fail is not None:
            raise error_class(answer.fail, "")(
                f"scripted failure: HTTP {answer.fail}",
                transient=is_transient(answer.fail),
                status=answer.fail,
                retry_after=_RETRY_AFTER_S,
                where=self._location(query),
            )
        for chunk in split_text(answer.say or ""):
            on_text(chunk)
        patterns = [entry.expect for entry in self._find_run(query) if entry.fail is None]
        return _build_response(self.name, answer, query, captured_values(patterns, query.messages))

    def _find_answer(self, query: Query) -> Answer:
        run = self._find_run(query)
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
            f"script exhausted: it has {step} answers for this run, and answer {query.step + 1} was requested",
            hint="Add the answer, or end the run with an answer that only has `say`.",
            where=self._location(query),
        )

    def _find_run(self, query: Query) -> list[Answer]:
        workers = self.script.workers
        if query.worker.startswith(VOTER_PREFIX) and query.worker not in workers:
            return self._vote_answers(query)
        runs = self.script.find_runs(query.worker)
        if runs is None:
            raise ScriptExhausted(
                f"the script has no answers for the worker {query.worker!r}",
                hint=did_you_mean(query.worker, workers) or "Add it under `workers:`.",
                where=str(self.path),
            )
        if (run := self.script.find_run(query.worker, query.ordinal)) is not None:
            return run
        raise ScriptExhausted(
            f"script exhausted: it has {len(runs)} runs of {query.worker!r}, and run {query.ordinal + 1} started",
            hint="Add a run, or set `repeat: true` to repeat the last run.",
            where=self._location(query),
        )

    def _vote_answers(self, query: Query) -> list[Answer]:
        """Return the vote of an agent: for the candidate in `election`, or else for the first option."""
        ballot = _BALLOT.search(latest_input(query.messages[:1]))
        if ballot is None:
            raise ScriptExhausted(
                f"the script cannot vote for {query.worker!r}: the input of the run has no ballot",
                hint=f"Write its answers under `workers: {query.worker}:`.",
                where=self._location(query),
            )
        choice = self.script.election.get(query.worker.removeprefix(VOTER_PREFIX), ballot[1].split(", ")[0])
        vote = {"call": "proposal_vote", "with": {"proposal": ballot[2], "choice": choice}}
        return [Answer.model_validate(vote), Answer(say="voted")]

    def _check_files(self, query: Query) -> None:
        """Raise ModelFailed for files that the model does not accept, as a provider does."""
        from pydantic_ai.messages import BinaryContent

        for message in query.messages:
            for part in message.parts if message.kind == "request" else ():
                content = getattr(part, "content", None)
                for item in content if isinstance(content, list | tuple) else ():  # pyright: ignore[reportUnknownVariableType]
                    if isinstance(item, BinaryContent) and not self.accepts(item.media_type):
                        text = f"the scripted model does not accept {item.media_type}"
                        raise ModelFailed(text, status=400, where=str(self.path))

    def _check_expectations(self, answer: Answer, query: Query) -> None:
        for pattern, read in ((answer.expect, latest_input), (answer.expect_system, system_text)):
            if pattern is None or re.search(pattern, sent := read(query.messages)) is not None:
                continue
            shown = sent if len(sent) <= _MAX_SHOWN_CHARS else f"{sent[:_MAX_SHOWN_CHARS]} ... ({len(sent)} characters)"
            raise ScriptMismatch(
                f"script mismatch: the model input does not match `expect`\nexpected: {pattern}\nsent: {shown}",
                where=self._location(query),
            )

    def _location(self, query: Query) -> str:
        return f"{self.path}, worker {query.worker}, run {query.ordinal + 1}, answer {query.step + 1}"


def _build_response(name: str, answer: Answer, query: Query, captured: Mapping[str, str]) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    parts: list[ModelResponsePart] = []
    if answer.say is not None:
        parts.append(TextPart(answer.say))
    calls: list[tuple[str, Any]] = [(c.call, substitute(c.arguments or {}, captured)) for c in answer.all_calls]
    if answer.output is not None:
        if query.parameters.output_tools:
            calls.append((query.parameters.output_tools[0].name, answer.output))
        else:
            parts.append(TextPart(json.dumps(answer.output, ensure_ascii=False)))
    parts += [ToolCallPart(*call, f"call_{query.step}_{index}") for index, call in enumerate(calls)]
    return ModelResponse(
        parts=parts,
        usage=_answer_usage(answer, query, parts),
        model_name=name,
        finish_reason="length" if answer.cut_off else "tool_call" if calls else "stop",
    )


def _answer_usage(answer: Answer, query: Query, parts: Sequence[ModelResponsePart]) -> RequestUsage:
    from pydantic_ai.usage import RequestUsage

    if usage := answer.usage:
        return RequestUsage(
            input_tokens=usage.input,
            output_tokens=usage.output,
            cache_read_tokens=usage.cache_read,
            cache_write_tokens=usage.cache_write,
        )
    return RequestUsage(
        input_tokens=estimate_tokens(sum(_message_length(message) for message in query.messages)),
        output_tokens=estimate_tokens(sum(_part_length(part) for part in parts)),
    )


def _message_length(message: ModelMessage) -> int:
    if message.kind == "response":
        return sum(_part_length(part) for part in message.parts)
    return len(message.instructions or "") + sum(len(part_text(part)) for part in message.parts)


def _part_length(part: ModelResponsePart) -> int:
    if part.part_kind == "tool-call":
        return len(part.tool_name) + len(part.args_as_json_str())
    content = getattr(part, "content", None)
    return len(content) if isinstance(content, str) else 0
