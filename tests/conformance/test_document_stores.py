"""Both document stores pass the conformance checks, and a wrong store fails them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.room.document_stores import DatabaseDocumentStore, DocumentInfo, FileDocumentStore
from guildhall.room.service import Rooms
from guildhall.store.engine import Store
from guildhall.store.schema import prepare
from tests.conformance.document_store_checks import DOCUMENT_STORE_CHECKS
from tests.room.conftest import TickingClock

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.room.document_stores import DocumentStore


@pytest.fixture(params=["file", "table"])
def document_store(request: pytest.FixtureRequest, home: Home, tmp_path: Path) -> Generator[DocumentStore]:
    if request.param == "file":
        yield FileDocumentStore(tmp_path / ".workflow" / "documents")
        return
    prepare(home.database)
    store = Store(home.database)
    room = asyncio.run(Rooms(store, TickingClock()).open("/project", "review", "main", ["coder"]))
    yield DatabaseDocumentStore(store, TickingClock(), room.id)
    store.close()


@pytest.mark.req("AW-8")
@pytest.mark.parametrize("check", DOCUMENT_STORE_CHECKS, ids=lambda check: check.__name__)
def test_a_document_store_passes_a_check(document_store: DocumentStore, check: Any):
    asyncio.run(check(document_store))


class ForgetfulStore:
    """A store that keeps only the last text, and lists nothing."""

    def __init__(self) -> None:
        self.text: str | None = None

    async def read(self, path: str) -> str | None:
        return self.text

    async def write(self, path: str, content: str) -> None:
        self.text = content.strip()

    async def list(self) -> list[DocumentInfo]:
        return []


def test_a_wrong_document_store_fails_the_checks():
    found: list[str] = []
    for check in DOCUMENT_STORE_CHECKS:
        try:
            asyncio.run(check(ForgetfulStore()))
        except AssertionError as error:
            found.append(str(error))
    assert len(found) == 2
    assert found[0] == "written text: expected ' ', found ''"
