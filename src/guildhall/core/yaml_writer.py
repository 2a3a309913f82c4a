"""YAML writer: formats plain data as readable YAML with short lines, in the given order.

Accepts text, numbers, booleans, null, lists and mappings with text keys. Not a general YAML writer.

Invariant: `core.yaml` reads the output back as equal data.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WIDTH = 110
_LONGEST_NAME = 100  # longer ones are written in YAML's explicit form
# Text that is itself: a word or some, in which no character can mean anything else.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./$-]+)*(?:[.!?])?")
_MEANT_OTHERWISE = re.compile(r"(?i)(true|false|null|yes|no|on|off|y|n|nan|inf)")
_SINGLE_SPACE = re.compile(r"(?<=[^ ]) (?=[^ ])")


def dump(data: Mapping[str, Any]) -> str:
    """The data as YAML."""
    return "".join(f"{line}\n" for line in _mapping(data, 0))


def field_lines(name: str, value: Any, indent: int) -> Iterator[str]:
    """One field of a mapping in lines; `indent` is how far to the right they will stand."""
    head = name if _is_plain(name) else _quoted(name)
    if len(head) > _LONGEST_NAME:
        yield f"? {head}"
        yield from _placed(":", value, indent)
    else:
        yield from _placed(f"{head}:", value, indent)


def _mapping(data: Mapping[str, Any], indent: int) -> Iterator[str]:
    for name, value in data.items():
        yield from field_lines(name, value, indent)


def _sequence(data: Sequence[Any], indent: int) -> Iterator[str]:
    for value in data:
        nested = list(_nested(value, indent + 2))
        if nested:
            yield f"- {nested[0]}"
            yield from (f"  {line}" if line else "" for line in nested[1:])
        else:
            yield from _placed("-", value, indent)


def _placed(head: str, value: Any, indent: int) -> Iterator[str]:
    """A value behind its name or dash: on the same line where it fits, else in lines of its own below."""
    if isinstance(value, str):
        yield from _text(head, value, indent)
        return
    nested = list(_nested(value, indent + 2))
    if not nested:
        yield f"{head} {_flow(value)}"
        return
    yield head
    yield from (f"  {line}" if line else "" for line in nested)


def _nested(value: Any, indent: int) -> Iterator[str]:
    """The lines of a mapping or list that stands in lines of its own; none where it is short or no such thing."""
    if isinstance(value, dict):
        data = cast("dict[str, Any]", value)
        if not _is_short(data.values(), data, indent):
            yield from _mapping(data, indent)
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        if not _is_short(items, items, indent):
            yield from _sequence(items, indent)


def _is_short(values: Any, whole: Any, indent: int) -> bool:
    """Whether it reads well in braces or brackets: nothing nested, no lines, not too long."""
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
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)  # a whole number, true, false, null


def _number(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")


def _text(head: str, text: str, indent: int) -> Iterator[str]:
    if _is_block(text):
        yield from _literal(head, text)
    elif len(head) + len(text) + indent >= _WIDTH and _folds(text):
        yield f"{head} >-"
        yield from (f"  {line}" for line in _wrapped(text, _WIDTH - indent))
    else:
        yield f"{head} {_flow(text)}"


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and not _MEANT_OTHERWISE.fullmatch(text.rstrip(".!?"))


def _is_block(text: str) -> bool:
    """Whether the text can stand as it is, line below line."""
    return "\n" in text and _is_visible(text) and text.lstrip(" \n")[:1] not in ("", "\t")


def _is_visible(text: str) -> bool:
    return all(character == "\n" or character == "\t" or character.isprintable() for character in text)


def _literal(head: str, text: str) -> Iterator[str]:
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    first = next(line for line in body.split("\n") if line.strip(" "))
    explicit = "2" if text[0] in " \n" or first.startswith(" ") else ""
    yield f"{head} |{explicit}{'-' if ends == 0 else '' if ends == 1 else '+'}"
    yield from (f"  {line}" if line else "" for line in body.split("\n"))
    yield from [""] * (ends - 1)


def _folds(text: str) -> bool:
    """Whether a long line can be broken at its spaces and read back as one."""
    return "\n" not in text and text.isprintable() and not text.startswith(" ") and not text.endswith(" ")


def _wrapped(text: str, width: int) -> Iterator[str]:
    """The line in several, broken where a single space stands between two words."""
    start, place = 0, -1
    for space in _SINGLE_SPACE.finditer(text):
        if space.start() - start > width and place > start:
            yield text[start:place]
            start = place + 1
        place = space.start()
    if len(text) - start > width and place > start:
        yield text[start:place]
        start = place + 1
    yield text[start:]


def _quoted(text: str) -> str:
    """The text in double quotes; what cannot be seen is spelled out."""
    return '"' + "".join(map(_spelled, text)) + '"'


def _spelled(character: str) -> str:
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
