"""Parts that are built on first use."""

from __future__ import annotations

import pytest

from guildhall.hall.composition.lazy import Lazy, lazy


class House:
    def __init__(self, name: str) -> None:
        self.name = name
        self.built: list[str] = []

    @lazy
    def kitchen(self) -> str:
        """Where people cook."""
        self.built.append("kitchen")
        return f"kitchen of {self.name}"

    @lazy
    def nothing(self) -> str | None:
        self.built.append("nothing")
        return None


def test_a_part_is_built_on_first_access_and_once():
    house = House("a")
    assert house.built == []
    assert [house.kitchen, house.kitchen] == ["kitchen of a", "kitchen of a"]
    assert house.built == ["kitchen"]


def test_peek_returns_none_until_a_part_is_built_and_never_builds_it():
    house = House("a")
    assert House.kitchen.of(house).peek() is None
    assert house.built == []
    assert house.kitchen == "kitchen of a"
    assert House.kitchen.of(house).peek() == "kitchen of a"


def test_a_part_passed_on_is_the_part_of_its_instance():
    first, second = House("a"), House("b")
    passed = House.kitchen.of(first)
    assert second.kitchen == "kitchen of b"
    assert passed.peek() is None
    assert passed() == first.kitchen == "kitchen of a"
    assert first.built == ["kitchen"]


def test_none_is_a_value_that_is_built_once():
    house = House("a")
    assert [house.nothing, house.nothing] == [None, None]
    assert house.built == ["nothing"]


def test_a_part_that_could_not_be_built_is_built_on_the_next_access():
    outcomes = iter([ValueError("not yet"), None])

    def build() -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "built"

    part = Lazy(build)
    with pytest.raises(ValueError, match="not yet"):
        part()
    assert part.peek() is None
    assert part() == "built"


def test_a_part_keeps_the_docstring_of_its_method():
    assert House.kitchen.__doc__ == "Where people cook."
    assert isinstance(House.kitchen.of(House("a")), Lazy)
