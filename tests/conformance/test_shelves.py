"""Both shelves of documents do what every shelf does, and a shelf that does not is found out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.room.document_stores import DatabaseDocumentStore, DocumentInfo, FileDocumentStore
from guildhall.room.service import Rooms
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from tests.conformance.shelf_checks import SHELF_CHECKS
from tests.room.conftest import Moments

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.room.document_stores import DocumentStore


@pytest.fixture(params=["file", "table"])
def shelf(request: pytest.FixtureRequest, home: Home, tmp_path: Path) -> Generator[DocumentStore]:
    if request.param == "file":
        yield FileDocumentStore(tmp_path / ".workflow" / "documents")
        return
    prepare(home.database)
    store = Store(home.database)
    room = asyncio.run(Rooms(store, Moments()).open("review", "main", ["coder"]))
    yield DatabaseDocumentStore(store, Moments(), room.id)
    store.close()


@pytest.mark.req("AW-8")
@pytest.mark.parametrize("check", SHELF_CHECKS, ids=lambda check: check.__name__)
def test_each_shelf(shelf: DocumentStore, check: Any):
    asyncio.run(check(shelf))


class Forgetful:
    """Keeps the last text only, and lists nothing."""

    def __init__(self) -> None:
        self.text: str | None = None

    async def read(self, path: str) -> str | None:
        return self.text

    async def write(self, path: str, content: str) -> None:
        self.text = content.strip()

    async def list(self) -> list[DocumentInfo]:
        return []


def test_a_wrong_one_is_found_out():
    found: list[str] = []
    for check in SHELF_CHECKS:
        try:
            asyncio.run(check(Forgetful()))
        except AssertionError as error:
            found.append(str(error))
    assert len(found) == 2
    assert found[0] == "what was written: expected ' ', found ''"
