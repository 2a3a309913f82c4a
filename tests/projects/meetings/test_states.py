"""The state machine: every event in every state on a real database, and the next step after a crash."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from sqlalchemy import update

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.activity_records import list_timeline
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import Meeting, Session
from guildhall.projects.meetings.states import (
    ENDED,
    STATUSES,
    TRANSITIONS,
    Closing,
    Creation,
    Event,
    MeetingStatus,
    Note,
    apply_event,
    check_open,
    next_step,
)
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from guildhall.store.tables import meetings

if TYPE_CHECKING:
    from collections.abc import Generator

AT = "2026-03-01T12:00:00Z"
LATER = "2026-03-02T12:00:00Z"

# The table of docs/meetings.md, written down once more on purpose.
PERMITTED = {"requested": "open declined requested", "open": "closed", "closed": "", "declined": ""}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Store]:
    path: Path = tmp_path_factory.mktemp("store") / "guildhall.db"
    prepare(path)
    store = Store(path)
    yield store
    store.close()


def meeting(status: MeetingStatus = "open", id: str = "t-7k2m9x4qpw", **fields: Any) -> Meeting:
    times = {"created_at": AT, "changed_at": AT}
    return Meeting(id=id, project="shop", worker="architect", topic="Exports", status=status, **{**times, **fields})


def test_the_transitions_are_those_of_the_document() -> None:
    found: dict[str, set[str]] = {status: set() for status in STATUSES}
    for transition in TRANSITIONS.values():
        for source in transition.sources:
            found[source].add(transition.target)
    assert found == {before: set(after.split()) for before, after in PERMITTED.items()}
    assert {status for status, after in PERMITTED.items() if not after} == ENDED


@pytest.mark.parametrize("kind", sorted({*get_args(Event), *get_args(Note), *get_args(Creation)}))
def test_every_kind_of_a_timeline_entry_is_documented(kind: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "meetings.md").read_text()
    assert re.search(rf"`{kind}`|^\| {kind}\b", page, re.MULTILINE)


def test_every_event_in_every_state(store: Store) -> None:
    one = meeting("requested")
    store.submit(lambda connection: records.add(connection, one, "request", "requested by the worker")).result()
    for before, event in product(STATUSES, TRANSITIONS):
        values = {"status": before, "reason": "set by the test", "deferred_to": LATER}
        store.submit(lambda c, values=values: c.execute(update(meetings).values(**values))).result()
        lines = store.read(lambda connection: list_timeline(connection, one.id))

        def apply(connection: Any, event: Any = event) -> Meeting:
            return records.record_event(connection, one.id, event, f"by {event}", LATER, summary="a summary")

        target = TRANSITIONS[event].target
        if before in TRANSITIONS[event].sources:
            after = store.submit(apply).result()
            assert (after.status, after.reason, after.summary) == (target, f"by {event}", "a summary")
            assert after.deferred_to is None, "every event shows a deferred request again"
            assert store.read(lambda connection: records.get(connection, one.id)) == after
            *same, line = store.read(lambda connection: list_timeline(connection, one.id))
            assert same == lines
            assert (line.kind, line.before, line.after, line.at) == (event, before, target, LATER)
        else:
            with pytest.raises(Conflict, match=f"cannot {event} meeting .*: it is {before}") as refused:
                store.submit(apply).result()
            assert refused.value.hint
            now = store.read(lambda connection: records.get(connection, one.id))
            assert (now.status, now.reason, now.deferred_to) == (before, "set by the test", LATER)
            assert store.read(lambda connection: list_timeline(connection, one.id)) == lines


def test_a_deferred_request_keeps_its_date() -> None:
    assert apply_event(meeting("requested"), "defer", reason="", now=LATER, deferred_to=LATER).deferred_to == LATER


@pytest.mark.parametrize("status", [status for status in STATUSES if status != "open"])
def test_the_user_talks_in_open_meetings_only(status: MeetingStatus) -> None:
    check_open(meeting())
    with pytest.raises(Conflict, match=f"is {status}"):
        check_open(meeting(status))


def test_an_unknown_id_is_not_found(store: Store) -> None:
    for id in ("t-nothing", "", "'; drop table meetings", "x" * 10_000):
        with pytest.raises(NotFound):
            store.read(lambda connection, id=id: records.get(connection, id))


def test_a_row_reads_back_as_it_was_written(store: Store) -> None:
    more = {"linked": (".lore/plan.md",), "closing": Closing(leave_work=True), "cleaned_up_at": AT, "by": "hall"}
    one = meeting("closed", "t-9k2m9x4qpw", **more)
    store.submit(lambda connection: records.add(connection, one, "rebuild", "rebuilt")).result()
    assert store.read(lambda connection: records.get(connection, one.id)) == one
    assert one.is_work_left


def test_sessions_are_told_by_their_kind_not_by_their_text(store: Store) -> None:
    one = meeting(id="t-8k2m9x4qpw")
    first, second = Session(run="r-1", last_message_number=1), Session(run="r-2", last_message_number=3)

    def write(connection: Any) -> None:
        records.add(connection, one, "open", "renewed: a session")
        records.add_session(connection, one.id, first, "", AT)
        records.add_note(connection, one.id, "link", "the first session starts", AT, path=".lore/plan.md")
        records.add_session(connection, one.id, second, "", AT)

    store.submit(write).result()
    assert store.read(lambda connection: records.list_sessions(connection, one.id)) == [first, second]
    kinds = [entry.kind for entry in store.read(lambda connection: list_timeline(connection, one.id))]
    assert kinds == ["open", "start_session", "link", "renew_session"]
    now = store.read(lambda connection: records.get(connection, one.id))
    assert (now.run, now.session_count) == ("r-2", 2)


RUN = {"run": "r-1", "branch": "claude/meeting/t-7k2m9x4qpw"}


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"status": "requested"}, "none"),
        ({"status": "declined"}, "none"),
        ({"status": "open"}, "none"),  # nobody has come yet
        ({"status": "open", "branch": RUN["branch"]}, "none"),  # accepted, no session yet
        ({"status": "open", **RUN}, "restore_checkout"),
        ({"status": "open", **RUN, "closing": Closing()}, "close"),
        ({"status": "open", "closing": Closing(summarise=False)}, "close"),  # nobody came, and it is closed
        ({"status": "closed", **RUN, "closing": Closing()}, "clean_up"),
        ({"status": "closed"}, "clean_up"),  # rebuilt from its artifact
        ({"status": "closed", **RUN, "closing": Closing(), "cleaned_up_at": AT}, "none"),
    ],
)
def test_the_next_step_after_a_crash(fields: dict[str, Any], step: str) -> None:
    assert next_step(meeting(**fields)) == step
    assert next_step(meeting(**fields, reason="closing put_away", summary="is being closed")) == step, (
        "texts decide nothing"
    )
