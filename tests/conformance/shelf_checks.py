"""The checks that every document store (`Shelf`) has to pass.

    for check in SHELF_CHECKS:
        asyncio.run(check(make_an_empty_shelf()))

A check raises AssertionError with what it expected and what it found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.room.document_stores import DocumentInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.room.document_stores import DocumentStore

_ODD = ("", " ", "\n", "\r\n", "a\rb", "ä€😀", "\ufeffx", "x" * 1_000_000, "no end", "end\n", "\x01\x7f")


async def nothing_is_there_at_first(shelf: DocumentStore) -> None:
    same(await shelf.read("notes.md"), None, "a document that was never written")
    same(await shelf.read("deep/er/notes.md"), None, "a document in folders that are not there")
    same(await shelf.list(), [], "the listing of an empty shelf")


async def what_was_written_is_read_back_as_it_was(shelf: DocumentStore) -> None:
    for content in _ODD:
        await shelf.write("notes.md", content)
        same(await shelf.read("notes.md"), content, "what was written")


async def a_later_text_replaces_all_of_an_earlier_one(shelf: DocumentStore) -> None:
    await shelf.write("notes.md", "long " * 1_000)
    await shelf.write("notes.md", "short")
    same(await shelf.read("notes.md"), "short", "the later text")


async def paths_are_nested_and_apart(shelf: DocumentStore) -> None:
    for path in ("b.md", "a/b.md", "a/b/c.md", "ü/€.md", "A.md"):
        await shelf.write(path, path)
    for path in ("b.md", "a/b.md", "a/b/c.md", "ü/€.md", "A.md"):
        same(await shelf.read(path), path, f"the text of {path}")
    listed = [
        DocumentInfo(path=path, size=len(path.encode())) for path in ("A.md", "a/b.md", "a/b/c.md", "b.md", "ü/€.md")
    ]
    same(await shelf.list(), listed, "the listing: by path, with sizes in bytes")


async def whoever_reads_meanwhile_sees_a_whole_text(shelf: DocumentStore) -> None:
    texts = ["a" * 200_000, "b" * 200_000]
    await shelf.write("notes.md", texts[0])

    async def write() -> None:
        for number in range(10):
            await shelf.write("notes.md", texts[number % 2])

    writing = asyncio.ensure_future(write())
    while not writing.done():
        seen = await shelf.read("notes.md")
        same(seen in texts, True, "whether what is read meanwhile is one of the two texts")
        await asyncio.sleep(0)
    await writing


SHELF_CHECKS: tuple[Callable[[DocumentStore], Awaitable[None]], ...] = (
    nothing_is_there_at_first,
    what_was_written_is_read_back_as_it_was,
    a_later_text_replaces_all_of_an_earlier_one,
    paths_are_nested_and_apart,
    whoever_reads_meanwhile_sees_a_whole_text,
)


def same(found: object, expected: object, what: str) -> None:
    """Raises AssertionError unless what was found is what was expected."""
    if found != expected:
        raise AssertionError(f"{what}: expected {_short(expected)}, found {_short(found)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
