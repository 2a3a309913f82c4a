"""Lazy attributes: build a part of a hall on first use, once.

    class Hall:
        @lazy
        def members(self) -> Members:
            return Members(...)

    hall.members                        the members, built on first access
    Hall.members.of(hall)               a `Lazy[Members]`, for an object that may need the members later
    Hall.members.of(hall).peek()        the members if they were built, else None

Building a part can import modules and read files. `peek` is for callers such as shutdown, which have nothing to do
with an unused part.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Lazy(Generic[T]):
    """A value that is built when it is first asked for, and once only."""

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._built: list[T] = []

    def __call__(self) -> T:
        """Return the value. Build it first if necessary."""
        if not self._built:
            self._built.append(self._build())
        return self._built[0]

    def peek(self) -> T | None:
        """Return the value, or None if it is not built."""
        return self._built[0] if self._built else None


class lazy(Generic[T]):  # noqa: N801 - a decorator, like `property`
    """Turn a method into an attribute whose value is built on first access."""

    def __init__(self, build: Callable[[Any], T]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._slot = f"_lazy_{name}"

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...

    def __get__(self, instance: object, owner: type[Any]) -> Self | T:
        return self if instance is None else self.of(instance)()

    def of(self, instance: object) -> Lazy[T]:
        """Return the attribute of an instance as a `Lazy`, without building its value."""
        return vars(instance).setdefault(self._slot, Lazy(partial(self._build, instance)))
