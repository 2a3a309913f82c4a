"""JSON-RPC 2.0 by the bytes: what is a message, what is none, and how each is answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.members.protocol import MOST_AT_ONCE, Heard, hear, reply
from guildhall.tools.mcp_messages import Headers, Request, Wrong

PLAIN = Headers({})
MODERN = Headers({"mcp-protocol-version": "2026-07-28", "mcp-method": "worker/list"})
OLD = Headers({"mcp-protocol-version": "2025-06-18"})


def _body(**fields: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "worker/list", **fields}).encode()


def answered(body: bytes, headers: Headers = PLAIN) -> tuple[int, Any]:
    """What a body is answered with where each request that is understood gets its method as result."""
    try:
        heard = hear(body, headers)
    except Wrong as wrong:
        return wrong.status, wrong.as_dict()
    return reply(heard, [_answer(message) for message in heard.messages])


def _answer(message: Request | Wrong) -> dict[str, Any] | Wrong | None:
    if isinstance(message, Wrong):
        return message
    return None if message.quiet else {"jsonrpc": "2.0", "id": message.id, "result": message.method}


@pytest.mark.parametrize("id", [1, 0, -5, "a", "", 1.5, None, 10**30, "\ud800", "x" * 10_000])
def test_the_id_comes_back_as_it_was_sent(id: Any) -> None:
    assert answered(_body(id=id)) == (200, {"jsonrpc": "2.0", "id": id, "result": "worker/list"})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[",
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":NaN,"method":"worker/list"}',
        b'{"jsonrpc":"2.0","id":1e999,"method":"worker/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"worker/list","params":{"a":-Infinity}}',
        b'{"a":' + b"9" * 5_000 + b"}",
        b"[" * 100_000,
        b'[{"jsonrpc":"2.0","method":"x","id":1},{"jsonrpc":"2.0","method"',
        b'{"jsonrpc":"2.0","id":1,"method":"worker/list","method":"worker/delete"}',
        b'{"jsonrpc":"2.0","id":1,"method":"worker/delete","params":{"jobId":"a","jobId":"b"}}',
    ],
)
def test_what_cannot_be_read_in_one_way_only_is_not_read(body: bytes) -> None:
    status, told = answered(body)
    assert (status, told["error"]["code"], told["id"]) == (400, -32700, None)


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
def test_what_is_no_request_is_told_as_that(body: bytes, id: Any) -> None:
    status, told = answered(body)
    assert (status, told["error"]["code"], told["id"]) == (400, -32600, id)


def test_parameters_are_given_by_name() -> None:
    status, told = answered(_body(params=["a"]))
    assert (status, told["error"]["code"], told["id"]) == (200, -32602, 1)


def test_notifications_and_answers_are_not_answered() -> None:
    for body in (
        b'{"jsonrpc":"2.0","method":"worker/cancel","params":{"jobId":"x"}}',
        b'{"jsonrpc":"2.0","method":"nothing"}',
        b'{"jsonrpc":"2.0","method":"worker/cancel","params":["x"]}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}',
    ):
        assert answered(body) == (202, None)
        assert answered(b"[" + body + b"," + body + b"]") == (202, None)


def test_a_batch_is_answered_part_by_part_in_its_order() -> None:
    rubbish = b'[1, null, {"foo":"boo"}, [], "x"]'
    status, told = answered(rubbish)
    assert (status, [(one["id"], one["error"]["code"]) for one in told]) == (200, [(None, -32600)] * 5)
    quiet = {"jsonrpc": "2.0", "method": "worker/cancel"}
    mixed = [
        json.loads(_body(id="a")),
        quiet,
        7,
        json.loads(_body(id="a", method="ping")),
        json.loads(_body(params=[])),
    ]
    status, told = answered(json.dumps(mixed).encode())
    assert status == 200
    assert [(one["id"], one.get("result") or one["error"]["code"]) for one in told] == [
        ("a", "worker/list"),
        (None, -32600),
        ("a", "ping"),
        (1, -32602),
    ]


def test_a_batch_that_is_empty_or_too_large_is_one_error() -> None:
    for body in (b"[]", json.dumps([{}] * (MOST_AT_ONCE + 1)).encode()):
        status, told = answered(body)
        assert (status, told["id"], told["error"]["code"]) == (400, None, -32600)
    assert len(answered(json.dumps([{}] * MOST_AT_ONCE).encode())[1]) == MOST_AT_ONCE


def test_the_newest_era_of_mcp_has_its_envelope_and_no_batches() -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    assert answered(_body(params={"_meta": meta}), MODERN)[0] == 200
    assert answered(_body(), MODERN)[1]["error"]["code"] == -32602
    assert answered(_body(method="ping", params={"_meta": meta}), MODERN)[1]["error"]["code"] == -32020
    assert answered(b"[" + _body(params={"_meta": meta}) + b"]", MODERN)[1]["error"]["code"] == -32600
    assert answered(b"[" + _body() + b"]", OLD)[0] == 200
    unknown = answered(_body(), Headers({"mcp-protocol-version": "2099-01-01"}))
    assert (unknown[0], unknown[1]["error"]["code"], unknown[1]["id"]) == (400, -32022, 1)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(body: bytes) -> None:
    status, told = answered(body)
    assert status in (200, 202, 400)
    json.dumps(told, allow_nan=False)


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
def test_whatever_is_said_gets_one_answer_or_none(said: Any) -> None:
    status, told = answered(json.dumps(said).encode())
    json.dumps(told, allow_nan=False)
    if isinstance(said, list) and said:
        assert status == 202 or (isinstance(told, list) and len(told) <= len(said))
    else:
        assert told is None or told["jsonrpc"] == "2.0"


def test_nothing_to_answer_is_no_body() -> None:
    assert reply(Heard(()), []) == (202, None)
