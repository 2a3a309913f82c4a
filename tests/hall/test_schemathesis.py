"""The HTTP API under generated requests: schemathesis derives valid and invalid bodies from the OpenAPI document.

`tests/hall/conformance.py` checks the responses as well, and the lines of streams, which schemathesis does not read.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from guildhall.core.request_frame import Frame
from guildhall.hall.client.interface import VERBS
from guildhall.hall.client.openapi import openapi_document
from guildhall.runs.model import RunRequest
from tests.hall.hall_server import serve_hall
from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from schemathesis import APIOperation, Case

    from guildhall.core.paths import Home
    from guildhall.hall.client.discovery import Address

SEED = 27
EXAMPLES = 2  # for each verb, of valid and of invalid bodies
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXCLUDED = {
    "hall.doctor": "starts each installed program, which takes seconds",
    "openapi": "test_openapi.py validates the document",
}
PATHS = {"path", "folder", "at", "root"}
HOSTILE = [
    b"",
    b"[]",
    b"null",
    b"{",
    b"\xff\xfe",
    b'{"a": 1e999999}',
    b'{"a": NaN}',
    b'{"a": 1, "a": 2}',
    b'{"__class__": "Frame"}',
    b"[" * 100_000,
    b'{"frame": {"cwd": "\\ud800", "root": "\\u0000"}}',
    b'{"frame": {"cwd": "..", "root": "..", "worktree": "/"}}',
]


class Requests:
    """Sends generated requests to a hall. The paths in them are paths of the test."""

    def __init__(self, address: Address, project: Path, known: dict[str, str]) -> None:
        self._url = address.url
        self._project = str(project)
        self._known = known
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {address.token}"
        self.statuses: dict[str, set[int]] = {}

    def send(self, case: Case, *checks: Any) -> None:
        response = case.call(base_url=self._url, session=self._session)
        case.validate_response(response, checks=[*CHECKS, *checks])
        name = case.operation.definition.raw["operationId"]
        self.statuses.setdefault(name, set()).add(response.status_code)

    def send_valid(self, case: Case) -> None:
        """Send a request, and again with names of things that exist."""
        if isinstance(case.body, dict):
            if "frame" in case.body:
                case.body["frame"] = {"cwd": self._project, "root": self._project}
            for part in PATHS & case.body.keys():
                case.body[part] = self._project

            self.send(case)
            case.body.update({part: value for part, value in self._known.items() if part in case.body})
        self.send(case)

    def send_hostile(self, path: str, body: bytes) -> None:
        response = self._session.post(f"{self._url}{path}", data=body)
        assert response.status_code == 400, (path, body[:100], response.text)
        assert response.json()["error"]["message"]

    def send_invalid(self, case: Case) -> None:
        """Send a request that must be refused, unless it has an absolute path, which could be outside of the test."""
        if '"/' in json.dumps(case.body, default=str):
            return
        self.send(case, negative_data_rejection)


def exercise(requests: Requests) -> None:
    verbs = [path for path, methods in openapi_document()["paths"].items() if "post" in methods]
    for number, path in enumerate(verbs):
        requests.send_hostile(path, HOSTILE[number % len(HOSTILE)])
    for result in schemathesis.openapi.from_dict(openapi_document()).get_all_operations():
        operation = result.ok()
        if operation.definition.raw["operationId"] in EXCLUDED:
            continue
        generate(operation, GenerationMode.POSITIVE, requests.send_valid)
        if operation.body:
            generate(operation, GenerationMode.NEGATIVE, requests.send_invalid)


def generate(operation: APIOperation, mode: GenerationMode, send: Callable[[Case], None]) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def test(case: Case) -> None:
        send(case)

    test()


@pytest.mark.req("X-27")
def test_generated_requests_get_documented_responses(home: Home, project: Path) -> None:
    put_worker(project, "greeter", model=put_script(project, {"say": "Hello."}))

    async def work() -> dict[str, set[int]]:
        async with serve_hall(home) as hall:
            client, frame = await hall.client(), Frame(cwd=project, root=project)
            events = [event async for event in client.runs.run(RunRequest(worker="greeter", input="Hi"), frame)]
            await client.memory.write("build", "make", frame, scope="project")
            await client.close()
            known = {"run": events[0].run, "worker": "greeter", "name": "greeter", "key": "build", "scope": "project"}
            sender = Requests(hall.address, project, known)
            await asyncio.to_thread(exercise, sender)
            return sender.statuses

    statuses = asyncio.run(work())
    assert statuses.keys() | EXCLUDED.keys() == VERBS | {"health", "openapi"}
    assert {"runs.get", "runs.journal", "workers.get", "memory.get"} <= {
        name for name, found in statuses.items() if 200 in found
    }
