"""The checks that every document store must pass.

    for check in DOCUMENT_STORE_CHECKS:
        asyncio.run(check(make_empty_store()))

A check raises AssertionError with the expected and the actual value.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.room.document_stores import DocumentInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.room.document_stores import DocumentStore

_ODD = ("", " ", "\n", "\r\n", "a\rb", "ä€😀", "\ufeffx", "x" * 1_000_000, "no end", "end\n", "\x01\x7f")


async def an_empty_store_has_no_documents(document_store: DocumentStore) -> None:
    check_equal(await document_store.read("notes.md"), None, "a document that was never written")
    check_equal(await document_store.read("deep/er/notes.md"), None, "a document in missing folders")
    check_equal(await document_store.list(), [], "the listing of an empty store")


async def a_text_is_read_back_unchanged(document_store: DocumentStore) -> None:
    for content in _ODD:
        await document_store.write("notes.md", content)
        check_equal(await document_store.read("notes.md"), content, "written text")


async def a_write_replaces_the_whole_text(document_store: DocumentStore) -> None:
    await document_store.write("notes.md", "long " * 1_000)
    await document_store.write("notes.md", "short")
    check_equal(await document_store.read("notes.md"), "short", "the later text")


async def nested_paths_are_separate_documents(document_store: DocumentStore) -> None:
    for path in ("b.md", "a/b.md", "a/b/c.md", "ü/€.md", "A.md"):
        await document_store.write(path, path)
    for path in ("b.md", "a/b.md", "a/b/c.md", "ü/€.md", "A.md"):
        check_equal(await document_store.read(path), path, f"the text of {path}")
    listed = [
        DocumentInfo(path=path, size=len(path.encode())) for path in ("A.md", "a/b.md", "a/b/c.md", "b.md", "ü/€.md")
    ]
    check_equal(await document_store.list(), listed, "the listing: by path, with sizes in bytes")


async def a_concurrent_reader_gets_a_whole_text(document_store: DocumentStore) -> None:
    texts = ["a" * 200_000, "b" * 200_000]
    await document_store.write("notes.md", texts[0])

    async def write() -> None:
        for number in range(10):
            await document_store.write("notes.md", texts[number % 2])

    writing = asyncio.ensure_future(write())
    while not writing.done():
        seen = await document_store.read("notes.md")
        check_equal(seen in texts, True, "a concurrent read returns one of the two texts")
        await asyncio.sleep(0)
    await writing


DOCUMENT_STORE_CHECKS: tuple[Callable[[DocumentStore], Awaitable[None]], ...] = (
    an_empty_store_has_no_documents,
    a_text_is_read_back_unchanged,
    a_write_replaces_the_whole_text,
    nested_paths_are_separate_documents,
    a_concurrent_reader_gets_a_whole_text,
)


def check_equal(found: object, expected: object, subject: str) -> None:
    """Raise AssertionError unless the values are equal. `subject` names the value in the error."""
    if found != expected:
        raise AssertionError(f"{subject}: expected {_short(expected)}, found {_short(found)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}..."
