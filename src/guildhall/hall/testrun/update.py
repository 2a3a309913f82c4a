"""`guild test --update`: the file of a test says what is so now. Only what was recorded changes, where it stands."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import GuildError
from guildhall.core.yaml_text import dump, field_lines

if TYPE_CHECKING:
    from guildhall.core.yaml import Location, Source
    from guildhall.hall.testrun.compare import Comparison


def update_file(source: Source, comparison: Comparison) -> bool:
    """Whether the file could be brought up to date; else it stays as it is."""
    if not comparison.final or not comparison.changes:
        return False
    expected = copy.deepcopy(source.data)
    for location, value in comparison.changes.items():
        _set(expected, location, value)
    for text in (_spliced(source, comparison.changes), _written_anew(source, expected)):
        if text is not None and _reads_as(source, text, expected):
            replace_user_file(source.path, text)
            return True
    return False


def _set(data: Any, location: Location, value: Any) -> None:
    for part in location[:-1]:
        data = data[part]
    if value is None:
        cast("dict[Any, Any]", data).pop(location[-1], None)
    else:
        data[location[-1]] = value


def _reads_as(source: Source, text: str, expected: Any) -> bool:
    try:
        return yaml.parse(source.path, text).data == expected
    except GuildError:
        return False


def _written_anew(source: Source, expected: Any) -> str:
    """The whole file as `guild script` would write it; of its comments only those at the top are kept."""
    lines = source.text.splitlines()
    head = [line for place, line in enumerate(lines) if all(one.startswith("#") for one in lines[: place + 1])]
    return "".join(f"{line}\n" for line in head) + dump(expected)


def _spliced(source: Source, changes: dict[Location, Any]) -> str | None:
    """The text with each value put where the old one stands; None where one has no place yet, or loses its own."""
    from ruamel.yaml import YAML

    reader: Any = YAML(typ="rt")
    tree = reader.compose(source.text)
    text = source.text
    places = [(_place(tree, location), location[-1], value) for location, value in changes.items()]
    if any(place is None and value is not None for place, _, value in places):
        return None
    found = [(place, name, value) for place, name, value in places if place is not None]
    for (start, end, column), name, value in sorted(found, key=lambda one: one[0], reverse=True):
        if value is None:
            return None
        ends = "\n" if text[start:end].endswith("\n") else ""
        indent = " " * column
        lines = list(field_lines(str(name), value, column))
        new = "\n".join([lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])])
        text = text[:start] + new + (f"{ends}{indent}" if ends and end < len(text) else ends) + text[end:].lstrip(" ")
    return text


def _place(tree: Any, location: Location) -> tuple[int, int, int] | None:
    """Where a field stands in the text: from its name to the end of its value, and its column."""
    node, key = tree, None
    for part in location:
        if isinstance(part, int):
            node, key = node.value[part], None
            continue
        pair = next(((name, value) for name, value in node.value if name.value == part), None)
        if pair is None:
            return None
        key, node = pair
    return (key.start_mark.index, node.end_mark.index, key.start_mark.column) if key is not None else None
