"""A Claude login instead of a key: where it is found, when it expires, and how it changes requests."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import KeyRefused, ModelUnusable
from guildhall.models.catalog import create_source
from guildhall.models.credentials import LOGIN_BETA, find_login, merge_environ
from guildhall.models.provider_source import create_provider_source
from tests.models.claude_messages import API, CLAUDES_LINES, HEADERS, TEXT_EVENTS, claude_request, sse
from tests.models.passthrough_run import CLAUDE, PassthroughRun, Upstream, read_body, streamed_answer
from tests.models.scripts import query

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.store.engine import Store

TOKEN = "sk-ant-oat01-must-stay-hidden"
FAR_FUTURE_MS = 4_000_000_000_000
CLOCK = SystemClock()


def write_login(home: Path, **changes: Any) -> dict[str, str]:
    """Write a login of Claude Code into a home directory, and return its environment."""
    (home / ".claude").mkdir(exist_ok=True)
    login = {"accessToken": TOKEN, "refreshToken": "r", "expiresAt": FAR_FUTURE_MS, **changes}
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
    return {"HOME": str(home)}


def test_the_variable_precedes_the_file_and_the_file_is_sent_only_to_anthropic(tmp_path: Path) -> None:
    home = write_login(tmp_path)
    by_variable = find_login({**home, "CLAUDE_CODE_OAUTH_TOKEN": " other ", "ANTHROPIC_BASE_URL": "http://elsewhere"})
    assert by_variable is not None
    assert (by_variable.read_token(CLOCK), by_variable.location) == ("other", "CLAUDE_CODE_OAUTH_TOKEN")
    by_file = find_login(home)
    assert by_file is not None
    assert by_file.read_token(CLOCK) == TOKEN
    assert find_login({**home, "ANTHROPIC_BASE_URL": "http://elsewhere"}) is None
    assert find_login({"HOME": str(tmp_path / "nobody")}) is None
    assert find_login({}) is None
    moved = find_login({"CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")})
    assert moved is not None
    assert moved.read_token(CLOCK) == TOKEN
    assert TOKEN not in repr([by_variable, by_file, moved])


def test_a_login_is_read_each_time_and_an_expired_one_is_refused_with_a_hint(tmp_path: Path) -> None:
    login = find_login(write_login(tmp_path))
    assert login is not None
    write_login(tmp_path, accessToken="renewed")
    assert login.read_token(CLOCK) == "renewed"
    write_login(tmp_path, expiresAt=1000)
    with pytest.raises(KeyRefused, match="has expired") as out:
        login.read_token(CLOCK)
    assert "claude setup-token" in (out.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"claudeAiOauth": 3}',
        '{"claudeAiOauth": {"accessToken": 3}}',
        "[" * 100_000,
        "\udcff",
    ],
)
def test_an_invalid_credentials_file_is_refused(tmp_path: Path, text: str) -> None:
    login = find_login(write_login(tmp_path))
    assert login is not None
    (tmp_path / ".claude" / ".credentials.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelUnusable, match="no Claude login"):
        login.read_token(CLOCK)


def test_a_key_precedes_a_login_and_only_anthropic_has_logins(tmp_path: Path) -> None:
    login = find_login(write_login(tmp_path))
    keyed = create_provider_source(CLAUDE, {"ANTHROPIC_API_KEY": "k"}, login).upstream("anthropic")
    assert keyed is not None
    assert (keyed.has_login, keyed.headers) == (False, {"x-api-key": "k"})
    with pytest.raises(ModelUnusable, match="OPENAI_API_KEY"):
        create_provider_source("openai:gpt-5", {}, login)
    with pytest.raises(ModelUnusable, match="ANTHROPIC_API_KEY"):
        create_provider_source(CLAUDE, {})
    logged = create_provider_source(CLAUDE, {}, login).upstream("anthropic")
    assert logged is not None
    assert (logged.has_login, logged.headers, logged.url) == (
        True,
        {"authorization": f"Bearer {TOKEN}"},
        "https://api.anthropic.com",
    )
    assert TOKEN not in repr(logged)
    assert create_source("auto", cwd=tmp_path, environ={}, login=login).name.startswith("anthropic:")


def test_only_the_claude_runtime_can_use_a_login(tmp_path: Path) -> None:
    source = create_provider_source(CLAUDE, {}, find_login(write_login(tmp_path)))
    with pytest.raises(KeyRefused, match="runtime: claude"):
        asyncio.run(source.answer(query(), lambda piece: None))


def test_a_request_with_its_own_address_does_not_get_the_login_of_the_hall() -> None:
    own = {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN, "PATH": "/bin"}
    assert merge_environ(own, {"ANTHROPIC_BASE_URL": "http://elsewhere"}) == {
        "PATH": "/bin",
        "ANTHROPIC_BASE_URL": "http://elsewhere",
    }


@pytest.mark.req("X-14")
def test_the_hall_adds_the_login_and_the_lines_of_claude_stay_before_the_prompt(store: Store) -> None:
    async def work() -> tuple[PassthroughRun, Upstream]:
        async with Upstream([streamed_answer(sse(*TEXT_EVENTS))]).serving() as upstream:
            environ = {"ANTHROPIC_BASE_URL": upstream.url, "CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
            passage = PassthroughRun(store, create_provider_source(CLAUDE, environ, find_login(environ)))
            session = await passage.open()
            headers = {"authorization": "Bearer the-token-of-the-run", "anthropic-beta": "claude-code-20250219"}
            for beta in (headers, {**headers, "anthropic-beta": f"x, {LOGIN_BETA}"}):
                await read_body(await session.answer(API, claude_request(beta["anthropic-beta"]), beta))
            await passage.pool.close()
            return passage, upstream

    passage, upstream = asyncio.run(work())
    first, second = upstream.requests
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert "x-api-key" not in first.headers
    assert first.headers["anthropic-beta"] == f"claude-code-20250219,{LOGIN_BETA}"
    assert second.headers["anthropic-beta"].count(LOGIN_BETA) == 1
    assert [block["text"] for block in first.body["system"]] == [
        *(line["text"] for line in CLAUDES_LINES),
        "Be Bob.",
    ]
    assert TOKEN not in passage.journal_text()
    assert "the-token-of-the-run" not in str(upstream.requests)


def test_a_refused_login_is_reported_with_a_hint_and_never_shown(store: Store) -> None:
    async def work() -> PassthroughRun:
        body = {"type": "error", "error": {"type": "authentication_error", "message": f"OAuth token {TOKEN} expired"}}
        content = json.dumps(body).encode()

        async def refuse(request: Any) -> Any:
            yield b"HTTP/1.1 401 x\r\ncontent-length: %d\r\n\r\n" % len(content) + content

        async with Upstream([refuse]).serving() as upstream:
            environ = {"ANTHROPIC_BASE_URL": upstream.url, "CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
            passage = PassthroughRun(store, create_provider_source(CLAUDE, environ, find_login(environ)))
            reply = await (await passage.open()).answer(API, claude_request(), HEADERS)
            assert TOKEN not in (await read_body(reply)).decode()
            await passage.pool.close()
            return passage

    passage = asyncio.run(work())
    assert isinstance(passage.errors[0], KeyRefused)
    assert "claude setup-token" in str(passage.errors[0])
    assert TOKEN not in str(passage.errors[0]) + passage.journal_text()
