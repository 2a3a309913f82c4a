"""A person's login with Claude in the place of a key: found, read anew, run out; what of a request it changes."""

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
from tests.models.claudes import API, CLAUDES_LINES, HEADERS, SAID, asked, sse
from tests.models.passages import CLAUDE, Passage, Upstream, read, streamed
from tests.models.scripts import query

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.store.engine import Store

TOKEN = "sk-ant-oat01-nobody-may-see-this"
LATER = 4_000_000_000_000
CLOCK = SystemClock()


def keep(home: Path, **changes: Any) -> dict[str, str]:
    """A home in which Claude Code has left a login."""
    (home / ".claude").mkdir(exist_ok=True)
    told = {"accessToken": TOKEN, "refreshToken": "r", "expiresAt": LATER, **changes}
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": told}))
    return {"HOME": str(home)}


def test_the_variable_comes_before_the_file_and_the_file_goes_to_anthropic_alone(tmp_path: Path) -> None:
    home = keep(tmp_path)
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


def test_it_is_read_anew_each_time_and_one_that_has_run_out_says_what_to_do(tmp_path: Path) -> None:
    login = find_login(keep(tmp_path))
    assert login is not None
    keep(tmp_path, accessToken="renewed")
    assert login.read_token(CLOCK) == "renewed"
    keep(tmp_path, expiresAt=1000)
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
def test_a_file_that_holds_none(tmp_path: Path, text: str) -> None:
    login = find_login(keep(tmp_path))
    assert login is not None
    (tmp_path / ".claude" / ".credentials.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelUnusable, match="no Claude login"):
        login.read_token(CLOCK)


def test_a_key_comes_before_a_login_and_other_providers_have_none(tmp_path: Path) -> None:
    login = find_login(keep(tmp_path))
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


def test_only_a_program_that_speaks_for_itself_can_use_it(tmp_path: Path) -> None:
    source = create_provider_source(CLAUDE, {}, find_login(keep(tmp_path)))
    with pytest.raises(KeyRefused, match="runtime: claude"):
        asyncio.run(source.answer(query(), lambda piece: None))


def test_whoever_brings_an_address_does_not_get_the_halls_login() -> None:
    own = {"CLAUDE_CODE_OAUTH_TOKEN": TOKEN, "PATH": "/bin"}
    assert merge_environ(own, {"ANTHROPIC_BASE_URL": "http://elsewhere"}) == {
        "PATH": "/bin",
        "ANTHROPIC_BASE_URL": "http://elsewhere",
    }


@pytest.mark.req("X-14")
def test_the_hall_puts_the_login_in_and_claudes_own_lines_stay_before_the_prompt(store: Store) -> None:
    async def go() -> tuple[Passage, Upstream]:
        async with Upstream([streamed(sse(*SAID))]).serving() as upstream:
            environ = {"ANTHROPIC_BASE_URL": upstream.url, "CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
            passage = Passage(store, create_provider_source(CLAUDE, environ, find_login(environ)))
            passing = await passage.open()
            headers = {"authorization": "Bearer the-token-of-the-run", "anthropic-beta": "claude-code-20250219"}
            for beta in (headers, {**headers, "anthropic-beta": f"x, {LOGIN_BETA}"}):
                await read(await passing.answer(API, asked(beta["anthropic-beta"]), beta))
            await passage.line.close()
            return passage, upstream

    passage, upstream = asyncio.run(go())
    first, second = upstream.heard
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert "x-api-key" not in first.headers
    assert first.headers["anthropic-beta"] == f"claude-code-20250219,{LOGIN_BETA}"
    assert second.headers["anthropic-beta"].count(LOGIN_BETA) == 1
    assert [block["text"] for block in first.body["system"]] == [
        *(line["text"] for line in CLAUDES_LINES),
        "Be Bob.",
    ]
    assert TOKEN not in passage.text()
    assert "the-token-of-the-run" not in str(upstream.heard)


def test_a_login_that_is_refused_is_told_with_what_to_do_and_never_shown(store: Store) -> None:
    async def go() -> Passage:
        body = {"type": "error", "error": {"type": "authentication_error", "message": f"OAuth token {TOKEN} expired"}}
        told = json.dumps(body).encode()

        async def no(heard: Any) -> Any:
            yield b"HTTP/1.1 401 x\r\ncontent-length: %d\r\n\r\n" % len(told) + told

        async with Upstream([no]).serving() as upstream:
            environ = {"ANTHROPIC_BASE_URL": upstream.url, "CLAUDE_CODE_OAUTH_TOKEN": TOKEN}
            passage = Passage(store, create_provider_source(CLAUDE, environ, find_login(environ)))
            reply = await (await passage.open()).answer(API, asked(), HEADERS)
            assert TOKEN not in (await read(reply)).decode()
            await passage.line.close()
            return passage

    passage = asyncio.run(go())
    assert isinstance(passage.broken[0], KeyRefused)
    assert "claude setup-token" in str(passage.broken[0])
    assert TOKEN not in str(passage.broken[0]) + passage.text()
