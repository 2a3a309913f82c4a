"""Hostile text in every argument of every route: each request is answered, and none breaks the hall."""

from __future__ import annotations

import asyncio
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.request_frame import Frame
from guildhall.hall.client.codec import fields_of, get_verb
from guildhall.hall.client.interface import VERBS
from tests.hall.hall_server import send_request, serve_hall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guildhall.core.paths import Home

TEXTS = [
    "",
    "a\0b",
    "\ud800",
    "\x1b[2J\u202e",
    "x" * 150_000,
    "../" * 40 + "etc/passwd",
    "a/" * 3_000,
    "/proc/self/environ",
    "@team:main",
    "'; DROP TABLE runs; --",
]


def make_valid(kind: Any, folder: Path) -> Any:
    """Return a valid value of a type, in its wire form."""
    if kind is Frame:
        return {"cwd": str(folder), "root": str(folder)}
    if dataclasses.is_dataclass(kind):
        needed = {name: part for name, (part, must) in fields_of(typing.cast("type", kind)).items() if must}
        return {name: make_valid(part, folder) for name, part in needed.items()}
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return parts[0]
    if origin in (typing.Union, types.UnionType):
        return make_valid(parts[0], folder)
    if origin in (Sequence, list, tuple):
        return []
    if origin in (Mapping, dict):
        return {}
    plain = {str: "x", bool: False, int: 1, float: 1.0, Path: str(folder / "nothing")}
    return plain.get(kind)


def bodies(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield valid arguments of a verb, with one text replaced by a hostile text."""
    takes = get_verb(name).parameters
    right = {part: make_valid(takes[part], folder) for part in get_verb(name).required}
    for part, kind in takes.items():
        for text in TEXTS:
            if _is_text(kind):
                yield {**right, part: text}
            elif dataclasses.is_dataclass(kind) and kind is not Frame:
                for inner, (of, _) in fields_of(typing.cast("type", kind)).items():
                    if _is_text(of):
                        yield {**right, part: {**right.get(part, make_valid(kind, folder)), inner: text}}


def _is_text(kind: Any) -> bool:
    return kind in (str, Path) or any(part in (str, Path) for part in typing.get_args(kind))


@pytest.mark.timeout(120)
def test_every_route_answers_hostile_text(home: Home, project: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[Any] = []

    async def work() -> int:
        count = 0
        async with serve_hall(home) as hall:
            for name in sorted(VERBS):
                for body in bodies(name, project):
                    answer = await send_request(hall.address, f"/api/{name.replace('.', '/')}", body)
                    text_body = answer.body.decode()
                    if answer.status >= 500 or "Traceback" in text_body or (answer.status >= 400 and not answer.error):
                        wrong.append((name, str(body)[:200], text_body[:300]))
                    count += 1
            assert (await send_request(hall.address, "/api/runs/list")).status == 200
        return count

    assert asyncio.run(work()) > 15 * len(TEXTS)
    assert not wrong, wrong
    broken = [record.getMessage() for record in caplog.records if record.exc_info]
    assert not broken, broken
