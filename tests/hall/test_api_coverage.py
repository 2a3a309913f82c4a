"""Everything that a command does with a hall is possible over HTTP.

A command reaches a hall through a HallClient only. A remote client has the declared verbs and no others, and sends each
as one request to the route that the OpenAPI document describes.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import guildhall.cli
from guildhall.hall.client.codec import get_verb
from guildhall.hall.client.discovery import Address
from guildhall.hall.client.interface import SERVICES, VERBS, HallClient
from guildhall.hall.client.openapi import openapi_document
from guildhall.hall.client.remote import RemoteHall
from guildhall.hall.server.api import _ROUTES

CLI = Path(guildhall.cli.__file__).parent
# Modules of the hall that the command line may import besides the client, each with the reason.
OTHER_IMPORTS = {
    "guildhall.hall.services.embedded": "opens a hall inside the command, with the same interface",
    "guildhall.hall.testrun.files": "finds the test files of a folder; the verb takes their paths",
    "guildhall.hall.mcp_tools": "tools for another program, each of which calls verbs",
    "guildhall.hall.server.job_rpc_methods": "methods of `guild serve`, which call verbs; the hall serves them",
}


def sources() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(CLI.rglob("*.py"))]


def test_commands_reach_a_hall_through_its_client_only() -> None:
    imports = {
        node.module
        for _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("guildhall.hall")
    }
    assert {name for name in imports if not name.startswith("guildhall.hall.client")} == OTHER_IMPORTS.keys()


@pytest.mark.req("X-27")
def test_every_call_of_a_command_is_a_declared_verb() -> None:
    called: set[str] = set()
    for path, tree in sources():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)):
                continue
            service, owner = node.value.attr, ast.unparse(node.value.value)
            if owner.rpartition(".")[2] in ("client", "hall", "_client") and service in SERVICES:
                assert f"{service}.{node.attr}" in VERBS, f"{path}:{node.lineno}"
                called.add(f"{service}.{node.attr}")
    assert len(called) > 80, "the calls of commands were not found"


@pytest.mark.req("X-27")
def test_every_verb_has_a_client_method_a_route_and_an_operation() -> None:
    address = Address(pid=1, boot="b", version="0", url="http://127.0.0.1:1", since="", token="t")
    client = RemoteHall(address)
    assert HallClient.__abstractmethods__ == {"wait_background_work", "close"}  # the rest of a client are services
    paths = openapi_document()["paths"]
    for name in VERBS:
        service, _, method = name.partition(".")
        assert inspect.signature(getattr(getattr(client, service), method)) == inspect.signature(get_verb(name).method)
        path = f"/api/{service}/{method}"
        assert _ROUTES[path] == name
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["properties"].keys() == get_verb(name).parameters.keys()
        assert set(body["required"]) == get_verb(name).required
    assert _ROUTES.keys() == {path for path, operations in paths.items() if "post" in operations}


@pytest.mark.parametrize("name", ["runs.delete_all", "store.read", "hall._hall"])
def test_a_remote_client_refuses_undeclared_verbs(name: str) -> None:
    client: Any = RemoteHall(Address(pid=1, boot="b", version="0", url="http://127.0.0.1:1", since="", token="t"))
    service, _, method = name.partition(".")
    with pytest.raises(AttributeError):
        getattr(getattr(client, service), method)
