"""The checks that every runtime has to pass.

    for number, check in enumerate(checks_of("claude")):
        asyncio.run(check(Bench(Path(f"bench-{number}"), "claude", os.environ)))

A check raises AssertionError with the expected and the actual value. `RuntimeInfo.exempt_checks` in the catalog of
runtimes names the checks that a runtime is exempt from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runtimes.catalog import RUNTIMES
from tests.conformance import runtime_conversations, runtime_endings, runtime_input, runtime_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conformance.bench import Bench

    Check = Callable[[Bench], Awaitable[None]]

RUNTIME_CHECKS: tuple[Check, ...] = (
    runtime_tasks.a_text_is_the_output,
    runtime_tasks.text_is_streamed,
    runtime_tasks.a_tool_is_called_and_the_model_gets_its_result,
    runtime_tasks.events_and_journal_entries_are_in_order,
    runtime_tasks.all_calls_of_one_answer_are_executed,
    runtime_tasks.calls_of_one_answer_take_effect_in_order,
    runtime_tasks.a_forbidden_call_is_refused,
    runtime_tasks.invalid_arguments_are_reported_to_the_model,
    runtime_tasks.an_approval_is_answered_in_another_hall,
    runtime_tasks.a_denial_is_reported_to_the_model_with_its_reason,
    runtime_tasks.a_structured_output_matches_its_schema,
    runtime_tasks.a_recording_serves_as_the_model_of_a_new_run,
    runtime_tasks.an_attached_text_reaches_the_model,
    runtime_tasks.an_attached_image_reaches_the_model,
    runtime_input.the_model_gets_only_the_prompt_the_tools_and_the_task,
    runtime_conversations.the_model_gets_the_whole_conversation,
    runtime_conversations.a_conversation_is_resumed_in_another_hall,
    runtime_endings.a_limit_of_turns_fails_the_run,
    runtime_endings.a_limit_of_tokens_fails_the_run,
    runtime_endings.a_limit_of_dollars_fails_the_run,
    runtime_endings.a_limit_of_time_fails_the_run,
    runtime_endings.a_temporary_failure_is_retried,
    runtime_endings.a_permanent_failure_fails_a_run_that_can_be_resumed,
    runtime_endings.a_stop_cancels_the_run,
    runtime_endings.a_run_without_a_follower_is_paused_and_can_be_resumed,
    runtime_endings.killed_processes_repeat_no_effect,
    runtime_endings.a_run_of_a_killed_hall_is_resumed_in_another_hall,
)


# For a runtime that exists only in this process: no other hall can resume its runs.
OWN_CHECKS = tuple(
    check for check in RUNTIME_CHECKS if check is not runtime_endings.a_run_of_a_killed_hall_is_resumed_in_another_hall
)


def checks_of(runtime: str) -> tuple[Check, ...]:
    """Return the checks that a runtime of the catalog must pass.

    A runtime that calls its models itself has no checks, because a script cannot answer.
    """
    row = RUNTIMES[runtime]
    return tuple(check for check in RUNTIME_CHECKS if row.uses_model_door and check.__name__ not in row.exempt_checks)
