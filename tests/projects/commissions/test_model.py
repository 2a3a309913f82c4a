"""Drafts, paths and the dependency graph: what may be asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Conflict, UsageError
from guildhall.projects.commissions.dependencies import check_acyclic, dependency_graph, missing_paths, neighbours
from guildhall.projects.commissions.model import Commission, Draft, artifact_path, parse_artifact_path

if TYPE_CHECKING:
    from guildhall.projects.commissions.states import Status

AT = "2026-03-01T12:00:00Z"
DRAFT = Draft(title="A key", worker="smith", prompt="Forge a key.")


def commission(number: int = 2, status: Status = "pending", **draft: Any) -> Commission:
    id = f"c-{number:0>10}".replace("0", "2").replace("1", "3")
    return Commission(id=id, project="shop", draft=replace(DRAFT, **draft), status=status, created_at=AT, changed_at=AT)


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
def test_an_invalid_draft_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(DRAFT, **wrong).check()


def test_editing_a_draft() -> None:
    assert DRAFT.edit({"title": "Two keys", "artifacts": ["a.md"]}) == replace(
        DRAFT, title="Two keys", artifacts=("a.md",)
    )
    with pytest.raises(UsageError, match="unknown field 'titel'"):
        DRAFT.edit({"titel": "x"})
    with pytest.raises(UsageError):
        DRAFT.edit({"status": "completed"})


def test_the_artifact_path_of_a_commission() -> None:
    id = commission().id
    assert parse_artifact_path(artifact_path(id)) == id
    for path in (".lore/commissions/x.md", f".lore/commissions/sub/{id}.md", f"{id}.md", "", ".lore/commissions/.md"):
        assert parse_artifact_path(path) is None


@pytest.mark.req("SYS-14")
def test_the_graph_is_derived_from_the_references() -> None:
    plan = commission(2, artifacts=(".lore/plan.md",))
    code = commission(3, dependencies=(".lore/plan.md",), artifacts=("src/a.py",))
    test = commission(4, dependencies=("src/a.py", artifact_path(plan.id)))
    gone = commission(5, status="abandoned", artifacts=("src/a.py",))
    every = [plan, code, test, gone]
    assert dependency_graph(every) == {
        plan.id: [],
        code.id: [(".lore/plan.md", plan.id)],
        test.id: [("src/a.py", code.id), (artifact_path(plan.id), plan.id)],
        gone.id: [],
    }
    around = neighbours(code, every, ["x"])
    assert (around.missing, around.after, around.before) == (["x"], [plan.id], [test.id])
    assert missing_paths(test.draft.dependencies, lambda path: path == "src/a.py", lambda id: False) == [
        artifact_path(plan.id)
    ]
    assert missing_paths(test.draft.dependencies, lambda path: False, lambda id: id == plan.id) == ["src/a.py"]


@pytest.mark.req("SYS-14")
def test_a_cycle_is_refused_and_shown() -> None:
    one = commission(2, dependencies=("c.md",), artifacts=("a.md",))
    two = commission(3, dependencies=("a.md",), artifacts=("b.md",))
    three = commission(4, dependencies=("b.md",), artifacts=("c.md",))
    check_acyclic([one, two], two.id)
    with pytest.raises(Conflict) as caught:
        check_acyclic([one, two, three], three.id)
    assert f"{three.id} -> b.md -> {two.id} -> a.md -> {one.id} -> c.md -> {three.id}" in caught.value.message
    alone = commission(5, dependencies=("x.md",), artifacts=("x.md",))
    with pytest.raises(Conflict, match="dependency cycle"):
        check_acyclic([alone], alone.id)
