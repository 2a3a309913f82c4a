"""What depends on what: derived from the paths that commissions name, and kept nowhere."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict
from guildhall.projects.commissions.model import Neighbours, commission_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.projects.commissions.model import Commission


def makers(commissions: Sequence[Commission]) -> Mapping[str, Sequence[str]]:
    """Who makes what: a path, and the commissions that declare it or are it. What was abandoned makes nothing."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for one in commissions:
        if one.status != "abandoned":
            for path in (one.path, *one.draft.artifacts):
                found[path].append(one.id)
    return found


def edges(commissions: Sequence[Commission]) -> dict[str, list[tuple[str, str]]]:
    """From each commission to those that make what it depends on, with the path that says so."""
    made = makers(commissions)
    return {
        one.id: [(path, maker) for path in one.draft.dependencies for maker in made.get(path, ())]
        for one in commissions
    }


def refuse_cycle(commissions: Sequence[Commission], start: str) -> None:
    """Raises where a commission would wait for itself, and shows the way round."""
    graph = edges(commissions)
    done: set[str] = set()
    stack: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
    while stack:
        id, way = stack.pop()
        for path, maker in graph.get(id, ()):
            if maker == start:
                shown = " -> ".join((*way, path, start))
                hint = "Take one of these dependencies out, or let another commission make the file."
                raise Conflict(f"the commission would wait for itself: {shown}", hint=hint)
            if maker not in done:
                done.add(maker)
                stack.append((maker, (*way, path, maker)))


def missing(commission: Commission, there: Callable[[str], bool], completed: Callable[[str], bool]) -> list[str]:
    """The dependencies that are not there yet. Another commission is there once it is completed."""

    def is_there(path: str) -> bool:
        other = commission_in(path)
        return completed(other) if other is not None else there(path)

    return [path for path in commission.draft.dependencies if not is_there(path)]


def neighbours(commission: Commission, commissions: Sequence[Commission], lacks: Sequence[str]) -> Neighbours:
    """What it waits for, and what waits for it."""
    graph = edges(commissions)
    return Neighbours(
        missing=lacks,
        after=list(dict.fromkeys(maker for _, maker in graph.get(commission.id, ()))),
        before=[id for id, ways in graph.items() if any(maker == commission.id for _, maker in ways)],
    )
