"""Errors of the owner of a run, and of the disk, at the end of a segment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import StorageFailed
from guildhall.core.request_frame import Frame
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import RunRequest, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks
from tests.hall.hall_server import serve_hall
from tests.runs.places import DONE, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.paths import Home

INTERNAL = "internal error: ZeroDivisionError: by an owner at test_owner_errors.py:"
DISK_FULL = StorageFailed("disk full at hall.db", hint="Free some space.")


async def divide(run: str, end: SegmentEnd) -> Any:
    raise ZeroDivisionError("by an owner")


async def refuse(run: str, end: SegmentEnd) -> Any:
    raise DISK_FULL


@pytest.mark.parametrize(
    ("hook", "raises", "code", "message", "status"),
    [
        (
            "judge",
            divide,
            "error",
            INTERNAL,
            "interrupted",
        ),
        (
            "on_stopped",
            divide,
            "error",
            INTERNAL,
            "completed",
        ),
        ("judge", refuse, "storage_failed", DISK_FULL.message, "interrupted"),
    ],
)
def test_an_error_at_the_end_of_a_run_is_reported_with_its_cause(
    home: Home, project: Path, hook: str, raises: Any, code: str, message: str, status: str
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    frame = Frame.here(project, {})

    async def go() -> None:
        async with serve_hall(home) as hall:
            services, client = hall.hall.main, EmbeddedHall(hall.hall)
            hooks = RunHooks(executor=lambda run: pytest.fail(run), **{hook: raises})
            prepared = await services.runs.prepare(RunRequest(worker="scribe", input="go"), frame, hooks=hooks)
            services.runs.launch(prepared)
            events: list[Event] = [event async for event in client.runs.follow(prepared.run_id, frame)]
            error, end = events[-2], events[-1]
            assert (error.type, error.data["code"]) == ("error", code)
            assert error.data["message"].startswith(message)
            assert "journal" not in error.data["message"]
            assert (end.type, end.data["status"]) == ("run_ended", status)
            assert hall.hall.history.get(prepared.run_id).status == status
            if status == "interrupted":
                hooks = replace(hooks, judge=None)
                services.runs.launch(await services.runs.prepare_resume(prepared.run_id, frame, hooks=hooks))
                events = [event async for event in client.runs.follow(prepared.run_id, frame)]
                assert events[-1].data["status"] == "completed"

    asyncio.run(go())
