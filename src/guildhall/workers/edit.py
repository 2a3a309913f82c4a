"""Changes one field of a worker file and nothing else: comments, order and spacing stay as the user wrote them.

The change is made in the text itself where that is possible, and checked by reading the new text back. The new file
takes the place of the old one in one step.
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, GuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BOM = "\ufeff"


def set_field(path: Path, field: str, value: str | bool) -> None:
    """Sets a top-level field of a worker file."""
    source = yaml.read(path)
    expected = {**cast("dict[str, Any]", source.data), field: value}
    for text in _candidates(source, field, value):
        if _reads_as(path, text, expected):
            bom = _BOM if path.read_bytes().startswith(_BOM.encode()) else ""
            replace_user_file(path, bom + text)
            return
    raise Conflict(
        f"{field}: the file is written in a way that cannot be changed safely",
        where=str(path),
        hint=f"Write `{field}: {_written(value)}` into it yourself.",
    )


def _candidates(source: yaml.Source, field: str, value: str | bool) -> Iterator[str]:
    """New texts, the least change first. One may turn out wrong: they are read back before use."""
    if source.path.suffix == ".json":
        yield _json(source, field, value)
        return
    yield from _in_place(source.text, field, value)
    yield _round_trip(source.text, field, value)


def _reads_as(path: Path, text: str, expected: dict[str, Any]) -> bool:
    try:
        return yaml.parse(path, text).data == expected
    except GuildError:
        return False


def _written(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _json(source: yaml.Source, field: str, value: str | bool) -> str:
    indent = re.match(r"\s*\{[ \t]*\r?\n([ \t]+)", source.text)
    data = {**cast("dict[str, Any]", source.data), field: value}
    text = json.dumps(data, indent=indent[1] if indent else None, ensure_ascii=False)
    return text + ("\n" if source.text.endswith("\n") else "")


def _in_place(text: str, field: str, value: str | bool) -> Iterator[str]:
    """The text with the value replaced where it stands, or with a line of its own after the name, or at the top."""
    mapping = yaml.keeping().compose(text)
    nodes: dict[str, Any] = {key.value: node for key, node in mapping.value if isinstance(key.value, str)}
    new = _written(value)
    if not mapping.value:
        return
    if field in nodes:
        start, end = nodes[field].start_mark.index, nodes[field].end_mark.index
        yield text[:start] + (new if end > start else f" {new}") + text[end:]
        return
    first = mapping.value[0][0].start_mark
    if mapping.flow_style:
        yield f"{text[: first.index]}{field}: {new}, {text[first.index :]}"
        return
    newline = "\r\n" if "\r\n" in text else "\n"
    line = f"{' ' * first.column}{field}: {new}{newline}"
    if "name" in nodes and (after := text.find("\n", nodes["name"].end_mark.index)) >= 0:
        yield text[: after + 1] + line + text[after + 1 :]
    yield text[: first.index - first.column] + line + text[first.index - first.column :]


def _round_trip(text: str, field: str, value: str | bool) -> str:
    writer = yaml.keeping()
    tree = writer.load(text)
    tree[field] = value
    out = io.StringIO()
    writer.dump(tree, out)
    return out.getvalue()
