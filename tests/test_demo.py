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
        "[reader 3] → sandbox_read_text sandbox=inbox path=grace.txt",
        "waits for you: chief wants to call worker_create",
        "Killed",
        "lost",
        "Done: 3 invoices, 255.50 in all.",
        "in 5 runs of one tree",
        "worker  late-payers",
        "As I noted last time: Alan Turing pays only after a reminder.",
        "all as on record",
        "+ You are a quick reader.",
        "2 passed, 0 failed",
        "That was it",
    ):
        assert line in told.out, (line, told.out)
