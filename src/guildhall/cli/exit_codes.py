"""How a command ends, as a number. The one place where error codes and states of runs become exit codes."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
NEEDS_YOU = 4
LIMIT = 5
TIMED_OUT = 6
NO_HALL = 7
INTERRUPTED = 130

MEANING = {
    DONE: "done",
    FAILED: "the run failed, or the command could not be done",
    USAGE: "bad usage, or an invalid file",
    NOT_FOUND: "not found",
    NEEDS_YOU: "it waits for an answer, or policy refused",
    LIMIT: "a limit was reached",
    TIMED_OUT: "time-out",
    NO_HALL: "no hall, and none may be started",
    INTERRUPTED: "interrupted",
}

OF_ERROR = {
    "error": FAILED,
    "usage": USAGE,
    "invalid_file": USAGE,
    "not_found": NOT_FOUND,
    "unknown_job": NOT_FOUND,
    "refused": NEEDS_YOU,
    "not_trusted": NEEDS_YOU,
    "worker_locked": NEEDS_YOU,
    "worker_retired": NEEDS_YOU,
    "conflict": FAILED,
    "not_finished": FAILED,
    "not_deletable": FAILED,
    "merge_conflict": FAILED,
    "not_fulfilled": FAILED,
    "limit_reached": LIMIT,
    "timed_out": TIMED_OUT,
    "hall_unavailable": NO_HALL,
    "hall_in_use": NO_HALL,
    "hall_gone": NO_HALL,
    "model_failed": FAILED,
    "key_refused": FAILED,
    "no_credit": FAILED,
    "unknown_model": FAILED,
    "context_too_long": FAILED,
    "rate_limited": FAILED,
    "model_overloaded": FAILED,
    "model_not_reachable": FAILED,
    "script_mismatch": FAILED,
    "script_exhausted": FAILED,
    "model_unusable": USAGE,
    "tool_unavailable": FAILED,
    "server_gone": FAILED,
    "member_failed": FAILED,
    "member_timed_out": TIMED_OUT,
    "member_unreachable": FAILED,
    "member_refused": FAILED,
    "git_failed": FAILED,
    "runtime_failed": FAILED,
    "runtime_crashed": FAILED,
    "runtime_missing": FAILED,
    "runtime_outdated": FAILED,
    "runtime_unusable": FAILED,
    "runtime_toolless": FAILED,
    "replay_differs": FAILED,
    "interrupted": INTERRUPTED,
}

_OF_STATUS = {"completed": DONE, "waiting": NEEDS_YOU, "parked": INTERRUPTED}
_SAID_BY_A_RUN = frozenset({NEEDS_YOU, LIMIT, TIMED_OUT})


def of_error(code: str) -> int:
    """The exit code of a command that ended with this error."""
    return OF_ERROR.get(code, FAILED)


def of_run(status: str, error_code: str | None) -> int:
    """The exit code of a command that followed a run to this state.

    A run that failed says no more than that, unless policy, a limit or the time stopped it: the codes for bad usage
    or a missing file are about the command, not about what a worker met.
    """
    if status != "failed":
        return _OF_STATUS.get(status, FAILED)
    code = of_error(error_code or "error")
    return code if code in _SAID_BY_A_RUN else FAILED
