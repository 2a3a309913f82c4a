"""A hall that runs the setup of a workflow as a run of its own. As a program it is what a test kills."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.events import Event
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.hall.wiring import Hall
from guildhall.hall.workflows import load_workflow
from guildhall.runs.model import Answer, RunRequest
from guildhall.workflow.interpolate import Values
from guildhall.workflow.setup import SetupRuntime, setup_seat, setup_worker

if TYPE_CHECKING:
    from guildhall.runs.model import Run


async def set_up(file: Path, *, run: str | None = None, answer: str | None = None) -> tuple[Run, list[Event]]:
    """Runs the setup, or goes on with it after an answer to what it asks, until it ends or stops for now."""
    hall = Hall(Home.locate(dict(os.environ)), environ=os.environ)
    try:
        frame = Frame.here(file.parent, {"PATH": os.environ["PATH"]})
        workflow = load_workflow(hall, file, frame)
        values = Values(workflow=workflow.name, tag="main", params={"pid": str(os.getpid())})

        def told(which: str, key: str, text: str) -> None:
            at = stamp(hall.clock.now())
            data = {"id": key, "tool": "shell", "text": text}
            hall.bus.publish(Event(type="tool_output", run=which, root=which, at=at, data=data))

        seat = setup_seat(workflow, frame, told)
        there = workflow.frame(frame)
        if run is None:
            started = {"file": str(file), "tag": "main", "params": dict(values.params)}
            request = RunRequest(worker="setup", input="-", workflow=started)
            prepared = await hall.runs.preparation.prepare(request, there, worker=setup_worker(workflow), seat=seat)
        else:
            for ask in hall.asks.open() if answer else ():
                await hall.asks.answer(ask.id, Answer(choice=answer or ""))
            prepared = await hall.runs.preparation.prepare_again(run, there, seat=seat)
        heard: list[Event] = []
        with hall.bus.listening(prepared.run) as events:
            hall.runs.launch(prepared, SetupRuntime(workflow, values))
            async with asyncio.timeout(20):
                async for event in events:
                    heard.append(event)
                    if event.type == "run_ended":
                        break
        return hall.history.get(prepared.run), heard
    finally:
        await hall.close()


if __name__ == "__main__":
    asyncio.run(set_up(Path(sys.argv[1])))
