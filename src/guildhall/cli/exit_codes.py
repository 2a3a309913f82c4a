"""Exit codes of commands, also of commands that follow a run.

Does not map errors. The exit code of an error is an attribute of its class (see `core.errors`).
"""

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

_OF_STATUS = {"completed": DONE, "waiting": NEEDS_YOU, "paused": INTERRUPTED}
_OF_FAILED_RUN = frozenset({NEEDS_YOU, LIMIT, TIMED_OUT})


def run_exit_code(status: str, error_code: str | None) -> int:
    """Return the exit code of a command that followed a run until it had this status.

    A failed run results in FAILED, unless an ask, a limit or a timeout stopped it. USAGE and NOT_FOUND are reserved for
    errors in the command line.
    """
    from guildhall.core.errors import error_class

    if status != "failed":
        return _OF_STATUS.get(status, FAILED)
    code = error_class(error_code or "").exit_code
    return code if code in _OF_FAILED_RUN else FAILED
