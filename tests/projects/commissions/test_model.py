"""What may be asked for, and what may follow on what: every pair of the eight states, on a real database."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.graph import edges, missing, neighbours, refuse_cycle
from guildhall.projects.commissions.model import (
    STATUS,
    TRANSITIONS,
    Commission,
    Draft,
    artifact_of,
    checked_status,
    commission_in,
)
from guildhall.projects.records import moments
from guildhall.store.engine import Store
from guildhall.store.guild_tables import commissions
from guildhall.store.migrate import prepare

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.projects.commissions.model import Status

AT = "2026-03-01T12:00:00Z"
DRAFT = Draft(title="A key", worker="smith", prompt="Forge a key.")

# As the document on states has them, written down once more on purpose.
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Generator[Store]:
    path: Path = tmp_path_factory.mktemp("store") / "guildhall.db"
    prepare(path)
    store = Store(path)
    yield store
    store.close()


def commission(number: int = 2, status: Status = "pending", **draft: Any) -> Commission:
    id = f"c-{number:0>10}".replace("0", "2").replace("1", "3")
    return Commission(id=id, project="shop", draft=replace(DRAFT, **draft), status=status, created_at=AT, changed_at=AT)


def test_the_transitions_are_those_of_the_document() -> None:
    assert {before: set(after.split()) for before, after in PERMITTED.items()} == {
        k: set(v) for k, v in TRANSITIONS.items()
    }
    assert set(STATUS) == set(PERMITTED)


@pytest.mark.req("COM-6")
def test_every_pair_of_states(store: Store) -> None:
    one = commission()
    store.submit(lambda connection: records.add(connection, one, "created")).result()
    for before, after in product(STATUS, STATUS):
        values = {"status": before, "reason": "set by the test"}
        store.submit(lambda c, values=values: c.execute(update(commissions).values(**values))).result()
        lines = store.read(lambda connection: moments(connection, one.id))

        def move(connection: Any, after: Any = after) -> Commission:
            return records.move(connection, one.id, after, f"to {after}", AT, attempt=7)

        if after in PERMITTED[before].split():
            moved = store.submit(move).result()
            assert (moved.status, moved.reason, moved.attempt) == (after, f"to {after}", 7)
            *same, line = store.read(lambda connection: moments(connection, one.id))
            assert same == lines
            assert (line.before, line.after, line.reason, line.at) == (before, after, f"to {after}", AT)
        else:
            with pytest.raises(Conflict, match=f"is {before}: it cannot become {after}"):
                store.submit(move).result()
            now = store.read(lambda connection: records.get(connection, one.id))
            assert (now.status, now.reason) == (before, "set by the test")
            assert store.read(lambda connection: moments(connection, one.id)) == lines


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for id in ("c-nothing", "", "'; drop table commissions", "x" * 10_000):
        with pytest.raises(NotFound):
            store.read(lambda connection, id=id: records.get(connection, id))


def test_a_commission_is_on_record_as_it_is(store: Store) -> None:
    one = commission(
        9,
        dependencies=(".lore/plan.md",),
        artifacts=("src/key.py",),
        linked=("README.md",),
        max_turns=7,
        max_budget_usd=1.5,
        model="script:x.yaml",
        checks=("make test",),
        reviewer="critic",
    )
    store.submit(lambda connection: records.add(connection, one, "created")).result()
    assert store.read(lambda connection: records.get(connection, one.id)) == one


HOSTILE: list[dict[str, Any]] = [
    {"title": ""},
    {"title": " \n"},
    {"title": "two\nlines"},
    {"title": "x" * 201},
    {"title": "bell\a"},
    {"title": 3},
    {"worker": ""},
    {"prompt": ""},
    {"prompt": "\0"},
    {"prompt": "half \ud800"},
    {"prompt": "ä" * 30_000},
    {"checks": ("x" * 4_000,) * 20},
    {"dependencies": "plan.md"},
    {"dependencies": ("/etc/passwd",)},
    {"dependencies": ("../other",)},
    {"dependencies": ("a//b",)},
    {"artifacts": (".git/config",)},
    {"artifacts": ("src/.GIT/hooks",)},
    {"artifacts": ("a\\b",)},
    {"artifacts": ("a\nb",)},
    {"artifacts": ("same", "same")},
    {"artifacts": ("x" * 300,)},
    {"artifacts": ("a/" * 40 + "b",)},
    {"artifacts": tuple(map(str, range(101)))},
    {"linked": (3,)},
    {"linked": ("",)},
    {"max_turns": 0},
    {"max_turns": True},
    {"max_budget_usd": float("nan")},
    {"max_budget_usd": -1},
    {"model": ""},
    {"model": "a\nb"},
    {"checks": "make"},
    {"checks": ("",)},
    {"checks": ("make\0",)},
    {"checks": ("make",) * 21},
    {"reviewer": " "},
]


@pytest.mark.parametrize("wrong", HOSTILE, ids=lambda wrong: f"{next(iter(wrong))}-{HOSTILE.index(wrong)}")
def test_a_draft_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(DRAFT, **wrong).check()


def test_a_draft_changes_in_what_it_has() -> None:
    assert DRAFT.changed({"title": "Two keys", "artifacts": ["a.md"]}) == replace(
        DRAFT, title="Two keys", artifacts=("a.md",)
    )
    with pytest.raises(UsageError, match="no 'titel'"):
        DRAFT.changed({"titel": "x"})
    with pytest.raises(UsageError):
        DRAFT.changed({"status": "completed"})


def test_a_status_by_its_word() -> None:
    assert checked_status("blocked") == "blocked"
    with pytest.raises(UsageError, match="no status"):
        checked_status("done")


def test_the_commission_that_a_path_is() -> None:
    id = commission().id
    assert commission_in(artifact_of(id)) == id
    for path in (".lore/commissions/x.md", f".lore/commissions/sub/{id}.md", f"{id}.md", "", ".lore/commissions/.md"):
        assert commission_in(path) is None


@pytest.mark.req("SYS-14")
def test_the_graph_is_derived_from_the_references() -> None:
    plan = commission(2, artifacts=(".lore/plan.md",))
    code = commission(3, dependencies=(".lore/plan.md",), artifacts=("src/a.py",))
    test = commission(4, dependencies=("src/a.py", artifact_of(plan.id)))
    gone = commission(5, status="abandoned", artifacts=("src/a.py",))
    every = [plan, code, test, gone]
    assert edges(every) == {
        plan.id: [],
        code.id: [(".lore/plan.md", plan.id)],
        test.id: [("src/a.py", code.id), (artifact_of(plan.id), plan.id)],
        gone.id: [],
    }
    around = neighbours(code, every, ["x"])
    assert (around.missing, around.after, around.before) == (["x"], [plan.id], [test.id])
    assert missing(test, lambda path: path == "src/a.py", lambda id: False) == [artifact_of(plan.id)]
    assert missing(test, lambda path: False, lambda id: id == plan.id) == ["src/a.py"]


@pytest.mark.req("SYS-14")
def test_a_cycle_is_refused_and_shown() -> None:
    one = commission(2, dependencies=("c.md",), artifacts=("a.md",))
    two = commission(3, dependencies=("a.md",), artifacts=("b.md",))
    three = commission(4, dependencies=("b.md",), artifacts=("c.md",))
    refuse_cycle([one, two], two.id)
    with pytest.raises(Conflict) as caught:
        refuse_cycle([one, two, three], three.id)
    assert f"{three.id} -> b.md -> {two.id} -> a.md -> {one.id} -> c.md -> {three.id}" in caught.value.message
    alone = commission(5, dependencies=("x.md",), artifacts=("x.md",))
    with pytest.raises(Conflict, match="wait for itself"):
        refuse_cycle([alone], alone.id)
