"""Errors: defines every exception that Guildhall raises on purpose.

`hint` names the next action of the user. `where` is `file:line` or a field.

Invariant: each class has a stable `code` of its own. Subclasses inherit `exit_code` and `http_status`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NotRequired, TypedDict, Unpack, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Place(TypedDict, total=False):
    hint: str | None
    where: str | None


class ErrorInfo(TypedDict):
    """An error as it is stored and as JSON shows it."""

    code: str
    message: str
    hint: NotRequired[str]
    where: NotRequired[str]
    limit: NotRequired[str]  # of LimitReached: the name of the limit
    run: NotRequired[str]  # of LimitReached: the run whose limit it is
    others: NotRequired[Sequence[str]]  # of InvalidFile: further mistakes
    job: NotRequired[str]  # of NotFinished
    status: NotRequired[str]  # of NotFinished
    files: NotRequired[Sequence[str]]  # of MergeConflict
    agents: NotRequired[Sequence[str]]  # of a workflow: the agents that failed


class GuildError(Exception):
    """An error that the user can act on."""

    code = "error"
    exit_code = 1  # of a command that ends with this error
    http_status = 500
    more: tuple[str, ...] = ()  # further attributes in `as_dict`

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n{self.hint}" if self.hint else head

    def as_dict(self) -> ErrorInfo:
        """Return the error as JSON: code and message, and other attributes that are set."""
        names = ("code", "message", "hint", "where", *self.more)
        return cast("ErrorInfo", {name: value for name in names if (value := getattr(self, name))})


class UsageError(GuildError):
    """The command or the call is invalid."""

    code = "usage"
    exit_code = 2
    http_status = 400


class InvalidFile(GuildError):
    """A file of the user is invalid. `others` lists its further mistakes."""

    code = "invalid_file"
    exit_code = 2
    http_status = 422
    more = ("others",)

    def __init__(self, message: str, *, others: Sequence[str] | None = (), **place: Unpack[_Place]) -> None:
        super().__init__(message, **place)
        self.others = tuple(others or ())


class NotFound(GuildError):
    """The worker, run, ask or file does not exist."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class UnknownJob(NotFound):
    """The job does not exist."""

    code = "unknown_job"


class Refused(GuildError):
    """Policy refuses the action."""

    code = "refused"
    exit_code = 4
    http_status = 403


class NotTrusted(Refused):
    """The user has not trusted code that would be executed, or the code has changed since."""

    code = "not_trusted"


class WorkerLocked(Refused):
    """The worker is locked and cannot be changed until it is unlocked."""

    code = "worker_locked"


class WorkerRetired(Refused):
    """The worker is retired and accepts no new work."""

    code = "worker_retired"


class Conflict(GuildError):
    """The state of the object does not permit the action."""

    code = "conflict"
    http_status = 409


class NotFinished(Conflict):
    """A job has no result: it is running, has failed or was cancelled. `job` and `status` say which."""

    code = "not_finished"
    more = ("job", "status")

    def __init__(
        self, message: str, *, job: str | None = None, status: str | None = None, **place: Unpack[_Place]
    ) -> None:
        super().__init__(message, **place)
        self.job = job
        self.status = status


class NotDeletable(Conflict):
    """A job is running or has failed, so that deleting it needs `force`."""

    code = "not_deletable"


class MergeConflict(Conflict):
    """Two branches have changed identical places, in `files`. Neither branch was moved."""

    code = "merge_conflict"
    more = ("files",)

    def __init__(self, message: str, *, files: Sequence[str] | None = (), **place: Unpack[_Place]) -> None:
        super().__init__(message, **place)
        self.files = tuple(files or ())


class NotFulfilled(GuildError):
    """A job ended without its required artifact or result."""

    code = "not_fulfilled"


class LimitReached(GuildError):
    """A limit was reached: turns, tokens, dollars or time. `limit` is its name, `run` the run whose limit it is."""

    code = "limit_reached"
    exit_code = 5
    http_status = 429
    more = ("limit", "run")

    def __init__(
        self, message: str, *, limit: str | None = None, run: str | None = None, **place: Unpack[_Place]
    ) -> None:
        super().__init__(message, **place)
        self.limit = limit
        self.run = run


class TimedOut(GuildError):
    """No answer from outside in time."""

    code = "timed_out"
    exit_code = 6
    http_status = 504


class HallUnavailable(GuildError):
    """The home cannot be used: in use, foreign, damaged, or of another version."""

    code = "hall_unavailable"
    exit_code = 7
    http_status = 503


class HallInUse(HallUnavailable):
    """Another process holds the lock of the home or of the database of a workflow."""

    code = "hall_in_use"


class HallGone(HallUnavailable):
    """The process of the hall has ended or is about to exit."""

    code = "hall_gone"


class ModelFailed(GuildError):
    """The model did not answer.

    `transient`: a retry can help, after `retry_after` seconds. `status`: the HTTP status. `charged`: an answer had
    started, so the provider may bill it.
    """

    code = "model_failed"

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        charged: bool = False,
        **place: Unpack[_Place],
    ) -> None:
        super().__init__(message, **place)
        self.transient = transient
        self.charged = charged
        self.status = status
        self.retry_after = retry_after


class KeyRefused(ModelFailed):
    """The provider does not accept the key or the login, or not for this model."""

    code = "key_refused"


class NoCredit(ModelFailed):
    """The account has no credit or quota left."""

    code = "no_credit"


class UnknownModel(ModelFailed):
    """The provider does not have the model, or not for this account."""

    code = "unknown_model"


class ContextTooLong(ModelFailed):
    """The conversation exceeds the context of the model."""

    code = "context_too_long"


class RateLimited(ModelFailed):
    """Too many requests or tokens in too short a time."""

    code = "rate_limited"


class Overloaded(ModelFailed):
    """The provider is overloaded."""

    code = "model_overloaded"


class NotReachable(ModelFailed):
    """No connection to the provider, or no answer in time."""

    code = "model_not_reachable"


class ScriptMismatch(ModelFailed):
    """The request to the scripted model differs from the script's expectation."""

    code = "script_mismatch"


class ScriptExhausted(ModelFailed):
    """The script of the scripted model has no answer for this call."""

    code = "script_exhausted"


class ModelUnusable(GuildError):
    """No model can be used: no model named, no key, or no price for a limit in dollars."""

    code = "model_unusable"
    exit_code = 2


class NoModel(ModelUnusable):
    """Neither the worker nor its caller, the user or the settings name a model. The hint says how to name one."""

    code = "no_model"


class ToolUnavailable(GuildError):
    """A tool, toolbox or sandbox that the worker declares cannot be provided."""

    code = "tool_unavailable"


class ServerGone(ToolUnavailable):
    """An MCP server that the run has used is gone. The call that needed it was not made."""

    code = "server_gone"


class MemberFailed(GuildError):
    """A member did not execute a request."""

    code = "member_failed"


class MemberTimedOut(MemberFailed):
    """A member did not answer in time. It may have executed the request."""

    code = "member_timed_out"
    exit_code = 6
    http_status = 504


class MemberUnreachable(MemberFailed):
    """A member did not answer over HTTP. `status` is its HTTP status; `sent`: the request may have arrived."""

    code = "member_unreachable"
    http_status = 502

    def __init__(self, message: str, *, status: int | None = None, sent: bool = False, **place: Unpack[_Place]) -> None:
        super().__init__(message, **place)
        self.status = status
        self.sent = sent


class MemberRefused(MemberFailed):
    """A member's answer is a protocol error, with `rpc_code` and `data`, or is invalid."""

    code = "member_refused"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        rpc_code: int | None = None,
        data: Mapping[str, object] | None = None,
        **place: Unpack[_Place],
    ) -> None:
        super().__init__(message, **place)
        self.rpc_code = rpc_code
        self.data = data


class GitFailed(GuildError):
    """A git command failed."""

    code = "git_failed"


class RuntimeFailed(GuildError):
    """The runtime failed."""

    code = "runtime_failed"


class RuntimeCrashed(RuntimeFailed):
    """The process of a run ended before the run did. The run can be resumed."""

    code = "runtime_crashed"


class RuntimeMissing(RuntimeFailed):
    """The program of a runtime is not installed."""

    code = "runtime_missing"


class RuntimeOutdated(RuntimeFailed):
    """The program of a runtime is older than the oldest version that works."""

    code = "runtime_outdated"


class RuntimeUnusable(RuntimeFailed):
    """The program of a runtime is installed and cannot be started, or is another program."""

    code = "runtime_unusable"


class RuntimeToolless(RuntimeFailed):
    """The program of a runtime did not reach the run's tools and was killed."""

    code = "runtime_toolless"


class ReplayDiffers(GuildError):
    """A replay differs from the journal."""

    code = "replay_differs"


class Interrupted(GuildError):
    """The user interrupted the command."""

    code = "interrupted"
    exit_code = 130


def error_class(code: str) -> type[GuildError]:
    """Return the class that has this code, or GuildError if no class has it."""
    return _classes().get(code, GuildError)


@cache
def _classes() -> dict[str, type[GuildError]]:
    return {kind.code: kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, GuildError)}
