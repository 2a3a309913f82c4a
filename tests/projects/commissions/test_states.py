"""The state machine: every event in every state on a real database, and the next step after a crash."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from sqlalchemy import update

from guildhall.core.errors import Conflict, NotFound, RuntimeFailed, UsageError
from guildhall.core.request_frame import RecordedFrame
from guildhall.projects.activity_records import list_timeline
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import Commission, Draft
from guildhall.projects.commissions.states import (
    ENDED,
    FINAL,
    STATUSES,
    TRANSITIONS,
    Hold,
    Status,
    apply_event,
    new_attempt,
    next_step,
    parse_status,
)
from guildhall.projects.meetings import states as meeting_states
from guildhall.projects.model import Diffstat
from guildhall.runs.model import Run, RunRequest, RunStatus, StopCause
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.store.tables import commissions
from guildhall.workers import records as worker_records

if TYPE_CHECKING:
    from collections.abc import Generator

AT = "2026-03-01T12:00:00Z"
DRAFT = Draft(title="A key", worker="smith", prompt="Forge a key.")
HOLD = Hold.from_error("cannot_merge", RuntimeFailed("the disk is full", where="/dev/sda1", hint="Delete something."))

# The document on states, written down once more on purpose.
PERMITTED = {
    "pending": "dispatched blocked cancelled abandoned",
    "blocked": "pending cancelled abandoned",
    "dispatched": "in_progress failed cancelled",
    "in_progress": "completed failed cancelled",
    "failed": "pending abandoned",
    "cancelled": "pending abandoned",
    "completed": "",
    "abandoned": "",
}


def test_the_ended_statuses_of_worker_records_are_those_of_commissions_and_meetings():
    assert set(worker_records._ENDED) == ENDED | meeting_states.ENDED


def test_no_event_leaves_a_final_status():
    assert {status for status in STATUSES if not any(status in one.sources for one in TRANSITIONS.values())} == FINAL


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Store]:
    path: Path = tmp_path_factory.mktemp("store") / "guildhall.db"
    prepare(path)
    store = Store(path)
    yield store
    store.close()


def commission(number: int = 2, status: Status = "pending", **fields: Any) -> Commission:
    id = f"c-{number:0>10}".replace("0", "2").replace("1", "3")
    return Commission(id=id, project="shop", draft=DRAFT, status=status, created_at=AT, changed_at=AT, **fields)


def test_the_transitions_are_those_of_the_document() -> None:
    found: dict[str, set[str]] = {status: set() for status in STATUSES}
    for transition in TRANSITIONS.values():
        for source in transition.sources:
            found[source].add(transition.target)
    assert found == {before: set(after.split()) for before, after in PERMITTED.items()}


@pytest.mark.req("COM-6")
def test_every_event_in_every_state(store: Store) -> None:
    one = commission(hold=HOLD, conflict=("a.py",))
    store.submit(lambda connection: records.add(connection, one, "create", "created")).result()
    for before, event in product(STATUSES, TRANSITIONS):
        values: dict[str, Any] = {"status": before, "reason": "set by the test", "conflict": ["a.py"]}
        store.submit(lambda c, values=values: c.execute(update(commissions).values(**values))).result()
        lines = store.read(lambda connection: list_timeline(connection, one.id))

        def apply(connection: Any, event: Any = event) -> Commission:
            return records.record_event(connection, one.id, event, f"by {event}", AT, attempt=7)

        target = TRANSITIONS[event].target
        if before in TRANSITIONS[event].sources:
            assert target in PERMITTED[before].split()
            after = store.submit(apply).result()
            assert (after.status, after.reason, after.attempt) == (target, f"by {event}", 7)
            assert (after.hold, after.conflict) == (None, ()), "every transition clears them"
            assert store.read(lambda connection: records.get(connection, one.id)) == after
            *same, line = store.read(lambda connection: list_timeline(connection, one.id))
            assert same == lines
            assert (line.kind, line.before, line.after, line.at) == (event, before, target, AT)
        else:
            with pytest.raises(Conflict, match=f"cannot {event} commission .*: it is {before}"):
                store.submit(apply).result()
            now = store.read(lambda connection: records.get(connection, one.id))
            assert (now.status, now.reason) == (before, "set by the test")
            assert store.read(lambda connection: list_timeline(connection, one.id)) == lines


def test_an_unknown_id_is_not_found(store: Store) -> None:
    for id in ("c-nothing", "", "'; drop table commissions", "x" * 10_000):
        with pytest.raises(NotFound):
            store.read(lambda connection, id=id: records.get(connection, id))


def test_a_row_reads_back_as_it_was_written(store: Store) -> None:
    draft = replace(
        DRAFT,
        dependencies=(".lore/plan.md",),
        artifacts=("src/key.py",),
        linked=("README.md",),
        max_turns=7,
        max_budget_usd=1.5,
        model="script:x.yaml",
        checks=("make test",),
        reviewer="critic",
    )
    one = replace(commission(9, hold=HOLD, conflict=("a.py", "b.py"), result={"keys": 2}), draft=draft)
    store.submit(lambda connection: records.add(connection, one, "create", "created")).result()
    assert store.read(lambda connection: records.get(connection, one.id)) == one


def test_a_new_attempt_keeps_nothing_of_the_one_before() -> None:
    used: dict[str, Any] = {"run": "r-1", "branch": "claude/commission/x-1", "summary": "s", "result": 1, "attempt": 1}
    used |= dict.fromkeys(("submitted_at", "submitted_commit", "checkout_lost_at", "loss_reported_by"), "x")
    used["diffstat"] = Diffstat(files=1, insertions=2, deletions=0)
    before = commission(**used)
    after = apply_event(before, "dispatch", reason="", now=AT, **new_attempt(before))
    assert after == replace(
        before,
        status="dispatched",
        reason="",
        **{**dict.fromkeys(used), "attempt": 2, "branch": f"claude/commission/{before.id}-2"},
    )


def test_a_hold_explains_itself() -> None:
    held = commission(status="in_progress", reason="smith is working on it", hold=HOLD)
    assert held.explanation == (
        "The work is done but cannot be merged now: the disk is full (/dev/sda1). Delete something. "
        f"Then: guild resume {held.id}"
    )
    assert replace(held, hold=None).explanation == "smith is working on it"


def run(status: RunStatus, pause: StopCause | None = None) -> Run:
    more: dict[str, Any] = {
        "root": "r-1",
        "parent": None,
        "worker": "smith",
        "model": "script:x",
        "request": RunRequest(worker="smith", input="go"),
    }
    more |= {
        "frame": RecordedFrame(cwd=Path("/"), root=Path("/")),
        "error": None,
        "output": None,
        "created_at": AT,
        "ended_at": None,
    }
    return Run(id="r-1", status=status, pause=pause, reason="written for people", **more)


@pytest.mark.req("COM-27")
@pytest.mark.parametrize(
    ("recorded", "alive", "hold", "step"),
    [
        (None, False, None, "fail"),
        (run("running"), True, None, "none"),
        (run("waiting"), False, None, "none"),
        (run("paused", "user"), False, HOLD, "none"),
        (run("paused", "shutdown"), False, None, "hold"),
        (run("interrupted"), False, None, "hold"),
        (run("interrupted"), False, HOLD, "none"),
        (run("completed"), False, None, "finish"),
        (run("failed"), False, HOLD, "finish"),
        (run("cancelled"), False, None, "cancel"),
    ],
)
def test_the_next_step_of_one_in_progress(recorded: Run | None, alive: bool, hold: Hold | None, step: str) -> None:
    assert next_step(commission(status="in_progress", run="r-1", hold=hold), recorded, is_alive=alive) == step


def test_no_status_in_progress_stays_without_a_run_or_a_reason() -> None:
    """For every run status, the commission is executed, needs the user, has a hold, or takes a step."""
    held = commission(status="in_progress", run="r-1", hold=HOLD)
    for status, alive in product(get_args(RunStatus), (False, True)):
        found = run(status)
        if next_step(replace(held, hold=None), found, is_alive=alive) == "none":
            assert alive or found.needs_user
    assert {next_step(commission(status=status), None, is_alive=False) for status in STATUSES} == {
        "none",
        "queue",
        "fail",
        "clean_up",
    }


def test_a_status_by_its_name() -> None:
    assert parse_status("blocked") == "blocked"
    with pytest.raises(UsageError, match="unknown commission status"):
        parse_status("done")
