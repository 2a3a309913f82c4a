"""JSON-RPC 2.0 messages: which bodies are accepted, and the reply to each."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.rpc.asgi_requests import Headers
from guildhall.rpc.jsonrpc import MAX_BATCH
from guildhall.rpc.mcp_messages import reply_to
from tests.rpc.hostile import NOT_REQUESTS, UNREADABLE

if TYPE_CHECKING:
    from guildhall.rpc.mcp_messages import Request

PLAIN = Headers({})
MODERN = Headers({"mcp-protocol-version": "2026-07-28", "mcp-method": "worker/list"})
OLD = Headers({"mcp-protocol-version": "2025-06-18"})


def _body(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "worker/list", **fields}).encode()


async def respond(request: Request) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.id, "result": request.method}


def get_reply(body: bytes, headers: Headers = PLAIN, *, batches: bool = True) -> tuple[int, Any]:
    """Return status and reply to a body. The result of each request is its method."""
    return asyncio.run(reply_to(body, headers, respond, batches=batches))


@pytest.mark.parametrize("id", [1, 0, -5, "a", "", 1.5, None, 10**30, "\ud800", "x" * 10_000])
def test_the_id_is_returned_unchanged(id: Any) -> None:
    assert get_reply(_body(id=id)) == (200, {"jsonrpc": "2.0", "id": id, "result": "worker/list"})


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("body", UNREADABLE)
def test_an_ambiguous_or_unreadable_body_is_refused(body: bytes, batches: bool) -> None:
    status, reply = get_reply(body, batches=batches)
    assert (status, reply["error"]["code"], reply["id"]) == (400, -32700, None)


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("body", NOT_REQUESTS)
def test_a_body_that_is_not_a_request_is_refused(body: bytes, batches: bool) -> None:
    status, reply = get_reply(body, batches=batches)
    assert (status, reply["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("id", [None, 1.5])
def test_an_id_that_mcp_does_not_permit_is_refused_without_batches(id: Any) -> None:
    status, reply = get_reply(_body(id=id), batches=False)
    assert (status, reply["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b"null", None),
        (b'"text"', None),
        (b"5", None),
        (b"{}", None),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":2.0,"id":1,"method":"worker/list"}', 1),
        (b'{"jsonrpc":"1.0","id":1,"method":"worker/list"}', 1),
        (b'{"id":"a","method":"worker/list"}', "a"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 1),
        (b'{"jsonrpc":"2.0","id":1,"method":null}', 1),
        (b'{"jsonrpc":"2.0","method":1,"params":"bar"}', None),
        (b'{"jsonrpc":"2.0","id":1}', 1),
        (_body(id=True), None),
        (_body(id={}), None),
        (_body(id=[1]), None),
        (_body(params="x"), 1),
        (_body(params=None), 1),
        (_body(params=5), 1),
        (_body(params={"deep": json.loads("[" * 80 + "]" * 80)}), None),
    ],
)
def test_an_invalid_request_is_refused_with_its_id(body: bytes, id: Any) -> None:
    status, reply = get_reply(body)
    assert (status, reply["error"]["code"], reply["id"]) == (400, -32600, id)


def test_positional_parameters_are_refused() -> None:
    status, reply = get_reply(_body(params=["a"]))
    assert (status, reply["error"]["code"], reply["id"]) == (200, -32602, 1)


def test_notifications_and_answers_are_not_answered() -> None:
    for body in (
        b'{"jsonrpc":"2.0","method":"worker/cancel","params":{"jobId":"x"}}',
        b'{"jsonrpc":"2.0","method":"nothing"}',
        b'{"jsonrpc":"2.0","method":"worker/cancel","params":["x"]}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
    ):
        assert get_reply(body) == (202, None)
        assert get_reply(b"[" + body + b"," + body + b"]") == (202, None)


def test_a_batch_is_answered_part_by_part_in_its_order() -> None:
    rubbish = b'[1, null, {"foo":"boo"}, [], "x"]'
    status, reply = get_reply(rubbish)
    assert (status, [(one["id"], one["error"]["code"]) for one in reply]) == (200, [(None, -32600)] * 5)
    quiet = {"jsonrpc": "2.0", "method": "worker/cancel"}
    mixed = [
        json.loads(_body(id="a")),
        quiet,
        7,
        json.loads(_body(id="a", method="ping")),
        json.loads(_body(params=[])),
    ]
    status, reply = get_reply(json.dumps(mixed).encode())
    assert status == 200
    assert [(one["id"], one.get("result") or one["error"]["code"]) for one in reply] == [
        ("a", "worker/list"),
        (None, -32600),
        ("a", "ping"),
        (1, -32602),
    ]


def test_a_batch_that_is_empty_or_too_large_is_one_error() -> None:
    for body in (b"[]", json.dumps([{}] * (MAX_BATCH + 1)).encode()):
        status, reply = get_reply(body)
        assert (status, reply["id"], reply["error"]["code"]) == (400, None, -32600)
    assert len(get_reply(json.dumps([{}] * MAX_BATCH).encode())[1]) == MAX_BATCH


def test_the_newest_version_of_mcp_requires_an_envelope_and_has_no_batches() -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    assert get_reply(_body(params={"_meta": meta}), MODERN)[0] == 200
    assert get_reply(_body(), MODERN)[1]["error"]["code"] == -32602
    assert get_reply(_body(method="ping", params={"_meta": meta}), MODERN)[1]["error"]["code"] == -32020
    assert get_reply(b"[" + _body(params={"_meta": meta}) + b"]", MODERN)[1]["error"]["code"] == -32600
    assert get_reply(b"[" + _body() + b"]", OLD)[0] == 200
    unknown = get_reply(_body(), Headers({"mcp-protocol-version": "2099-01-01"}))
    assert (unknown[0], unknown[1]["error"]["code"], unknown[1]["id"]) == (400, -32022, 1)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_get_a_valid_reply(body: bytes) -> None:
    status, reply = get_reply(body)
    assert status in (200, 202, 400)
    json.dumps(reply, allow_nan=False)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | _VALUES,
        "id": _VALUES,
        "method": st.just("ping") | _VALUES,
        "params": _VALUES,
    },
)


@given(st.lists(_MESSAGES, max_size=5) | _MESSAGES | _VALUES)
def test_arbitrary_json_gets_at_most_one_reply_per_message(body: Any) -> None:
    status, reply = get_reply(json.dumps(body).encode())
    json.dumps(reply, allow_nan=False)
    if isinstance(body, list) and body:
        assert status == 202 or (isinstance(reply, list) and len(reply) <= len(body))
    else:
        assert reply is None or reply["jsonrpc"] == "2.0"
