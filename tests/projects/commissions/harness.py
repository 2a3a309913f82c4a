"""A registered repository with a scripted worker, and a hall that executes its commissions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.recovery import Recovery
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.projects.commissions.model import Draft
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.hall.composition.projects import ProjectServices
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.commissions.service import Commissions
    from tests.projects.conftest import Repository

Answer = dict[str, Any]

LATE: Answer = {"sleep": 30, "say": "late"}  # too late for any test
ENDED = ("completed", "failed", "cancelled", "abandoned")


def call(tool: str, /, **arguments: Any) -> Answer:
    return {"call": tool, "with": arguments}


def write(path: str, content: str = "made\n") -> Answer:
    return call("Write", file_path=path, content=content)


def submit(output: Any = "All is made.") -> Answer:
    return call("submit_result", output=output)


def say(text: str = "done") -> Answer:
    return {"say": text}


@dataclass(kw_only=True)
class CommissionProject:
    """A registered project with scripted workers, and a hall in this process."""

    home: Home
    repo: Repository
    workers: dict[str, Any] = field(default_factory=dict[str, Any])
    hall: Any = None
    client: Any = None
    clock: SystemClock = field(default_factory=SystemClock)

    @staticmethod
    def at(folder: Path, home: Home) -> CommissionProject:
        """Create a project with the worker smith, which is not committed."""
        files = {"README.md": "The shop\n", "src/cart.py": "total = 1\n", ".lore/plan.md": "The plan\n"}
        repo = repository(folder / "shop", files)
        home.path.mkdir(parents=True, exist_ok=True)
        # The same entry as `guild project add` writes, without its git commands.
        home.settings.write_text(f'projects:\n  shop:\n    path: "{repo.path}"\n    branch: main\n')
        shop = CommissionProject(home=home, repo=repo)
        shop.worker()
        shop.script([say()])
        return shop

    def worker(self, name: str = "smith", **fields: Any) -> None:
        """Write a worker file whose model is the script, without committing it."""
        (self.repo.path / "workers").mkdir(exist_ok=True)
        usual = {"name": name, "instructions": "You forge.", "model": "script:script.yaml", "checkout": "full"}
        (self.repo.path / "workers" / f"{name}.yaml").write_text(json.dumps({**usual, **fields}))

    def script(self, *runs: list[Answer], **others: list[list[Answer]]) -> None:
        """Write the scripts of smith and of other workers: a list of answers for each run."""
        (self.repo.path / "script.yaml").write_text(json.dumps({"workers": {"smith": list(runs), **others}}))

    def run_in_hall(self, work: Callable[[CommissionProject], Awaitable[Any]], *, recover: bool = False) -> Any:
        """Run a coroutine with a new hall of the home."""

        async def go() -> Any:
            self.hall = Hall(self.home, environ={}, clock=self.clock, is_persistent=True)
            self.client = EmbeddedHall(self.hall)
            try:
                async with asyncio.timeout(30):
                    if recover:
                        await Recovery(self.hall).resume_runs()
                    return await work(self)
            finally:
                await self.hall.drain()
                await self.client.close()

        return asyncio.run(go())

    @property
    def frame(self) -> Frame:
        return Frame(cwd=self.repo.path, root=self.repo.path)

    @property
    def commissions(self) -> Commissions:
        return self.hall.commissions

    @property
    def services(self) -> ProjectServices:
        return self.hall.project_services

    async def create_commission(
        self,
        title: str = "A key",
        prompt: str = "Forge a key.",
        worker: str = "smith",
        frame: Frame | None = None,
        **more: Any,
    ) -> Commission:
        draft = Draft(title=title, worker=worker, prompt=prompt, **more)
        return await self.commissions.create(self.hall.projects.get("shop"), draft, frame or self.frame)

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(0.02)

    async def wait_for_status(self, id: str, *status: str) -> Commission:
        """Wait until a commission has this status, and return it."""
        await self.wait_until(lambda: self.commissions.get(id).status in status)
        return self.commissions.get(id)

    async def wait_ended(self, id: str) -> Commission:
        """Wait until the run of a commission has ended and been processed, and return the commission."""
        await self.wait_for_status(id, *ENDED)
        run = self.commissions.get(id).run
        await self.wait_until(lambda: run is None or not self.hall.runs.is_alive(run))
        await self.commissions.drain()
        return self.commissions.get(id)

    async def run_commission(self, **draft: Any) -> Commission:
        """Create a commission and wait for its end."""
        made = await self.create_commission(**draft)
        await self.commissions.dispatch(made.id, self.frame)
        return await self.wait_ended(made.id)

    async def timeline_reasons(self, id: str) -> list[str]:
        return [entry.reason for entry in (await self.commissions.details(id)).timeline]

    def branches(self) -> set[str]:
        return set(self.repo.git("for-each-ref", "--format=%(refname)").split())
