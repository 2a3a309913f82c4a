"""Jobs at work: a worker and a script in a project, and a hall in this process that does its jobs."""

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
class Shop:
    """A worker in a project that takes jobs, and the hall that has them."""

    home: Home
    project: Path
    hall: Any = None
    client: Any = None

    @staticmethod
    def anywhere(folder: Path) -> Shop:
        """Create a shop with its own home and project in a folder."""
        (folder / "project").mkdir()
        return Shop(home=Home(folder / "home"), project=folder / "project")

    def worker(self, name: str = "smith", **fields: Any) -> None:
        """Writes a worker whose model is the script."""
        folder = self.project / "workers"
        folder.mkdir(exist_ok=True)
        usual = {"name": name, "instructions": "You forge things.", "model": "script:script.yaml"}
        (folder / f"{name}.yaml").write_text(json.dumps({**usual, **fields}))

    def script(self, *runs: list[Answer], name: str = "smith", **more: Any) -> None:
        """Writes the script: the runs of the worker, each a list of answers."""
        (self.project / "script.yaml").write_text(json.dumps({"workers": {name: list(runs)}, **more}))

    def inside(self, work: Callable[[Shop], Awaitable[Any]]) -> Any:
        """Does something with a hall open. Each time it is another one, on the same home."""

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

    async def until(self, happened: Callable[[], Any]) -> Any:
        """Waits until something is so."""
        async with asyncio.timeout(8):
            while not (found := happened()):  # noqa: ASYNC110 - what is looked at is files too
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
