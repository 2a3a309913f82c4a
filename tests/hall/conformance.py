"""Checks that the responses of a hall are as its OpenAPI document describes them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from guildhall.hall.client.openapi import openapi_document
from guildhall.hall.server.api import Api
from guildhall.hall.server.process import HallProcess

if TYPE_CHECKING:
    from guildhall.rpc.asgi_requests import Message, Receive, Send

DOCUMENT = "urn:openapi"


def differences(path: str, status: int, content_type: str, body: bytes) -> list[str]:
    """Return the differences between a response and the document. Lines of a stream are checked one by one."""
    ((method, operation),) = openapi_document()["paths"][path].items()
    if str(status) not in operation["responses"]:
        return [f"{path}: the status {status} is not documented"]
    contents = _contents(operation["responses"][str(status)], f"/paths/{_escape(path)}/{method}/responses/{status}")
    if content_type not in contents:
        return [f"{path}: the content type {content_type!r} is not documented for {status}"]
    validator = Draft202012Validator({"$ref": f"{DOCUMENT}#{contents[content_type]}"}, registry=_registry())
    texts = body.splitlines() if content_type == "application/x-ndjson" else [body]
    errors = (error for text in texts for error in validator.iter_errors(json.loads(text)))
    return [f"{path}: {error.json_path}: {error.message[:500]}" for error in errors]


def _contents(response: dict[str, Any], pointer: str) -> dict[str, str]:
    """Return the JSON pointers to the schemas of a response, by content type."""
    if "$ref" in response:
        pointer = response["$ref"].removeprefix("#")
        response = openapi_document()["components"]["responses"][pointer.rpartition("/")[2]]
    return {kind: f"{pointer}/content/{_escape(kind)}/schema" for kind in response["content"]}


def _escape(key: str) -> str:
    return key.replace("/", "~1")


@cache
def _registry() -> Registry[Any]:
    return Registry[Any]().with_resource(DOCUMENT, DRAFT202012.create_resource(openapi_document())).crawl()


class ConformingApi(Api):
    """An API of a hall that compares all its responses with the document."""

    differences: list[str]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope.get("path") not in openapi_document()["paths"]:
            await super().__call__(scope, receive, send)
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

        await super().__call__(scope, receive, observe)
        if status:
            self.differences += differences(scope["path"], status, content_type, bytes(body))


class ConformingProcess(HallProcess):
    """A hall process that serves a ConformingApi."""

    def _build_api(self) -> Api:
        api = super()._build_api()
        api.__class__ = ConformingApi
        self.differences = api.differences = []
        return api
