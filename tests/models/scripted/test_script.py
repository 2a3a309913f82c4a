"""The scripted model: its file, and which answer it gives to which question."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import InvalidFile, ModelFailed, ScriptMismatch
from guildhall.models.model import Query, is_transient, latest_input, split_text
from guildhall.models.scripted.source import ScriptSource, load_script
from tests.models.scripts import asked, query, script

WHOLE_FORMAT = """
price: {input: 3.0, output: 15.0}
workers:
  reviewer:
    - - call: channel_send
        with: {message: "@coder line 3 divides by zero"}
      - say: reported
    - - expect: "fixed"
        say: approved
  coder:
    - - calls:
          - {call: document_write, with: {file: fix.md, content: "..."}}
          - {call: channel_send, with: {message: "@reviewer fixed"}}
      - {sleep: 0.2, say: done, usage: {input: 1200, output: 300}}
  "*":
    - - say: anyone
election: {reviewer: coder}
repeat: false
"""


class SteppedClock:
    """A clock that a test moves: sleeping is noted and over at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def source(folder: Path, text: str) -> ScriptSource:
    path = script(folder, text)
    return ScriptSource(path, load_script(path))


def answer(source: ScriptSource, question: Query, heard: list[str] | None = None) -> ModelResponse:
    return asyncio.run(source.answer(question, (heard if heard is not None else []).append))


def after(*answers: ModelResponse, then: str = "go on") -> list[ModelRequest | ModelResponse]:
    """A conversation in which these answers were given."""
    messages: list[ModelRequest | ModelResponse] = asked()
    for given_before in answers:
        messages += [given_before, ModelRequest(parts=[UserPromptPart(then)])]
    return messages


# Answers


def test_the_whole_format_of_the_documentation_is_read_and_answered(tmp_path: Path) -> None:
    scripted = source(tmp_path, WHOLE_FORMAT)
    first = answer(scripted, query(worker="reviewer"))
    assert first.parts == [ToolCallPart("channel_send", {"message": "@coder line 3 divides by zero"}, "call_0_0")]
    assert first.finish_reason == "tool_call"
    second = answer(scripted, query(after(first), worker="reviewer"))
    assert (second.text, second.finish_reason) == ("reported", "stop")
    assert answer(scripted, query(asked("it is fixed"), worker="reviewer", ordinal=1)).text == "approved"
    assert answer(scripted, query(worker="stranger")).text == "anyone"
    assert scripted.script.election == {"reviewer": "coder"}
    assert scripted.name == "script:answers.yaml"


def test_several_calls_in_one_answer_have_ids_of_their_own(tmp_path: Path) -> None:
    response = answer(source(tmp_path, WHOLE_FORMAT), query())
    assert [(call.tool_name, call.tool_call_id) for call in response.tool_calls] == [
        ("document_write", "call_0_0"),
        ("channel_send", "call_0_1"),
    ]


def test_text_and_call_stand_in_one_answer_and_text_is_heard_in_pieces(tmp_path: Path) -> None:
    heard: list[str] = []
    scripted = source(tmp_path, "workers: {coder: [[{say: I will look, call: Read, with: {path: a.md}}]]}")
    response = answer(scripted, query(), heard)
    assert response.parts == [TextPart("I will look"), ToolCallPart("Read", {"path": "a.md"}, "call_0_0")]
    assert "".join(heard) == "I will look"
    assert len(heard) == 4


def test_the_same_question_has_the_same_answer_however_often_it_is_asked(tmp_path: Path) -> None:
    scripted = source(tmp_path, WHOLE_FORMAT)
    first, again = (answer(scripted, query()) for _ in range(2))
    assert first.parts == again.parts
    assert first.usage == again.usage


def test_sleep_is_the_clocks(tmp_path: Path) -> None:
    clock = SteppedClock()
    path = script(tmp_path, WHOLE_FORMAT)
    scripted = ScriptSource(path, load_script(path), clock)
    first = answer(scripted, query())
    assert answer(scripted, query(after(first))).text == "done"
    assert clock.slept == [0.2]


def test_usage_is_the_given_one_or_estimated_and_priced_by_the_script(tmp_path: Path) -> None:
    scripted = source(tmp_path, WHOLE_FORMAT)
    first = answer(scripted, query(asked("x" * 400)))
    assert first.usage.input_tokens == 102  # 400 characters and `be brief`
    assert first.usage.output_tokens > 10
    second = answer(scripted, query(after(first)))
    assert second.usage == RequestUsage(input_tokens=1200, output_tokens=300)
    assert scripted.cost(second.usage) == pytest.approx(0.0081)


def test_cached_tokens_are_part_of_the_input(tmp_path: Path) -> None:
    text = "workers: {coder: [[{say: hi, usage: {input: 100, output: 1, cache_read: 60, cache_write: 30}}]]}"
    usage = answer(source(tmp_path, text), query()).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (100, 60, 30)


def test_a_script_without_a_price_costs_nothing_known(tmp_path: Path) -> None:
    assert source(tmp_path, "workers: {}").cost(RequestUsage(input_tokens=5)) is None


def test_a_structured_output_is_a_call_of_the_output_tool_or_json_text(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{output: {grade: 5, note: über}}]]}")
    offered = ModelRequestParameters(output_tools=[ToolDefinition(name="final_result")])
    assert answer(scripted, query(parameters=offered)).parts == [
        ToolCallPart("final_result", {"grade": 5, "note": "über"}, "call_0_0")
    ]
    assert answer(scripted, query()).text == '{"grade": 5, "note": "über"}'


# Failures


def test_failures_before_an_answer_are_used_up_by_attempts(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{fail: 529}, {fail: 401}, {say: at last}]]}")
    with pytest.raises(ModelFailed, match="HTTP 529") as overloaded:
        answer(scripted, query())
    assert (overloaded.value.transient, overloaded.value.status) == (True, 529)
    assert overloaded.value.retry_after is not None
    with pytest.raises(ModelFailed, match="HTTP 401") as refused:
        answer(scripted, query(attempt=1))
    assert not refused.value.transient
    for attempt in (2, 9):
        assert answer(scripted, query(attempt=attempt)).text == "at last"


def test_a_failure_does_not_count_as_a_step(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{call: a}, {fail: 500}, {say: end}]]}")
    first = answer(scripted, query())
    with pytest.raises(ModelFailed, match="HTTP 500"):
        answer(scripted, query(after(first)))
    assert answer(scripted, query(after(first), attempt=1)).text == "end"


def test_failures_after_the_last_answer_come_before_the_script_is_used_up(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{fail: 500}]]}")
    with pytest.raises(ModelFailed, match="HTTP 500"):
        answer(scripted, query())
    with pytest.raises(ModelFailed, match="script exhausted"):
        answer(scripted, query(attempt=1))


def test_a_used_up_run_says_worker_run_answer_and_file(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{say: only one}]]}")
    with pytest.raises(ModelFailed, match="it has 1 answers for this run, and answer 2 was requested") as failed:
        answer(scripted, query(after(answer(scripted, query()))))
    assert failed.value.where == f"{tmp_path / 'answers.yaml'}, worker coder, run 1, answer 2"
    assert not failed.value.transient


def test_used_up_runs_fail_or_repeat_the_last_one(tmp_path: Path) -> None:
    runs = "workers: {coder: [[{say: first}], [{say: last}]]}"
    with pytest.raises(ModelFailed, match="it has 2 runs of 'coder', and run 3 started"):
        answer(source(tmp_path, runs), query(ordinal=2))
    assert answer(source(tmp_path, f"{runs}\nrepeat: true"), query(ordinal=7)).text == "last"
    with pytest.raises(ModelFailed, match="it has 0 runs"):
        answer(source(tmp_path, "workers: {coder: []}\nrepeat: true"), query())


def test_a_worker_that_is_not_in_the_script_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="no answers for the worker 'codr'") as failed:
        answer(source(tmp_path, "workers: {coder: []}"), query(worker="codr"))
    assert failed.value.hint == "Did you mean 'coder'?"
    with pytest.raises(ModelFailed) as failed:
        answer(source(tmp_path, "workers: {}"), query())
    assert failed.value.hint == "Add it under `workers:`."


def test_what_an_expectation_has_found_is_used_in_later_arguments(tmp_path: Path) -> None:
    """Ids that are made while a run goes on: the script keeps no state, and finds them in the conversation again."""
    scripted = source(
        tmp_path,
        """
        workers:
          coder:
            - - {call: make}
              - {fail: 529}
              - expect: '(?P<made>c-[a-z]+) is (?P<how>\\w+)'
                call: look
                with: {id: '${made}', other: ['${made}/${how}', '$made']}
              - {call: look, with: {id: '${made}', same: '${nobody} {made} ${}', deep: {in: ['${how}']}, number: 3}}
              - {expect: '(?P<made>c-.)', call: look, with: '{"id": "${made}"}'}
        """,
    )
    said = ["c-abc is pending", "nothing", "c-x is new"]
    messages, answers = asked(), []
    for step in range(4):
        given = answer(scripted, query(messages, attempt=1 if step == 1 else 0))
        answers.append(given.tool_calls[0].args)
        if step < 3:
            messages = [*messages, given, ModelRequest(parts=[UserPromptPart(said[step])])]
    assert answers == [
        {},
        {"id": "c-abc", "other": ["c-abc/pending", "$made"]},
        {"id": "c-abc", "same": "${nobody} {made} ${}", "deep": {"in": ["pending"]}, "number": 3},
        '{"id": "c-x"}',
    ]


def test_a_mismatch_shows_both_what_was_expected_and_what_was_sent(tmp_path: Path) -> None:
    scripted = source(tmp_path, "workers: {coder: [[{expect: 'line \\d+', say: ok}]]}")
    assert answer(scripted, query(asked("see\nline 12"))).text == "ok"
    with pytest.raises(ScriptMismatch) as failed:
        answer(scripted, query(asked("no number")))
    assert "expected: line \\d+" in str(failed.value)
    assert "sent: no number" in str(failed.value)
    with pytest.raises(ScriptMismatch, match=r"\(9000 characters\)") as failed:
        answer(scripted, query(asked("x" * 9000)))
    assert len(str(failed.value)) < 3000


def test_what_was_sent_is_all_since_the_last_answer_without_the_instructions() -> None:
    messages = [
        ModelRequest(parts=[SystemPromptPart("system"), UserPromptPart("old")], instructions="instructions"),
        ModelResponse(parts=[ToolCallPart("a", {}, "1")]),
        ModelRequest(
            parts=[
                ToolReturnPart("a", {"lines": 3}, "1"),
                ToolReturnPart("b", "not there", "2", outcome="failed"),
                RetryFeedbackPart("again", retry=RetryInfo(cause="model_retry")),
            ]
        ),
        ModelRequest(
            parts=[
                SystemPromptPart("unseen"),
                UserPromptPart(["new", TextContent("text"), BinaryContent(b"\0", media_type="image/png")]),
            ]
        ),
    ]
    sent = latest_input(messages)
    assert sent.startswith('{"lines":3}\nnot there\n')
    assert "again" in sent
    assert sent.endswith("new\ntext")
    assert not any(word in sent for word in ("old", "system", "instructions", "unseen"))


@given(st.text())
def test_pieces_make_the_text(text: str) -> None:
    assert "".join(split_text(text)) == text
    assert len(split_text(text)) <= 4


@pytest.mark.parametrize(("status", "passing"), [(408, True), (429, True), (529, True), (400, False), (401, False)])
def test_which_statuses_pass(status: int, passing: bool) -> None:
    assert is_transient(status) is passing


# The file


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (
            "workers:\n  coder:\n    - - sya: hi\n",
            3,
            "workers.coder[0][0].sya: unknown field\nDid you mean 'say'?",
        ),
        ("workers:\n  coder:\n    - say: hi\n", 3, "a run is a list of answers"),
        ("workers:\n  coder:\n    - - {}\n", 3, "needs one of `say`, `call`, `calls`, `output` or `fail`"),
        ("workers:\n  coder:\n    - - say: hi\n        with: {a: 1}\n", 3, "`with` needs a `call`"),
        ("workers:\n  coder:\n    - - fail: 529\n        say: hi\n", 3, "`fail` cannot be combined with `say`"),
        ("workers:\n  coder:\n    - - fail: 200\n", 3, "greater than or equal to 400"),
        ("workers:\n  coder:\n    - - {call: a, calls: [{call: b}]}\n", 3, "use either `call` or `calls`"),
        ("workers:\n  coder:\n    - - calls: []\n", 3, "at least 1 item"),
        ("workers:\n  coder:\n    - - calls:\n          - {cal: b}\n", 4, "Did you mean 'call'?"),
        ("workers:\n  coder:\n    - - {say: hi, expect: '('}\n", 3, "`expect` is not a regular expression"),
        ("workers:\n  coder:\n    - - say: 42\n", 3, "expected text (got 42)"),
        ("workers:\n  coder:\n    - - {say: a, sleep: -1}\n", 3, "greater than or equal to 0"),
        ("workers:\n  coder:\n    - - {say: a, usage: {input: 1, output: 1, cache_read: 2}}\n", 3, "parts of input"),
        ("price: {input: -3, output: 1}\nworkers: {}\n", 1, "price.input"),
        ("worker: {}\n", 1, "Did you mean 'workers'?"),
        ("repeat: true\n", 1, "workers: this field is required"),
        ("- a\n", 1, "expected a mapping"),
        ("", 1, "expected a mapping"),
        ("workers: [\n", 2, "not YAML"),
    ],
)
def test_a_wrong_script_is_told_with_its_line_and_field(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = script(tmp_path, text)
    with pytest.raises(InvalidFile) as failed:
        load_script(path)
    assert failed.value.where == f"{path}:{line}"
    assert told in str(failed.value)


def test_a_script_that_is_not_there_is_told() -> None:
    with pytest.raises(InvalidFile, match="file not found"):
        load_script(Path("nowhere.yaml"))
