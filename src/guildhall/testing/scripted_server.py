"""Scripted model server: serves a model script on a loopback port to real clients of Anthropic and OpenAI.

    with ScriptedServer(Path("review.yaml")) as server:
        client = anthropic.Anthropic(base_url=server.anthropic_url, api_key="script-reviewer")

The key selects the worker whose responses are returned. `script-WORKER.1` selects the second run of the worker. The
server keeps all requests in `requests`. It does not execute runs. Scripts are read by `models.scripted.source`.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import uvicorn
from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelFailed
from guildhall.core.ids import fingerprint
from guildhall.hall.doors import MAX_BODY_BYTES, LlmEndpoint, request_token
from guildhall.jobs.assignee_tools import SERVER as JOB
from guildhall.models.dialects.base import InvalidMessage, parse_body
from guildhall.models.dialects.canonical import rename_tools
from guildhall.models.model import Query, Source, estimate_tokens, system_text
from guildhall.models.passthrough.session import PassthroughSession
from guildhall.models.scripted.source import ScriptSource, load_script
from guildhall.projects.commissions.assignee_tools import SERVER as COMMISSION
from guildhall.projects.commissions.contract import REVIEW_SERVER
from guildhall.projects.meetings.assignee_tools import SERVER as MEETING
from guildhall.rpc.asgi_requests import Headers
from guildhall.runs.execution.tokens import TOOLS
from guildhall.runs.owner_hooks import RunHooks

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

    from guildhall.models.passthrough.relay import PassthroughRequest
    from guildhall.rpc.asgi_requests import Message, Receive, Send

_TIMEOUT_S = 5.0  # of the start and of the stop
_KEY = re.compile(r"script-(?P<worker>[A-Za-z0-9][A-Za-z0-9_.-]*?)(?:\.(?P<ordinal>\d{1,6}))?")
# Programs prefix the name of a tool with the name of its server.
_SERVERS = "|".join((TOOLS, RunHooks.server, JOB, COMMISSION, REVIEW_SERVER, MEETING))
_QUALIFIED_NAME = re.compile(rf"(?:mcp__.+?__|(?:{_SERVERS})_)(?P<tool>.+)")


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request and the status of its response. `answered` is True if the response came from the script."""

    path: str
    key: str | None
    body: Mapping[str, Any] | None
    status: int
    answered: bool


class Caller(NamedTuple):
    """The worker and the run that a request belongs to."""

    worker: str
    ordinal: int


def scripted_caller(key: str) -> Caller | None:
    """Return the caller of a key `script-WORKER` or `script-WORKER.RUN`, or None. Runs count from 0."""
    if (match := _KEY.fullmatch(key)) is None:
        return None
    return Caller(worker=match["worker"], ordinal=int(match["ordinal"] or 0))


class ScriptedApp:
    """An ASGI application that serves a model source at `/anthropic/v1/...` and `/openai/v1/...`.

    Clients may retry.
    """

    def __init__(
        self,
        source_for_worker: Callable[[str], Source],
        *,
        on_exchange: Callable[[Exchange], None] = lambda exchange: None,
        max_body: int = MAX_BODY_BYTES,
        prompt_cache: bool = False,
    ) -> None:
        self._prompts: list[tuple[str, ...]] | None = [] if prompt_cache else None  # the cached prefixes
        self._source_for_worker = source_for_worker
        self._on_exchange = on_exchange
        self._endpoint = LlmEndpoint(self._find_session, prefix="", max_body_bytes=max_body)
        self._sessions: dict[str, PassthroughSession] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = bytearray()
        path: str = scope["path"]
        key = request_token(Headers.of(scope["headers"]))

        async def receive_body() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def send_response(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "POST":
                status: int = message["status"]
                answered = status == 200 and not path.endswith("/count_tokens")
                parsed = None
                with suppress(InvalidMessage):
                    parsed = parse_body(bytes(body))
                self._on_exchange(Exchange(path=path, key=key, body=parsed, status=status, answered=answered))
            await send(message)

        await self._endpoint(scope, receive_body, send_response)

    def _cached_usage(self, query: Query, response: ModelResponse, passthrough: PassthroughRequest) -> RequestUsage:
        """Return the usage with the tokens of the longest known prefix as read from the cache.

        Anthropic caches only requests with a cache mark and charges for the rest as written to the cache.
        """
        assert self._prompts is not None
        prompt = _prompt_segments(query)
        sizes = [estimate_tokens(len(segment)) for segment in prompt]
        is_marked = passthrough.max_usage(1, 0).cache_write_tokens > 0
        is_cached = is_marked or passthrough.api != "anthropic"
        known = (zip(prompt, other, strict=False) for other in self._prompts)
        shared = (sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) for pairs in known)
        read = sum(sizes[: max(shared, default=0)]) if is_cached else 0
        if is_cached:
            self._prompts.append(prompt)
        return RequestUsage(
            input_tokens=sum(sizes),
            cache_read_tokens=read,
            cache_write_tokens=sum(sizes) - read if is_marked else 0,
            output_tokens=response.usage.output_tokens,
        )

    def _find_session(self, key: str) -> PassthroughSession | None:
        if key not in self._sessions and (caller := scripted_caller(key)) is not None:
            ask, name = partial(self._call_source, caller, {}), f"{caller.worker}_{caller.ordinal}_"
            session = PassthroughSession(ask, content=None, on_error=lambda error: None, id_prefix=name, may_retry=True)
            self._sessions[key] = session
        return self._sessions.get(key)

    async def _call_source(
        self,
        caller: Caller,
        failures: dict[int, int],
        key: str,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        passthrough: PassthroughRequest | None = None,
    ) -> ModelResponse:
        """Return the response of the source. `failures` counts the failures of each step, for `fail` in scripts."""
        step = sum(1 for message in messages if message.kind == "response")
        query = Query(
            worker=caller.worker,
            ordinal=caller.ordinal,
            attempt=failures.get(step, 0),
            messages=messages,
            settings={},
            parameters=parameters,
        )
        try:
            response = await self._source_for_worker(caller.worker).answer(query, lambda piece: None)
            if self._prompts is not None and passthrough is not None:
                response = replace(response, usage=self._cached_usage(query, response, passthrough))
            return rename_tools(response, _offered_names(tool.name for tool in parameters.function_tools))
        except ModelFailed as error:
            if error.status is not None:
                failures[step] = query.attempt + 1
            raise


def _prompt_segments(query: Query) -> tuple[str, ...]:
    """Return the texts of a prompt in the order of a provider's cache: tools, instructions, messages."""
    tools = [repr((t.name, t.description, t.parameters_json_schema)) for t in query.parameters.function_tools]
    names = ("part_kind", "tool_name", "args", "content")
    parts = [part for message in query.messages for part in message.parts]
    return (*tools, system_text(query.messages), *(repr([getattr(part, name, "") for name in names]) for part in parts))


def _offered_names(offered: Iterable[str]) -> dict[str, str]:
    """Map the name of each tool in a script to the qualified name that the client offers. Skip ambiguous names."""
    offered_names = set(offered)
    qualified_names: defaultdict[str, list[str]] = defaultdict(list)
    for name in offered_names:
        if (match := _QUALIFIED_NAME.fullmatch(name)) is not None and match["tool"] not in offered_names:
            qualified_names[match["tool"]].append(name)
    return {tool: names[0] for tool, names in qualified_names.items() if len(names) == 1}


class ScriptedServer:
    """Serves a script while the `with` block runs, and keeps all requests in `requests`."""

    def __init__(self, script: Path, *, max_body: int = MAX_BODY_BYTES, prompt_cache: bool = False) -> None:
        self.requests: list[Exchange] = []
        source = ScriptSource(script, load_script(script))
        app = ScriptedApp(
            lambda worker: source, on_exchange=self.requests.append, max_body=max_body, prompt_cache=prompt_cache
        )
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._socket = socket.socket()
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="scripted-server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def anthropic_url(self) -> str:
        return f"{self.url}/anthropic"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/openai/v1"

    @property
    def answered_twice(self) -> list[Exchange]:
        """Return the requests that were answered although an equal request had been answered before."""
        seen: set[tuple[str | None, str]] = set()
        twice: list[Exchange] = []
        for exchange in self.requests:
            if exchange.answered:
                question = (exchange.key, fingerprint(exchange.body))
                twice += [exchange] if question in seen else []
                seen.add(question)
        return twice

    def __enter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._thread.start()
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                self._stop()
                raise RuntimeError(
                    f"cannot start the scripted server: not ready within {_TIMEOUT_S:g} s, or its thread ended"
                )
            time.sleep(0.005)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_TIMEOUT_S)
        self._socket.close()
