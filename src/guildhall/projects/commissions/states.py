"""The state machine of a commission: its states, the events that change them, and the next step after a crash.

    event     from                               to           guard                                      checked in
    create    (new)                              pending,     valid draft, no dependency cycle           drafts
                                                 blocked
    block     pending                            blocked      a dependency is missing                    dependencies
    unblock   blocked                            pending      every dependency exists                    dependencies
    dispatch  pending                            dispatched   worker and model usable, branch not in use attempts
    start     dispatched                         in_progress  free slot, enough budget                   attempts
    complete  in_progress                        completed    contract met, approved, merged             completion
    fail      dispatched, in_progress            failed       cannot start, or ended without a result    completion
    cancel    pending, blocked, dispatched,      cancelled    no submitted result that can be merged     attempts
              in_progress
    reopen    failed, cancelled                  pending      redispatch, then `dispatch` follows        attempts
    abandon   pending, blocked, failed,          abandoned    -                                          attempts
              cancelled

Effects inside the transaction: `dispatch` opens a new attempt (number, branch). `start` is committed together with the
new run, `complete` and `fail` together with the end of that run. Every event clears `hold` and `conflict`.

Effects after the transaction: the checkout of an ended commission is removed (not while a conflict is open), and its
artifact is written. Blocked commissions are checked again, and the queue starts the next commission. Each effect
detects that it was done before, so a crash needs no separate log: `next_step` returns the step that is left to do.

Does not have I/O: `records.apply` stores the outcome of an event.

Invariant: the row and the timeline change in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.errors import Conflict, GuildError, UsageError
from guildhall.core.text import did_you_mean
from guildhall.projects.model import Transition
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.projects.commissions.model import Commission

Status = Literal["pending", "blocked", "dispatched", "in_progress", "completed", "failed", "cancelled", "abandoned"]
STATUSES: tuple[Status, ...] = get_args(Status)
ACTIVE: frozenset[Status] = frozenset({"dispatched", "in_progress"})
ENDED: frozenset[Status] = frozenset({"completed", "failed", "cancelled", "abandoned"})
FINAL: frozenset[Status] = frozenset({"completed", "abandoned"})  # no event leaves these

Event = Literal["block", "unblock", "dispatch", "start", "complete", "fail", "cancel", "reopen", "abandon"]
# Timeline entries that do not change the status.
Note = Literal["edit", "hold", "submit", "check", "review", "restore_checkout", "keep_ignored", "inspect"]
Creation = Literal["create", "rebuild"]  # by a user or the manager, or from the artifact when the row was lost


TRANSITIONS: Mapping[Event, Transition[Status]] = {
    "block": Transition(("pending",), "blocked", "blocked"),
    "unblock": Transition(("blocked",), "pending", "unblocked"),
    "dispatch": Transition(("pending",), "dispatched", "dispatched"),
    "start": Transition(("dispatched",), "in_progress", "started"),
    "complete": Transition(("in_progress",), "completed", "completed"),
    "fail": Transition(("dispatched", "in_progress"), "failed", "failed"),
    "cancel": Transition(("pending", "blocked", "dispatched", "in_progress"), "cancelled", "cancelled"),
    "reopen": Transition(("failed", "cancelled"), "pending", "redispatched"),
    "abandon": Transition(("pending", "blocked", "failed", "cancelled"), "abandoned", "abandoned"),
}

BRANCHES = "claude/commission"

HoldKind = Literal["cannot_resume", "cannot_merge"]
_HOLD_TEXT: Mapping[HoldKind, str] = {
    "cannot_resume": "Paused: the run cannot be resumed",
    "cannot_merge": "The work is done but cannot be merged now",
}


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why a commission in progress is stopped: something outside of it is wrong, and the user has to fix it.

    A hold is not a state: nothing is wrong with the commission, and `guild resume` or the next start tries again.
    """

    kind: HoldKind
    message: str
    where: str | None = None
    hint: str | None = None

    @staticmethod
    def from_error(kind: HoldKind, error: GuildError) -> Hold:
        return Hold(kind=kind, message=error.message, where=error.where, hint=error.hint)

    def text(self, id: str) -> str:
        """Return the explanation for people, with the command that continues."""
        where = f" ({self.where})" if self.where else ""
        hint = f" {self.hint.rstrip('.')}." if self.hint else ""
        return f"{_HOLD_TEXT[self.kind]}: {self.message.rstrip('.')}{where}.{hint} Then: guild resume {id}"


def parse_status(word: str) -> Status:
    """Return the status with this name. Raise UsageError for an unknown name."""
    for status in STATUSES:
        if word == status:
            return status
    raise UsageError(f"unknown commission status {word[:40]!r}", hint=did_you_mean(word[:40], STATUSES))


def check_event(commission: Commission, event: Event) -> None:
    """Raise Conflict if an event is not allowed in the current state."""
    transition = TRANSITIONS[event]
    if commission.status not in transition.sources:
        message = f"commission {commission.id} is {commission.status}: it cannot be {transition.participle}"
        raise Conflict(message, hint=commission.next_command)


def transit(commission: Commission, event: Event, *, reason: str, now: str, **changes: Any) -> Commission:
    """Return the commission after an event. Raise Conflict if the event is not allowed."""
    check_event(commission, event)
    fresh: dict[str, Any] = {"hold": None, "conflict": (), **changes}
    return replace(commission, status=TRANSITIONS[event].target, reason=reason, changed_at=now, **fresh)


_OF_ATTEMPT = ("run", "summary", "result", "submitted_at", "submitted_commit", "checkout_lost_at", "loss_reported_by")


def new_attempt(commission: Commission) -> dict[str, Any]:
    """Return the changes that `dispatch` makes: the next attempt with its branch, all attempt fields cleared."""
    number = commission.attempt + 1
    return {**dict.fromkeys(_OF_ATTEMPT), "attempt": number, "branch": f"{BRANCHES}/{commission.id}-{number}"}


Step = Literal["none", "queue", "finish", "hold", "cancel", "fail", "clean_up"]


def next_step(commission: Commission, run: Run | None, *, alive: bool) -> Step:
    """Return the step that is left to do for a commission when a hall starts.

    `run` is the recorded run of the current attempt and `alive` says whether this hall executes it. The answer depends
    on nothing else, so it is the same no matter at which instant the previous hall was killed.
    """
    if commission.status == "dispatched":
        return "queue"
    if commission.status != "in_progress":
        return "clean_up" if commission.status in ENDED else "none"
    if run is None:
        return "fail"  # the record of the run is lost
    if alive or run.needs_user:
        return "none"
    if run.status in RUN_ENDED:  # killed between the end of the run and the end of the commission
        return "cancel" if run.status == "cancelled" else "finish"
    return "none" if commission.hold is not None else "hold"
