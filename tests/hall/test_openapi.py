"""The OpenAPI document of the HTTP API: complete, valid and served."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openapi_spec_validator import validate

from guildhall.core.errors import GuildError
from guildhall.core.events import EVENT_DATA
from guildhall.hall.client.discovery import find_hall
from guildhall.hall.client.interface import VERBS
from guildhall.hall.client.openapi import openapi_document
from guildhall.runs.record.entries import PAYLOADS
from tests.hall.hall_server import send_request, serve_hall
from tests.pages import read_blocks, reader_environment
from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild

DOCS = Path(__file__).parents[2] / "docs"


def fetch(home: Home, **options: Any) -> Any:
    async def work() -> Any:
        async with serve_hall(home) as hall:
            return await send_request(hall.address, "/api/openapi.json", **options)

    return asyncio.run(work())


@pytest.mark.req("X-27")
def test_a_hall_serves_a_valid_document_with_every_verb(home: Home) -> None:
    response = fetch(home, method="GET", raw=b"")
    assert response.status == 200
    document = response.json
    validate(document)
    assert document["openapi"] == "3.1.0"
    verbs = {path: methods["post"]["operationId"] for path, methods in document["paths"].items() if "post" in methods}
    assert verbs == {f"/api/{name.replace('.', '/')}": name for name in VERBS}
    assert document["paths"].keys() - verbs.keys() == {"/healthz", "/api/openapi.json"}
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert {"200", "403", "421"} <= operation["responses"].keys()


def test_every_status_of_an_error_is_documented() -> None:
    documented = openapi_document()["paths"]["/api/runs/get"]["post"]["responses"].keys()
    classes = [GuildError]
    for one in classes:
        classes += one.__subclasses__()
    assert {str(one.http_status) for one in classes} <= documented


@pytest.mark.req("X-27")
def test_every_type_has_a_schema() -> None:
    """Only JSON that comes from models, tools, members and users has a free schema: `Any` in its type."""
    document = openapi_document()
    schemas = document["components"]["schemas"]
    untyped = [name for name, schema in schemas.items() if not schema.keys() & {"properties", "oneOf", "enum"}]
    assert untyped == []
    status = document["paths"]["/api/hall/status"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert status["properties"]["result"] == {"$ref": "#/components/schemas/HallStatus"}
    assert schemas["HallStatus"]["properties"]["members"]["items"] == {"$ref": "#/components/schemas/MemberStatus"}
    kinds = {entry["properties"]["kind"]["const"] for entry in schemas["Entry"]["oneOf"]}
    assert kinds == set(PAYLOADS)
    assert {event["properties"]["type"]["const"] for event in schemas["Event"]["oneOf"]} == set(EVENT_DATA)
    assert schemas["ErrorInfo"]["required"] == ["code", "message"]
    assert "tool_rules" in schemas["Definition"]["properties"]


def test_the_command_prints_the_document_without_a_hall(guild_hall: Guild, home: Home) -> None:
    printed = guild_hall("hall", "openapi")
    assert (printed.code, printed.err) == (0, "")
    assert json.loads(printed.out) == openapi_document()
    assert find_hall(home) is None


@pytest.mark.req("X-27")
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_of_the_documentation_work(guild_hall: Guild, project: Path) -> None:
    put_worker(project, "greeter", model=put_script(project, {"say": "Hello, Ada."}))
    started = guild_hall("memory", "write", "--scope", "global", "x", "y")  # starts the hall
    assert started.code == 0, started.err
    script = "".join(block.text for block in read_blocks(DOCS / "http-api.md") if block.language == "sh")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=reader_environment(guild_hall),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    health, runs, workers, *events = map(json.loads, ran.stdout.splitlines())
    assert health["state"] == "serving"
    assert runs == {"result": []}
    assert "greeter" in [worker["name"] for worker in workers["result"]]
    assert events[-2]["item"]["type"] == "run_ended"
    assert events[-1] == {"end": True}
    assert json.loads((project / "guildhall.json").read_text()) == openapi_document()


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
