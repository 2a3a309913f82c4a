"""The scripted model: its file, and the answer that it gives to a query."""

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

from guildhall.core.errors import InvalidFile, ModelFailed, ScriptExhausted, ScriptMismatch
from guildhall.models.model import Query, is_transient, latest_input, split_text
from guildhall.models.scripted.source import ScriptSource, load_script
from tests.models.scripts import query, start_conversation, write_script

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
    """A clock that does not sleep, and records the durations."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def load_source(folder: Path, text: str) -> ScriptSource:
    path = write_script(folder, text)
    return ScriptSource(path, load_script(path))


def answer(source: ScriptSource, question: Query, pieces: list[str] | None = None) -> ModelResponse:
    return asyncio.run(source.answer(question, (pieces if pieces is not None else []).append))


def conversation_after(*answers: ModelResponse, then: str = "go on") -> list[ModelRequest | ModelResponse]:
    """Return a conversation that contains these answers."""
    messages: list[ModelRequest | ModelResponse] = start_conversation()
    for given_before in answers:
        messages += [given_before, ModelRequest(parts=[UserPromptPart(then)])]
    return messages


# Answers


def test_the_full_format_of_the_documentation_is_loaded_and_answered(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, WHOLE_FORMAT)
    first = answer(scripted, query(worker="reviewer"))
    assert first.parts == [ToolCallPart("channel_send", {"message": "@coder line 3 divides by zero"}, "call_0_0")]
    assert first.finish_reason == "tool_call"
    second = answer(scripted, query(conversation_after(first), worker="reviewer"))
    assert (second.text, second.finish_reason) == ("reported", "stop")
    assert answer(scripted, query(start_conversation("it is fixed"), worker="reviewer", ordinal=1)).text == "approved"
    assert answer(scripted, query(worker="stranger")).text == "anyone"
    assert scripted.script.election == {"reviewer": "coder"}
    assert scripted.name == "script:answers.yaml"


def test_a_vote_without_a_ballot_is_an_error_that_names_the_field_to_write(tmp_path: Path) -> None:
    with pytest.raises(ScriptExhausted) as caught:
        answer(load_source(tmp_path, WHOLE_FORMAT), query(worker="election.reviewer"))
    assert caught.value.message == "the script cannot vote for 'election.reviewer': the input of the run has no ballot"
    assert caught.value.hint == "Write its answers under `workers: election.reviewer:`."


def test_several_calls_in_one_answer_have_different_ids(tmp_path: Path) -> None:
    response = answer(load_source(tmp_path, WHOLE_FORMAT), query())
    assert [(call.tool_name, call.tool_call_id) for call in response.tool_calls] == [
        ("document_write", "call_0_0"),
        ("channel_send", "call_0_1"),
    ]


def test_an_answer_contains_text_and_a_call_and_text_is_streamed_in_pieces(tmp_path: Path) -> None:
    pieces: list[str] = []
    scripted = load_source(tmp_path, "workers: {coder: [[{say: I will look, call: Read, with: {path: a.md}}]]}")
    response = answer(scripted, query(), pieces)
    assert response.parts == [TextPart("I will look"), ToolCallPart("Read", {"path": "a.md"}, "call_0_0")]
    assert "".join(pieces) == "I will look"
    assert len(pieces) == 4


def test_the_same_query_always_has_the_same_answer(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, WHOLE_FORMAT)
    first, again = (answer(scripted, query()) for _ in range(2))
    assert first.parts == again.parts
    assert first.usage == again.usage


def test_sleep_uses_the_clock(tmp_path: Path) -> None:
    clock = SteppedClock()
    path = write_script(tmp_path, WHOLE_FORMAT)
    scripted = ScriptSource(path, load_script(path), clock)
    first = answer(scripted, query())
    assert answer(scripted, query(conversation_after(first))).text == "done"
    assert clock.slept == [0.2]


def test_usage_is_scripted_or_estimated_and_priced_by_the_script(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, WHOLE_FORMAT)
    first = answer(scripted, query(start_conversation("x" * 400)))
    assert first.usage.input_tokens == 102  # 400 characters, and `be brief`
    assert first.usage.output_tokens > 10
    second = answer(scripted, query(conversation_after(first)))
    assert second.usage == RequestUsage(input_tokens=1200, output_tokens=300)
    assert scripted.cost(second.usage) == pytest.approx(0.0081)


def test_cached_tokens_are_part_of_the_input(tmp_path: Path) -> None:
    text = "workers: {coder: [[{say: hi, usage: {input: 100, output: 1, cache_read: 60, cache_write: 30}}]]}"
    usage = answer(load_source(tmp_path, text), query()).usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (100, 60, 30)


def test_a_script_without_a_price_has_no_cost(tmp_path: Path) -> None:
    assert load_source(tmp_path, "workers: {}").cost(RequestUsage(input_tokens=5)) is None


def test_a_structured_output_is_a_call_of_the_output_tool_or_json_text(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, "workers: {coder: [[{output: {grade: 5, note: über}}]]}")
    offered = ModelRequestParameters(output_tools=[ToolDefinition(name="final_result")])
    assert answer(scripted, query(parameters=offered)).parts == [
        ToolCallPart("final_result", {"grade": 5, "note": "über"}, "call_0_0")
    ]
    assert answer(scripted, query()).text == '{"grade": 5, "note": "über"}'


# Failures


def test_each_attempt_uses_one_failure_before_an_answer(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, "workers: {coder: [[{fail: 529}, {fail: 401}, {say: at last}]]}")
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
    scripted = load_source(tmp_path, "workers: {coder: [[{call: a}, {fail: 500}, {say: end}]]}")
    first = answer(scripted, query())
    with pytest.raises(ModelFailed, match="HTTP 500"):
        answer(scripted, query(conversation_after(first)))
    assert answer(scripted, query(conversation_after(first), attempt=1)).text == "end"


def test_failures_after_the_last_answer_are_raised_before_the_script_ends(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, "workers: {coder: [[{fail: 500}]]}")
    with pytest.raises(ModelFailed, match="HTTP 500"):
        answer(scripted, query())
    with pytest.raises(ModelFailed, match="script exhausted"):
        answer(scripted, query(attempt=1))


def test_the_error_of_an_exhausted_run_names_worker_run_answer_and_file(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, "workers: {coder: [[{say: only one}]]}")
    with pytest.raises(ModelFailed, match="it has 1 answers for this run, and answer 2 was requested") as failed:
        answer(scripted, query(conversation_after(answer(scripted, query()))))
    assert failed.value.where == f"{tmp_path / 'answers.yaml'}, worker coder, run 1, answer 2"
    assert not failed.value.transient


def test_exhausted_runs_fail_or_repeat_the_last_run(tmp_path: Path) -> None:
    runs = "workers: {coder: [[{say: first}], [{say: last}]]}"
    with pytest.raises(ModelFailed, match="it has 2 runs of 'coder', and run 3 started"):
        answer(load_source(tmp_path, runs), query(ordinal=2))
    assert answer(load_source(tmp_path, f"{runs}\nrepeat: true"), query(ordinal=7)).text == "last"
    with pytest.raises(ModelFailed, match="it has 0 runs"):
        answer(load_source(tmp_path, "workers: {coder: []}\nrepeat: true"), query())


def test_an_unknown_worker_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="no answers for the worker 'codr'") as failed:
        answer(load_source(tmp_path, "workers: {coder: []}"), query(worker="codr"))
    assert failed.value.hint == "Did you mean 'coder'?"
    with pytest.raises(ModelFailed) as failed:
        answer(load_source(tmp_path, "workers: {}"), query())
    assert failed.value.hint == "Add it under `workers:`."


def test_groups_of_an_expectation_are_used_in_later_arguments(tmp_path: Path) -> None:
    """The script has no state. It finds ids that were made during the run in the conversation."""
    scripted = load_source(
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
    messages, answers = start_conversation(), []
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


def test_a_mismatch_shows_the_expected_and_the_sent_text(tmp_path: Path) -> None:
    scripted = load_source(tmp_path, "workers: {coder: [[{expect: 'line \\d+', say: ok}]]}")
    assert answer(scripted, query(start_conversation("see\nline 12"))).text == "ok"
    with pytest.raises(ScriptMismatch) as failed:
        answer(scripted, query(start_conversation("no number")))
    assert "expected: line \\d+" in str(failed.value)
    assert "sent: no number" in str(failed.value)
    with pytest.raises(ScriptMismatch, match=r"\(9000 characters\)") as failed:
        answer(scripted, query(start_conversation("x" * 9000)))
    assert len(str(failed.value)) < 3000


def test_the_sent_text_is_all_text_since_the_last_answer_without_instructions() -> None:
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
def test_the_pieces_of_a_text_make_the_text(text: str) -> None:
    assert "".join(split_text(text)) == text
    assert len(split_text(text)) <= 4


@pytest.mark.parametrize(("status", "transient"), [(408, True), (429, True), (529, True), (400, False), (401, False)])
def test_statuses_are_classified_as_transient_or_not(status: int, transient: bool) -> None:
    assert is_transient(status) is transient


# The script file


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
        ("workers:\n  coder:\n    - - fail: 200\n", 3, "must be at least 400"),
        ("workers:\n  coder:\n    - - {call: a, calls: [{call: b}]}\n", 3, "use either `call` or `calls`"),
        ("workers:\n  coder:\n    - - calls: []\n", 3, "must not be empty"),
        ("workers:\n  coder:\n    - - calls:\n          - {cal: b}\n", 4, "Did you mean 'call'?"),
        ("workers:\n  coder:\n    - - {say: hi, expect: '('}\n", 3, "`expect`: invalid regular expression"),
        ("workers:\n  coder:\n    - - say: 42\n", 3, "expected text (got 42)"),
        ("workers:\n  coder:\n    - - {say: a, sleep: -1}\n", 3, "must be at least 0"),
        ("workers:\n  coder:\n    - - {say: a, usage: {input: 1, output: 1, cache_read: 2}}\n", 3, "parts of input"),
        ("price: {input: -3, output: 1}\nworkers: {}\n", 1, "price.input"),
        ("worker: {}\n", 1, "Did you mean 'workers'?"),
        ("repeat: true\n", 1, "workers: this field is required"),
        ("- a\n", 1, "expected a mapping"),
        ("", 1, "expected a mapping"),
        ("workers: [\n", 2, "not YAML"),
    ],
)
def test_an_invalid_script_is_refused_with_line_and_field(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = write_script(tmp_path, text)
    with pytest.raises(InvalidFile) as failed:
        load_script(path)
    assert failed.value.where == f"{path}:{line}"
    assert told in str(failed.value)


def test_a_missing_script_is_reported() -> None:
    with pytest.raises(InvalidFile, match="file not found"):
        load_script(Path("nowhere.yaml"))
