"""Errors: defines every exception that Guildhall raises on purpose.

`hint` names the next action of the user. `where` is `file:line` or a field.

Invariant: each class has a stable `code` of its own. Subclasses inherit `exit_code` and `http_status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NotRequired, TypedDict, Unpack, cast


class _ErrorContext(TypedDict, total=False):
    hint: str | None
    where: str | None


class ErrorInfo(TypedDict):
    """An error as it is stored and as JSON shows it."""

    code: str
    message: str
    hint: NotRequired[str]
    where: NotRequired[str]
    limit: NotRequired[str]  # name of the limit (LimitReached)
    run: NotRequired[str]  # id of the run with the limit (LimitReached)
    field: NotRequired[str]  # name of the invalid field (InvalidFile)
    others: NotRequired[
        Sequence[Mapping[str, str]]
    ]  # further errors of the file: message, where, field, hint (InvalidFile)
    job: NotRequired[str]  # id of the job (NotFinished)
    status: NotRequired[str]  # status of the job (NotFinished)
    files: NotRequired[Sequence[str]]  # conflicting files (MergeConflict)
    agents: NotRequired[Sequence[str]]  # agents that failed, in the error of a workflow


class GuildError(Exception):
    """An error that the user can act on."""

    code = "error"
    exit_code = 1  # the exit code of a command that fails with this error
    http_status = 500
    more: tuple[str, ...] = ()  # names of further attributes for `as_dict`

    def __init_subclass__(cls, *, code: str, exit_code: int | None = None, http_status: int | None = None) -> None:
        cls.code = code
        if exit_code is not None:
            cls.exit_code = exit_code
        if http_status is not None:
            cls.http_status = http_status

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n{self.hint}" if self.hint else text

    def as_dict(self) -> ErrorInfo:
        """Return the code, the message and the other attributes that are set."""
        names = ("code", "message", "hint", "where", *self.more)
        return cast("ErrorInfo", {name: value for name in names if (value := getattr(self, name))})


class UsageError(GuildError, code="usage", exit_code=2, http_status=400):
    """The command or the call is invalid."""


class InvalidFile(GuildError, code="invalid_file", exit_code=2, http_status=422):
    """A file of the user is invalid. `field` is the invalid field. `others` has the further errors of the file."""

    more = ("field", "others")

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        others: Sequence[Mapping[str, str]] | None = (),
        **context: Unpack[_ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.field = field
        self.others = tuple(others or ())


class NotFound(GuildError, code="not_found", exit_code=3, http_status=404):
    """The worker, run, ask or file does not exist."""


class UnknownJob(NotFound, code="unknown_job"):
    """The job does not exist."""


class Refused(GuildError, code="refused", exit_code=4, http_status=403):
    """Policy refuses the action."""


class NotTrusted(Refused, code="not_trusted"):
    """The user has not trusted code that would be executed, or the code has changed since."""


class WorkerLocked(Refused, code="worker_locked"):
    """The worker is locked and cannot be changed until it is unlocked."""


class WorkerRetired(Refused, code="worker_retired"):
    """The worker is retired and accepts no new work."""


class Conflict(GuildError, code="conflict", http_status=409):
    """The state of the object does not permit the action."""


class NotFinished(Conflict, code="not_finished"):
    """The job `job` has no result. Its `status` is that of a running, failed or cancelled job."""

    more = ("job", "status")

    def __init__(
        self, message: str, *, job: str | None = None, status: str | None = None, **context: Unpack[_ErrorContext]
    ) -> None:
        super().__init__(message, **context)
        self.job = job
        self.status = status


class NotDeletable(Conflict, code="not_deletable"):
    """The job is running, or it failed and was not deleted with `force`."""


class MergeConflict(Conflict, code="merge_conflict"):
    """Two branches changed the same lines of `files`. Neither branch was moved."""

    more = ("files",)

    def __init__(self, message: str, *, files: Sequence[str] | None = (), **context: Unpack[_ErrorContext]) -> None:
        super().__init__(message, **context)
        self.files = tuple(files or ())


class NotFulfilled(GuildError, code="not_fulfilled"):
    """A job ended without its required artifact or result."""


class LimitReached(GuildError, code="limit_reached", exit_code=5, http_status=429):
    """The run `run` reached a limit of turns, tokens, dollars or time. `limit` is the name of the limit."""

    more = ("limit", "run")

    def __init__(
        self, message: str, *, limit: str | None = None, run: str | None = None, **context: Unpack[_ErrorContext]
    ) -> None:
        super().__init__(message, **context)
        self.limit = limit
        self.run = run


class TimedOut(GuildError, code="timed_out", exit_code=6, http_status=504):
    """An operation took longer than its timeout."""


class HallUnavailable(GuildError, code="hall_unavailable", exit_code=7, http_status=503):
    """The home cannot be used: it is in use, damaged, or belongs to another program or version."""


class HallInUse(HallUnavailable, code="hall_in_use"):
    """Another process holds the lock of the home or of the database of a workflow."""


class HallGone(HallUnavailable, code="hall_gone"):
    """The process of the hall has ended or is about to exit."""


class StorageFailed(HallUnavailable, code="storage_failed"):
    """The disk of a database is full, read-only or failing, or the file is damaged."""


class ModelFailed(GuildError, code="model_failed"):
    """The model returned no response.

    `transient`: a retry can help, after `retry_after` seconds. `status`: the HTTP status. `charged`: the response had
    started, so the provider may bill it.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        status: int | None = None,
        retry_after: float | None = None,
        charged: bool = False,
        **context: Unpack[_ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.transient = transient
        self.charged = charged
        self.status = status
        self.retry_after = retry_after


class KeyRefused(ModelFailed, code="key_refused"):
    """The provider rejected the key or the login, or does not accept it for this model."""


class NoCredit(ModelFailed, code="no_credit"):
    """The account has no credit or quota left."""


class UnknownModel(ModelFailed, code="unknown_model"):
    """The provider does not offer the model, or does not offer it to this account."""


class ContextTooLong(ModelFailed, code="context_too_long"):
    """The conversation exceeds the context of the model."""


class RateLimited(ModelFailed, code="rate_limited"):
    """Too many requests or tokens in too short a time."""


class Overloaded(ModelFailed, code="model_overloaded"):
    """The provider is overloaded."""


class NotReachable(ModelFailed, code="model_not_reachable"):
    """The provider cannot be reached, or did not respond in time."""


class ScriptMismatch(ModelFailed, code="script_mismatch"):
    """The request to the scripted model differs from the script's expectation."""


class ScriptExhausted(ModelFailed, code="script_exhausted"):
    """The script of the scripted model has no response for this call."""


class ModelUnusable(GuildError, code="model_unusable", exit_code=2):
    """No model can be used: no model is named, its key is missing, or it has no price although a budget applies."""


class NoModel(ModelUnusable, code="no_model"):
    """Neither the worker nor its caller, the user or the settings name a model. The hint says how to name one."""


class ToolUnavailable(GuildError, code="tool_unavailable"):
    """A tool, toolbox or sandbox that the worker declares cannot be provided."""


class ServerGone(ToolUnavailable, code="server_gone"):
    """An MCP server that the run has used is gone. The call that needed it was not made."""


class MemberFailed(GuildError, code="member_failed"):
    """A member did not execute a request."""


class MemberTimedOut(MemberFailed, code="member_timed_out", exit_code=6, http_status=504):
    """A member did not respond in time. It may have executed the request."""


class MemberUnreachable(MemberFailed, code="member_unreachable", http_status=502):
    """A member returned no valid HTTP response. `status`: its HTTP status. `sent`: the request may have arrived."""

    def __init__(
        self, message: str, *, status: int | None = None, sent: bool = False, **context: Unpack[_ErrorContext]
    ) -> None:
        super().__init__(message, **context)
        self.status = status
        self.sent = sent


class MemberRefused(MemberFailed, code="member_refused", http_status=502):
    """The response of a member is invalid, or is a protocol error with `rpc_code` and `data`."""

    def __init__(
        self,
        message: str,
        *,
        rpc_code: int | None = None,
        data: Mapping[str, object] | None = None,
        **context: Unpack[_ErrorContext],
    ) -> None:
        super().__init__(message, **context)
        self.rpc_code = rpc_code
        self.data = data


class GitFailed(GuildError, code="git_failed"):
    """A git command failed."""


class RuntimeFailed(GuildError, code="runtime_failed"):
    """The runtime failed."""


class RuntimeCrashed(RuntimeFailed, code="runtime_crashed"):
    """The process of a run ended before the run did. The run can be resumed."""


class RuntimeMissing(RuntimeFailed, code="runtime_missing"):
    """The program of a runtime is not installed."""


class RuntimeOutdated(RuntimeFailed, code="runtime_outdated"):
    """The program of a runtime is older than the oldest version that works."""


class RuntimeUnusable(RuntimeFailed, code="runtime_unusable"):
    """The program of a runtime is installed and cannot be started, or is another program."""


class RuntimeToolless(RuntimeFailed, code="runtime_toolless"):
    """The program of a runtime did not reach the run's tools and was killed."""


class ReplayDiffers(GuildError, code="replay_differs"):
    """A replay differs from the journal."""


class Interrupted(GuildError, code="interrupted", exit_code=130):
    """The user interrupted the command."""


def internal_error(error: Exception, hint: str) -> GuildError:
    """Return an unexpected error as a GuildError that names the place in the source where it was raised."""
    from pathlib import Path

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return GuildError(f"internal error: {reason}{place}", hint=hint)


def error_class(code: str) -> type[GuildError]:
    """Return the class that has this code, or GuildError if no class has it."""
    return _classes().get(code, GuildError)


@cache
def _classes() -> dict[str, type[GuildError]]:
    return {kind.code: kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, GuildError)}
