"""`guild demo` to its end: no key, no network, the real commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Guild


@pytest.mark.req("X-10")
@pytest.mark.timeout(240)
def test_the_story_is_told_to_its_end(guild: Guild) -> None:
    told = guild("demo", timeout=200)
    assert told.code == 0, told
    for line in (
        "Everything is real but the model",
        "waits for you: clerk wants to call sandbox_write_text",
        "Killed",
        "lost",
        "255.50 in all. The total is in outbox/total.md.",
        " 1 write.",
        "all as on record",
        "+ You are a quick clerk.",
        "That was it",
    ):
        assert line in told.out, (line, told.out)
