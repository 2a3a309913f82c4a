"""The OpenAPI document of the HTTP API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import validate

from guildhall.hall.client.interface import VERBS
from guildhall.hall.client.openapi import openapi_document
from tests.hall.served import asked, served

if TYPE_CHECKING:
    from guildhall.core.paths import Home


def fetch(home: Home, **options: Any) -> Any:
    async def work() -> Any:
        async with served(home) as hall:
            return await asked(hall.address, "/api/openapi.json", **options)

    return asyncio.run(work())


@pytest.mark.req("X-27")
def test_a_hall_serves_a_valid_document_with_every_verb(home: Home) -> None:
    response = fetch(home, method="GET", raw=b"")
    assert response.status == 200
    document = response.json
    validate(document)
    assert document["openapi"] == "3.1.0"
    operations = {operation["post"]["operationId"]: path for path, operation in document["paths"].items()}
    assert operations == {name: f"/api/{name.replace('.', '/')}" for name in VERBS}
    for path in document["paths"].values():
        operation = path["post"]
        assert operation["summary"]
        assert {"200", "400", "401", "404", "default"} <= operation["responses"].keys()


def test_the_document_needs_the_token_and_is_only_read(home: Home) -> None:
    assert fetch(home, method="GET", raw=b"", headers={"Authorization": "Bearer no"}).status == 401
    assert fetch(home, method="POST").status == 405


def test_a_stream_is_described_line_by_line() -> None:
    content = openapi_document()["paths"]["/api/runs/run"]["post"]["responses"]["200"]["content"]
    (media,) = content.items()
    assert media[0] == "application/x-ndjson"
    assert [line["required"] for line in media[1]["schema"]["anyOf"]] == [["item"], ["error"], ["end"]]


def test_a_hall_starts_without_building_the_document() -> None:
    code = "import sys, guildhall.hall.server.api; sys.exit('guildhall.hall.client.openapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
