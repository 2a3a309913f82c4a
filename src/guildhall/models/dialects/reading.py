"""How the JSON of a request or of an answer is looked at: what is not as the API describes it is named by its place."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import BinaryContent

from guildhall.core.text import is_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    FileOf = Callable[[Mapping[str, Any], str], BinaryContent | None]

_MAX_DEPTH = 200
_MAX_PARTS = 2_000_000  # no model reads as many commas and brackets; reading them stops the hall for that long


class Malformed(Exception):
    """A request that is not what the API describes; `param` is the field that is wrong."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def parse(data: bytes) -> Mapping[str, Any]:
    """A body as an object that is safe to go through: plain JSON, not too deep or manifold, only real characters."""
    if sum(map(data.count, (b",", b"[", b"{"))) > _MAX_PARTS:
        raise Malformed("the body has too many parts")
    try:
        body: Any = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Malformed("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise Malformed("the body is not a JSON object")
    _check(cast("dict[str, Any]", body))
    return cast("dict[str, Any]", body)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _check(body: Any) -> None:
    level: list[Any] = [body]
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below.extend(cast("dict[str, Any]", node))
                below.extend(cast("dict[str, Any]", node).values())
            elif isinstance(node, list):
                below.extend(cast("list[Any]", node))
            elif isinstance(node, str) and not is_unicode(node):
                raise Malformed("the body has characters that are not valid Unicode")
        if not below:
            return
        level = below
    raise Malformed("the body is nested too deeply")


def mapping(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{param}: expected an object", param)
    return cast("dict[str, Any]", value)


def sequence(value: Any, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{param}: expected an array", param)
    return cast("list[Any]", value)


def text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{param}: expected a string", param)
    return value


def flag(value: Any, param: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise Malformed(f"{param}: expected true or false", param)
    return value


def objects(value: Any, param: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of an array, each with the name of its place; a missing array is an empty one."""
    for index, item in enumerate(sequence(value if value is not None else [], param)):
        place = f"{param}[{index}]"
        yield mapping(item, place), place


def shown(value: Any, param: str) -> str:
    """Content that is a string, or blocks of it: their text, and a mark for each block of another kind."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return "\n".join(_words(block, place) for block, place in objects(value, param))


def _words(block: Mapping[str, Any], place: str) -> str:
    return text(block["text"], f"{place}.text") if "text" in block else f"[{text(block.get('type'), f'{place}.type')}]"


def content(value: Any, param: str, file_of: FileOf) -> str | list[str | BinaryContent]:
    """What a user's message holds: its text, or, where there are files in it, the text and the files in their order.

    `file_of` gives the file in a block, where there is one; any other block that is not text is a mark.
    """
    if value is None or isinstance(value, str):
        return shown(value, param)
    items = [file_of(block, place) or _words(block, place) for block, place in objects(value, param)]
    return items if any(isinstance(item, BinaryContent) for item in items) else shown(value, param)


def data_url(value: Any, param: str) -> BinaryContent | None:
    """The file in a `data:` URL; None where there is none, or another URL, which is not fetched."""
    if value is None:
        return None
    head, comma, data = text(value, param).partition(",")
    if not head.startswith("data:"):
        return None
    media_type, marked, _ = head.removeprefix("data:").partition(";base64")
    if not comma or not marked:
        raise Malformed(f"{param}: expected data:TYPE;base64,DATA", param)
    return file(media_type, data, param)


def file(media_type: str, data: str, param: str) -> BinaryContent:
    """A file that is sent as base64."""
    try:
        return BinaryContent(data=base64.b64decode(data, validate=True), media_type=media_type)
    except (binascii.Error, ValueError):
        raise Malformed(f"{param}: the data is not base64", param) from None
