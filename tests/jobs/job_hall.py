"""A hall in this process that executes jobs of a scripted worker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.jobs.model import Dispatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.jobs.model import Job
    from guildhall.jobs.service import Jobs

Answer = dict[str, Any]

LATE: Answer = {"sleep": 30, "say": "late"}  # nobody waits for it


def call(tool: str, /, **arguments: Any) -> Answer:
    return {"call": tool, "with": arguments}


def say(text: str = "done", **more: Any) -> Answer:
    return {"say": text, **more}


def submit(output: Any = "the result", **more: Any) -> Answer:
    return call("submit_result", output=output, **more)


@dataclass(kw_only=True)
class JobHall:
    """A project with a worker that accepts jobs, and a hall in this process."""

    home: Home
    project: Path
    hall: Any = None
    client: Any = None

    @staticmethod
    def anywhere(folder: Path) -> JobHall:
        """Create a job_hall with its own home and project in a folder."""
        (folder / "project").mkdir()
        return JobHall(home=Home(folder / "home"), project=folder / "project")

    def worker(self, name: str = "smith", **fields: Any) -> None:
        """Write a worker whose model is the script."""
        folder = self.project / "workers"
        folder.mkdir(exist_ok=True)
        usual = {"name": name, "instructions": "You forge things.", "model": "script:script.yaml"}
        (folder / f"{name}.yaml").write_text(json.dumps({**usual, **fields}))

    def script(self, *runs: list[Answer], name: str = "smith", **more: Any) -> None:
        """Write the script of the worker: a list of model responses for each run."""
        (self.project / "script.yaml").write_text(json.dumps({"workers": {name: list(runs)}, **more}))

    def run(self, work: Callable[[JobHall], Awaitable[Any]]) -> Any:
        """Run `work` with a new hall on the same home."""

        async def go() -> Any:
            self.hall = Hall(self.home, environ={}, is_persistent=True)
            self.client = EmbeddedHall(self.hall)
            try:
                async with asyncio.timeout(20):
                    return await work(self)
            finally:
                await self.client.close()

        return asyncio.run(go())

    @property
    def frame(self) -> Frame:
        return Frame(cwd=self.project, root=self.project)

    @property
    def jobs(self) -> Jobs:
        return self.hall.jobs

    async def dispatch(self, task: str = "Forge a key.", description: str = "a key", **config: Any) -> Job:
        asked = Dispatch(description=description, task=task, config=config)
        return await self.jobs.dispatch("smith", asked, self.frame)

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition returns a true value, and return the value."""
        async with asyncio.timeout(8):
            while not (found := condition()):  # noqa: ASYNC110 - what is looked at is files too
                await asyncio.sleep(0.005)
        return found

    async def ended(self, job: str) -> Job:
        """Wait until a job has ended, and return it."""
        await self.until(lambda: self.jobs.get(job).status != "running")
        return self.jobs.get(job)

    async def done(self, **asked: Any) -> Job:
        """Dispatch a job and wait for its end."""
        return await self.ended((await self.dispatch(**asked)).id)

    def files(self, job: str) -> dict[str, str]:
        """Return the files in a job's directory."""
        top = self.home.jobs / job
        return {str(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}
