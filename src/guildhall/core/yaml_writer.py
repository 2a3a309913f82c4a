"""YAML writer: formats plain data as readable YAML with short lines, and changes parts of an existing text.

New files: the data consists of text, numbers, booleans, null, lists, and mappings with text keys, in the given order.
Existing files: a caller tries several new texts, the smallest change first: a text with the value replaced in place,
then the round trip of ruamel.

Invariant: `core.yaml` reads a new text back as equal data. A changed text is used only if it reads back as expected.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from pathlib import Path

_WIDTH = 110
_MAX_NAME_CHARS = 100  # longer names use the explicit form `? name`
# Text that needs no quotes: words without characters that have a meaning in YAML.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./$-]+)*(?:[.!?])?")
_RESERVED_WORD = re.compile(r"(?i)(true|false|null|yes|no|on|off|y|n|nan|inf)")
_SINGLE_SPACE = re.compile(r"(?<=[^ ]) (?=[^ ])")


def dump(data: Mapping[str, Any]) -> str:
    """Format data as YAML."""
    return "".join(f"{line}\n" for line in _mapping(data, 0))


def field_lines(name: str, value: Any, indent: int) -> Iterator[str]:
    """Yield the lines of one field. `indent` is the column at which the caller prints them."""
    head = name if _is_plain(name) else _quote(name)
    if len(head) > _MAX_NAME_CHARS:
        yield f"? {head}"
        yield from _with_head(":", value, indent)
    else:
        yield from _with_head(f"{head}:", value, indent)


def _mapping(data: Mapping[str, Any], indent: int) -> Iterator[str]:
    for name, value in data.items():
        yield from field_lines(name, value, indent)


def _with_head(head: str, value: Any, indent: int) -> Iterator[str]:
    """Yield a value after its name or dash, on one line if it fits."""
    if isinstance(value, str):
        if _can_be_block(value):
            yield from _literal(head, value)
        elif len(head) + len(value) + indent >= _WIDTH and _can_fold(value):
            yield f"{head} >-"
            yield from (f"  {line}" for line in _fold(value, _WIDTH - indent))
        else:
            yield f"{head} {_flow(value)}"
        return
    nested = list(_block(value, indent + 2))
    if not nested:
        yield f"{head} {_flow(value)}"
        return
    yield head
    yield from (f"  {line}" if line else "" for line in nested)


def _block(value: Any, indent: int) -> Iterator[str]:
    """Yield the lines of a mapping or list in block style. Yield nothing for a short or other value."""
    if isinstance(value, dict):
        data = cast("dict[str, Any]", value)
        if not _is_short(data.values(), data, indent):
            yield from _mapping(data, indent)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        for item in () if _is_short(items, items, indent) else items:
            nested = list(_block(item, indent + 2))
            if nested:
                yield f"- {nested[0]}"
                yield from (f"  {line}" if line else "" for line in nested[1:])
            else:
                yield from _with_head("-", item, indent)


def _is_short(values: Any, whole: Any, indent: int) -> bool:
    """Return True if a mapping or list fits on one line and contains no nested values or line breaks."""
    for value in values:
        nested: bool = isinstance(value, dict | list) and bool(cast("Any", value))
        if nested or (isinstance(value, str) and "\n" in value):
            return False
    return len(_flow(whole)) + indent <= _WIDTH - 30 or not whole


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{_flow(name)}: {_flow(part)}" for name, part in inside.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, cast("list[Any]", value))) + "]"
    if isinstance(value, str):
        return value if _is_plain(value) else _quote(value)
    if isinstance(value, float):
        return _format_float(value)
    return json.dumps(value)  # an integer, true, false or null


def _format_float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and not _RESERVED_WORD.fullmatch(text.rstrip(".!?"))


def _can_be_block(text: str) -> bool:
    """Return True if the text can be a literal block."""
    is_printable = all(character in "\n\t" or character.isprintable() for character in text)
    return "\n" in text and is_printable and text.lstrip(" \n")[:1] not in ("", "\t")


def _literal(head: str, text: str) -> Iterator[str]:
    body = text.rstrip("\n")
    final_breaks = len(text) - len(body)
    first = next(line for line in body.split("\n") if line.strip(" "))
    explicit = "2" if text[0] in " \n" or first.startswith(" ") else ""
    yield f"{head} |{explicit}{'-' if final_breaks == 0 else '' if final_breaks == 1 else '+'}"
    yield from (f"  {line}" if line else "" for line in body.split("\n"))
    yield from [""] * (final_breaks - 1)


def _can_fold(text: str) -> bool:
    """Return True if a long line can be folded at its spaces."""
    return "\n" not in text and text.isprintable() and not text.startswith(" ") and not text.endswith(" ")


def _fold(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text, folded at single spaces."""
    start, last_space = 0, -1
    for space in _SINGLE_SPACE.finditer(text):
        if space.start() - start > width and last_space > start:
            yield text[start:last_space]
            start = last_space + 1
        last_space = space.start()
    if len(text) - start > width and last_space > start:
        yield text[start:last_space]
        start = last_space + 1
    yield text[start:]


def _quote(text: str) -> str:
    """Return the text in double quotes, with invisible characters escaped."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable():
        return character
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def first_reading_as(
    expected: Any, texts: Iterable[str | None], path: Path, *, normalise: Callable[[Any], Any] | None = None
) -> str | None:
    """Return the first text whose data equals `expected`, or None. `normalise` is applied to the data of each text."""
    for text in texts:
        if text is None:
            continue
        try:
            data = yaml.parse(path, text).data
        except GuildError:
            continue
        if (normalise(data) if normalise else data) == expected:
            return text
    return None


def compose(text: str) -> Any:
    """Return the tree of ruamel nodes with their positions in the text, or None if the text is blank."""
    return _ruamel().compose(text) if text.strip() else None


def round_trip(text: str, change: Callable[[Any], object]) -> str:
    """Apply `change` to the data of a text and return the new text. Comments, order and quotes are kept."""
    ruamel = _ruamel()
    tree = ruamel.load(text)
    if tree is None:
        return ""
    change(tree)
    out = io.StringIO()
    ruamel.dump(tree, out)
    return out.getvalue()


def _ruamel() -> Any:
    ruamel = yaml.limited_ruamel()
    ruamel.preserve_quotes = True
    ruamel.width = 4096
    return ruamel
