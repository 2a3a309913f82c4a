"""Checks that the responses of a hall are as its OpenAPI document describes them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from guildhall.hall.client.openapi import openapi_document
from guildhall.hall.server.process import Process

if TYPE_CHECKING:
    from guildhall.rpc.http import App, Message, Receive, Send


def differences(path: str, status: int, content_type: str, body: bytes) -> list[str]:
    """Return what is not as the document describes a response. Lines of a stream are checked one by one."""
    (operation,) = openapi_document()["paths"][path].values()
    if str(status) not in operation["responses"]:
        return [f"{path}: the status {status} is not documented"]
    validators = _validators(path, status)
    if content_type not in validators:
        return [f"{path}: the content type {content_type!r} is not documented for {status}"]
    texts = body.splitlines() if content_type == "application/x-ndjson" else [body]
    errors = (error for text in texts for error in validators[content_type].iter_errors(json.loads(text)))
    return [f"{path}: {error.json_path}: {error.message[:500]}" for error in errors]


@cache
def _validators(path: str, status: int) -> dict[str, Draft202012Validator]:
    document = openapi_document()
    (operation,) = document["paths"][path].values()
    response = operation["responses"][str(status)]
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    components = document["components"]
    return {
        kind: Draft202012Validator({**media["schema"], "components": components})
        for kind, media in response["content"].items()
    }


class ConformingProcess(Process):
    """A hall's process that compares all responses of the API with the document."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.differences: list[str] = []

    def _face(self) -> Any:
        return self._compared(super()._face())

    def _compared(self, app: App) -> App:
        async def compare(scope: Message, receive: Receive, send: Send) -> None:
            if scope.get("path") not in openapi_document()["paths"]:
                await app(scope, receive, send)
                return
            status, content_type, body = 0, "", bytearray()

            async def observe(message: Message) -> None:
                nonlocal status, content_type
                await send(message)
                if message["type"] == "http.response.start":
                    status = message["status"]
                    content_type = dict(message["headers"]).get(b"content-type", b"").decode()
                else:
                    body.extend(message.get("body", b""))

            await app(scope, receive, observe)
            if status:
                self.differences += differences(scope["path"], status, content_type, bytes(body))

        return compare
