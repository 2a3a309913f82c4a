"""The text of config.yaml with a project put in or taken out. All else stays as it was written, comments too."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError
from guildhall.core.yaml_text import dump, field_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HINT = "Write the change into it yourself: `projects:`, then `  NAME:` with `path:` and `branch:`."


def with_project(text: str, name: str, fields: Mapping[str, str]) -> str:
    """The text with one more project."""
    data = _data(text)
    others: dict[str, Any] = data.get("projects") or {}
    expected = {**data, "projects": {**others, name: dict(fields)}}
    return _first_right(_with(text, name, fields), expected)


def with_fields(text: str, name: str, fields: Mapping[str, str]) -> str:
    """The text with something else said of a project that it has."""
    data = _data(text)
    others: dict[str, Any] = data["projects"]
    expected = {**data, "projects": {**others, name: {**others[name], **fields}}}
    return _first_right(_with_fields(text, name, fields), expected)


def without_project(text: str, name: str) -> str:
    """The text with one project less."""
    data = _data(text)
    rest = {other: value for other, value in data["projects"].items() if other != name}
    return _first_right(_without(text, name), {**data, "projects": rest})


def _data(text: str) -> dict[str, Any]:
    data: Any = _parsed(text)
    if data is not None and not isinstance(data, dict):
        raise Conflict("config.yaml has no fields, so none can be put in", hint=_HINT)
    return cast("dict[str, Any]", data or {})


def _parsed(text: str) -> Any:
    from pathlib import Path

    return yaml.parse(Path("config.yaml"), text).data if text.strip() else None


def _first_right(texts: Iterator[str], expected: dict[str, Any]) -> str:
    """The first text that says exactly what it should: each is read back before it is used."""
    for text in texts:
        try:
            read: dict[str, Any] = _parsed(text) or {}
        except GuildError:
            continue
        if {**read, "projects": read.get("projects") or {}} == expected:
            return text
    raise Conflict("config.yaml is written in a way that cannot be changed safely", hint=_HINT)


def _with(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    inner = [f"  {line}" for field, value in fields.items() for line in field_lines(field, value, 4)]
    lines = [dump({name: None}).removesuffix(" null\n"), *inner]
    node = _field(text, "projects")
    if node is None:
        yield ended + "".join(f"{line}\n" for line in ("projects:", *(f"  {line}" for line in lines)))
    elif getattr(node, "value", None) and not node.flow_style and not isinstance(node.value, str):
        column = node.value[0][0].start_mark.column
        at = _end_of(ended, node)
        yield ended[:at] + "".join(f"{' ' * column}{line}\n" for line in lines) + ended[at:]
    yield _round_trip(text, partial(_set, name=name, fields=dict(fields)))


def _without(text: str, name: str) -> Iterator[str]:
    node = _field(text, "projects")
    if node is not None and not node.flow_style and len(node.value) > 1:
        starts = [(key.value, key.start_mark) for key, _ in node.value]
        place = next(n for n, (key, _) in enumerate(starts) if key == name)
        start = text.rfind("\n", 0, starts[place][1].index) + 1
        last = place == len(starts) - 1
        end = _end_of(text, node) if last else text.rfind("\n", 0, starts[place + 1][1].index) + 1
        yield text[:start] + text[end:]
    yield _round_trip(text, partial(_unset, name=name))


def _with_fields(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Each value replaced where it stands, from the last to the first."""
    entries = {key.value: value.value for key, value in _field(text, "projects").value}
    entry: list[tuple[Any, Any]] = entries[name]
    places = [(value.start_mark.index, value.end_mark.index, key.value) for key, value in entry if key.value in fields]
    new = text
    for start, end, field in sorted(places, reverse=True):
        new = new[:start] + json.dumps(fields[field], ensure_ascii=False) + new[end:]
    yield new
    yield _round_trip(text, partial(_update, name=name, fields=fields))


def _end_of(text: str, node: Any) -> int:
    """Where the lines of a mapping end: after its last value, not after the comments and empty lines behind it."""
    last: Any = node.value[-1][1]
    while getattr(last, "value", None) and not isinstance(last.value, str) and not last.flow_style:
        last = last.value[-1][1] if isinstance(last.value[-1], tuple) else last.value[-1]
    end = last.end_mark.index
    if end and text[end - 1] == "\n":  # of a block of text: it ends where the next line begins
        return end
    line = text.find("\n", end)
    return len(text) if line < 0 else line + 1


def _field(text: str, name: str) -> Any:
    tree = yaml.keeping().compose(text) if text.strip() else None
    pairs: list[tuple[Any, Any]] = tree.value if tree is not None and not isinstance(tree.value, str) else []
    return next((value for key, value in pairs if key.value == name), None)


def _set(tree: Any, name: str, fields: dict[str, str]) -> None:
    if not tree.get("projects"):
        tree["projects"] = {}
    tree["projects"][name] = fields


def _update(tree: Any, name: str, fields: Mapping[str, str]) -> None:
    tree["projects"][name].update(fields)


def _unset(tree: Any, name: str) -> None:
    del tree["projects"][name]


def _round_trip(text: str, change: Any) -> str:
    ruamel = yaml.keeping()
    tree = ruamel.load(text)
    if tree is None:
        return ""
    change(tree)
    out = io.StringIO()
    ruamel.dump(tree, out)
    return out.getvalue()
