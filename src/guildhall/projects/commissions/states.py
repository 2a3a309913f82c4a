"""The state machine of a commission: its states, its events, and the next step after a crash.

    event     from                               to           guard                                      checked in
    create    (new)                              pending,     valid draft, no dependency cycle           drafts
                                                 blocked
    block     pending                            blocked      a dependency is missing                    dependencies
    unblock   blocked                            pending      every dependency exists                    dependencies
    dispatch  pending                            dispatched   worker and model usable, branch not in use attempts
    start     dispatched                         in_progress  free slot, enough budget                   attempts
    complete  in_progress                        completed    contract met, approved, merged             completion
    fail      dispatched, in_progress            failed       cannot start, or ended without a result    attempts,
                                                                                                         completion
    cancel    pending, blocked, dispatched,      cancelled    no submitted result that can be merged     attempts
              in_progress
    reopen    failed, cancelled                  pending      redispatch, then `dispatch` follows        attempts
    abandon   pending, blocked, failed,          abandoned    -                                          attempts
              cancelled

Effects inside the transaction: `dispatch` opens a new attempt (number, branch). `start` is committed together with the
new run, `complete` and `fail` together with the end of that run. Every event clears `hold` and `conflict`.

Effects after the transaction: the artifact of an ended commission is written, and its checkout is removed unless a
conflict is open. Blocked commissions are checked again, and the queue starts the next commission. Each effect is
idempotent, so that `next_step` can derive the remaining step from the row and its run after a crash.

Does not have I/O: `records.record_event` stores the outcome of an event.

Invariant: the row and the timeline change in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.errors import Conflict, GuildError, UsageError
from guildhall.core.text_checks import did_you_mean
from guildhall.projects.model import Transition
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import Run

if TYPE_CHECKING:
    from guildhall.projects.commissions.model import Commission

Status = Literal["pending", "blocked", "dispatched", "in_progress", "completed", "failed", "cancelled", "abandoned"]
STATUSES: tuple[Status, ...] = get_args(Status)
ACTIVE: frozenset[Status] = frozenset({"dispatched", "in_progress"})
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled", "abandoned"})
FINAL: frozenset[Status] = frozenset({"completed", "abandoned"})  # no event leaves these

Event = Literal["block", "unblock", "dispatch", "start", "complete", "fail", "cancel", "reopen", "abandon"]
# Timeline entries that do not change the status.
Note = Literal["edit", "hold", "submit", "check", "review", "restore_checkout", "keep_ignored", "inspect"]
Creation = Literal["create", "rebuild"]  # by a user or the manager, or from an artifact without a row


TRANSITIONS: Mapping[Event, Transition[Status]] = {
    "block": Transition(("pending",), "blocked"),
    "unblock": Transition(("blocked",), "pending"),
    "dispatch": Transition(("pending",), "dispatched"),
    "start": Transition(("dispatched",), "in_progress"),
    "complete": Transition(("in_progress",), "completed"),
    "fail": Transition(("dispatched", "in_progress"), "failed"),
    "cancel": Transition(("pending", "blocked", "dispatched", "in_progress"), "cancelled"),
    "reopen": Transition(("failed", "cancelled"), "pending"),
    "abandon": Transition(("pending", "blocked", "failed", "cancelled"), "abandoned"),
}

HoldKind = Literal["cannot_resume", "cannot_merge"]
_HOLD_TEXTS: Mapping[HoldKind, str] = {
    "cannot_resume": "Paused: the run cannot be resumed",
    "cannot_merge": "The work is done but cannot be merged now",
}


@dataclass(frozen=True, kw_only=True)
class Hold:
    """The external reason that prevents a commission in progress from continuing. The user has to remove it.

    A hold is not a state: `guild resume` or the next start of a hall tries again.
    """

    kind: HoldKind
    message: str
    where: str | None = None
    hint: str | None = None

    @staticmethod
    def from_error(kind: HoldKind, error: GuildError) -> Hold:
        return Hold(kind=kind, message=error.message, where=error.where, hint=error.hint)

    def text(self, id: str) -> str:
        """Return the explanation for people, with the command that continues the commission."""
        where = f" ({self.where})" if self.where else ""
        hint = f" {self.hint.rstrip('.')}." if self.hint else ""
        return f"{_HOLD_TEXTS[self.kind]}: {self.message.rstrip('.')}{where}.{hint} Then: guild resume {id}"


def parse_status(name: str) -> Status:
    """Return the status with this name. Raise UsageError for an unknown name."""
    for status in STATUSES:
        if name == status:
            return status
    raise UsageError(f"unknown commission status {name[:40]!r}", hint=did_you_mean(name[:40], STATUSES))


def check_event(commission: Commission, event: Event) -> None:
    """Raise Conflict if an event is not allowed in the current state."""
    if commission.status not in TRANSITIONS[event].sources:
        message = f"cannot {event} commission {commission.id}: it is {commission.status}"
        raise Conflict(message, hint=commission.next_command)


def apply_event(commission: Commission, event: Event, *, reason: str, now: str, **changes: Any) -> Commission:
    """Return the commission after an event. Raise Conflict if the event is not allowed."""
    check_event(commission, event)
    fields: dict[str, Any] = {"hold": None, "conflict": (), **changes}
    return replace(commission, status=TRANSITIONS[event].target, reason=reason, changed_at=now, **fields)


_RESET_FIELDS = (
    "run",
    "summary",
    "result",
    "submitted_at",
    "submitted_commit",
    "diffstat",
    "checkout_lost_at",
    "loss_reported_by",
)


def new_attempt(commission: Commission) -> dict[str, Any]:
    """Return the field changes of `dispatch`: the next attempt with its branch, and cleared attempt fields."""
    number = commission.attempt + 1
    return {**dict.fromkeys(_RESET_FIELDS), "attempt": number, "branch": f"claude/commission/{commission.id}-{number}"}


Step = Literal["none", "queue", "finish", "hold", "cancel", "fail", "clean_up"]


def next_step(commission: Commission, run: Run | None, *, is_alive: bool) -> Step:
    """Return the remaining step of a commission when a hall starts.

    `run`: the recorded run of the current attempt. `is_alive`: this hall executes the run. The step depends on nothing
    else, and so not on the instant at which the previous hall was killed.
    """
    if commission.status == "dispatched":
        return "queue"
    if commission.status != "in_progress":
        return "clean_up" if commission.status in ENDED else "none"
    if run is None:
        return "fail"  # the record of the run is lost
    if is_alive or run.needs_user:
        return "none"
    if run.status in RUN_ENDED:  # killed between the end of the run and the end of the commission
        return "cancel" if run.status == "cancelled" else "finish"
    return "none" if commission.hold is not None else "hold"
