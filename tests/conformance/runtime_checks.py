"""The checks that every runtime has to pass.

    for number, check in enumerate(checks_of("claude")):
        asyncio.run(check(Bench(Path(f"bench-{number}"), "claude", os.environ)))

A check raises AssertionError with what it expected and what it found. `RuntimeInfo.exempt_checks` in the catalog of
runtimes names the checks that a runtime is exempt from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runtimes.catalog import RUNTIMES
from tests.conformance import runtime_ends, runtime_shown, runtime_talk, runtime_work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conformance.bench import Bench

    Check = Callable[[Bench], Awaitable[None]]

RUNTIME_CHECKS: tuple[Check, ...] = (
    runtime_work.a_text_is_the_output,
    runtime_work.what_is_said_is_told_as_it_comes,
    runtime_work.a_tool_is_called_and_the_model_is_told_what_it_gave,
    runtime_work.things_happen_in_order,
    runtime_work.calls_of_one_answer_are_all_made,
    runtime_work.calls_of_one_answer_take_effect_in_order,
    runtime_work.a_call_that_is_not_allowed_is_refused,
    runtime_work.arguments_that_are_wrong_are_told_to_the_model,
    runtime_work.an_approval_is_answered_in_another_hall,
    runtime_work.a_no_is_told_to_the_model_with_its_reason,
    runtime_work.a_structured_output_is_what_the_schema_says,
    runtime_work.a_recording_answers_for_a_new_run,
    runtime_work.an_attached_text_reaches_the_model,
    runtime_work.an_attached_image_reaches_the_model,
    runtime_shown.the_model_is_shown_what_is_the_run_s_and_nothing_else,
    runtime_talk.a_conversation_is_shown_to_the_model_whole,
    runtime_talk.a_conversation_goes_on_in_another_hall,
    runtime_ends.a_limit_of_turns_ends_it,
    runtime_ends.a_limit_of_tokens_ends_it,
    runtime_ends.a_limit_of_dollars_ends_it,
    runtime_ends.a_limit_of_time_ends_it,
    runtime_ends.a_failure_that_may_pass_is_asked_again,
    runtime_ends.a_failure_that_stays_ends_it_and_it_goes_on,
    runtime_ends.a_stop_ends_it_for_good,
    runtime_ends.left_alone_it_is_paused_and_goes_on,
    runtime_ends.its_processes_are_killed_and_nothing_is_done_twice,
    runtime_ends.its_hall_is_killed_and_another_goes_on,
)


# Those for a runtime that only this process has: no other hall can go on with its runs.
OWN_CHECKS = tuple(
    check for check in RUNTIME_CHECKS if check is not runtime_ends.its_hall_is_killed_and_another_goes_on
)


def checks_of(runtime: str) -> tuple[Check, ...]:
    """The checks that a runtime of the table has to pass: all but those that it is not asked.

    None for one that asks its models by itself: no script can answer there.
    """
    row = RUNTIMES[runtime]
    return tuple(check for check in RUNTIME_CHECKS if row.uses_model_door and check.__name__ not in row.exempt_checks)
