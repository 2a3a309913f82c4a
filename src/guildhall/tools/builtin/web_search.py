"""Web search tool: implements WebSearch with the search engine that the settings name.

The engines are SearXNG, Tavily, Brave, or the search of the model's provider. The tool runs in the hall, because the
keys stay there. Does not fetch pages (see `tools.builtin.web_fetch`).

Invariant: an error never contains a part of the request, because its headers have the key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, NotFound, TimedOut, ToolUnavailable, UsageError
from guildhall.core.text_checks import did_you_mean
from guildhall.tools.definition import tool

if TYPE_CHECKING:
    from guildhall.tools.model import Tool

MAX_RESULTS = 20
MAX_BYTES = 2_000_000
TIMEOUT_S = 30.0
_MAX_SNIPPET_CHARS = 600
_SETUP_HINT = (
    "Set `web_search: {provider: native}` in the settings to search with the provider of the model, `{searxng: URL}`, "
    "or `{provider: tavily}` or `{provider: brave}` with TAVILY_API_KEY or BRAVE_API_KEY in the environment."
)
_FAILURE_HINT = (
    "Search again once, then continue without WebSearch. The user can check the network and web_search: in config.yaml."
)
_KEYS = {"tavily": "TAVILY_API_KEY", "brave": "BRAVE_API_KEY"}


@dataclass(frozen=True, kw_only=True)
class _Engine:
    """The request format of a search engine, and the place of the results in its response."""

    name: str
    build_request: Callable[[str, int], dict[str, Any]]  # returns the arguments of httpx2 for a query and a limit
    results: tuple[str, ...]  # the path of the results in the response
    snippet: str  # the field of a result


def search_tool(settings: Mapping[str, Any] | None, environ: Mapping[str, str], *, base_url: str | None = None) -> Tool:
    """Return WebSearch for the `web_search` settings. `base_url` replaces the URL of the engine."""
    if (settings or {}).get("provider") == "native" and not (settings or {}).get("searxng"):
        return _native_tool()
    search = _Search(_choose_engine(settings or {}, environ, base_url))
    return tool(name="WebSearch", capabilities={"net"}, repeatable=True, runs_in="hall")(search.search)


def _native_tool() -> Tool:
    """Return the tool for the search of the model's provider. The provider describes the tool to the model."""

    async def search() -> str:
        """Search the web with the model's provider."""
        raise ToolUnavailable("cannot call WebSearch: the provider of the model executes it")

    made = tool(name="WebSearch", capabilities={"net"}, repeatable=True, runs_in="hall")(search)
    return replace(made, native=True)


class _Search:
    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def search(self, query: str, max_results: int = 8) -> str:
        """Search the web. Returns titles, URLs and short extracts.

        Args:
            query: The search terms.
            max_results: The number of results, at most 20.
        """
        if not query.strip() or len(query) > 1_000:
            raise UsageError("query: expected 1 to 1,000 characters")
        if not 1 <= max_results <= MAX_RESULTS:
            raise UsageError(f"max_results: expected 1 to {MAX_RESULTS}")
        response = await _fetch_json(self._engine.name, self._engine.build_request(query, max_results))
        formatted = (_format_result(entry, self._engine.snippet) for entry in _find_results(response, self._engine))
        results = [text for text in formatted if text]
        if not results:
            return f"No results for {query!r}."
        return "\n\n".join(f"{number}. {text}" for number, text in enumerate(results[:max_results], 1))


def _choose_engine(settings: Mapping[str, Any], environ: Mapping[str, str], base_url: str | None) -> _Engine:
    searxng, provider = settings.get("searxng"), settings.get("provider")
    if searxng:
        return _searxng(str(base_url or searxng))
    if not provider:
        raise ToolUnavailable("WebSearch has no search engine", hint=_SETUP_HINT)
    if provider not in _KEYS:
        hint = did_you_mean(str(provider), (*_KEYS, "native"))
        raise ToolUnavailable(f"web_search.provider: unknown search engine {provider!r}", hint=hint)
    key = environ.get(_KEYS[provider], "")
    if not key:
        hint = f"Set {_KEYS[provider]} in the environment of the hall."
        raise ToolUnavailable(f"WebSearch has no key for {provider}", hint=hint)
    return _tavily(key, base_url) if provider == "tavily" else _brave(key, base_url)


def _searxng(base: str) -> _Engine:
    if not base.startswith(("http://", "https://")):
        raise ToolUnavailable(f"web_search.searxng: invalid URL {base!r}", hint="Write an http or https URL.")
    request = {"method": "GET", "url": f"{base.rstrip('/')}/search", "headers": {"Accept": "application/json"}}
    return _Engine(
        name="SearXNG",
        build_request=lambda query, limit: {**request, "params": {"q": query, "format": "json"}},
        results=("results",),
        snippet="content",
    )


def _tavily(key: str, base: str | None) -> _Engine:
    url = f"{base or 'https://api.tavily.com'}/search"
    request = {"method": "POST", "url": url, "headers": {"Authorization": f"Bearer {key}"}}
    return _Engine(
        name="Tavily",
        build_request=lambda query, limit: {**request, "json": {"query": query, "max_results": limit}},
        results=("results",),
        snippet="content",
    )


def _brave(key: str, base: str | None) -> _Engine:
    url = f"{base or 'https://api.search.brave.com'}/res/v1/web/search"
    request = {"method": "GET", "url": url, "headers": {"X-Subscription-Token": key, "Accept": "application/json"}}
    return _Engine(
        name="Brave",
        build_request=lambda query, limit: {**request, "params": {"q": query, "count": str(limit)}},
        results=("web", "results"),
        snippet="description",
    )


async def _fetch_json(name: str, request: Mapping[str, Any]) -> Any:
    """Send a request to an engine and return its JSON response."""
    import httpx2

    body = bytearray()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
            client.stream(**request) as response,
        ):
            if response.status_code != 200:
                raise _http_error(name, response.status_code)
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    problem = f"{name} responded with more than {MAX_BYTES:,} bytes"
                    raise NotFound(problem, hint="Request fewer results.")
    except (TimeoutError, httpx2.TimeoutException):
        raise TimedOut(f"{name} did not respond within {TIMEOUT_S:g} s", hint=_FAILURE_HINT) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotFound(f"cannot reach {name}: {type(error).__name__}", hint=_FAILURE_HINT) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise NotFound(f"{name} did not respond with JSON", hint=_FAILURE_HINT) from None


def _http_error(name: str, status: int) -> GuildError:
    hints = {
        401: "Continue without WebSearch. The user must check the key of the search engine.",
        403: "Continue without WebSearch. The user must check the key of the search engine, or enable JSON in SearXNG.",
        429: "Wait a minute, then search again.",
    }
    return NotFound(f"{name} responded with HTTP status {status}", hint=hints.get(status, _FAILURE_HINT))


def _find_results(response: Any, engine: _Engine) -> list[Any]:
    for name in engine.results:
        response = cast("dict[str, Any]", response).get(name) if isinstance(response, dict) else None
    return cast("list[Any]", response) if isinstance(response, list) else []


def _format_result(entry: Any, snippet: str) -> str | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    url = fields.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return None
    title = " ".join(str(fields.get("title") or "").split()) or url
    text = " ".join(str(fields.get(snippet) or "").split())[:_MAX_SNIPPET_CHARS]
    return f"{title}\n{url}" + (f"\n{text}" if text else "")
