"""The hall of a member that takes work: the one that people have, in the folder of the member and for its worker.

    .guild/            state: the database, and `config.yaml` if the member has settings of its own
    jobs/  memory/     in plain sight
    workers/           the worker; beside it prompts/, schemas/, toolboxes/, guildhall.yaml as in any project

Its process is that of a hall, at the port that the member was given: with `GUILDHALL_HOME=<member>/.guild` the ordinary
commands reach it, to look and to answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.config import load_settings
from guildhall.core.errors import InvalidFile
from guildhall.core.frame import Frame
from guildhall.core.paths import HOME_VARIABLE, MEMBER_STATE, Home
from guildhall.hall.composition.hall import Hall
from guildhall.hall.embedded import EmbeddedHall
from guildhall.hall.operations import HallJobs, Operations
from guildhall.hall.serve import Process
from guildhall.members.model import MANIFEST
from guildhall.models.keys import travelling
from guildhall.rpc.endpoint import PATH, Endpoint
from guildhall.workers.load import SUFFIXES
from guildhall.workers.model import WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.config import Settings
    from guildhall.hall.log import Log
    from guildhall.rpc.endpoint import Offer


class SmallHall(Hall):
    """The hall of one member. Its settings are those of the person who has it, unless it has its own."""

    def __init__(self, root: Path, name: str, environ: Mapping[str, str]) -> None:
        self.root = self.own = root
        self.worker = worker_in(root, name)
        person = environ.get(HOME_VARIABLE)
        self._person = Home(Path(person)) if person else None
        super().__init__(Home.at(root / MEMBER_STATE), environ=environ, process=True)
        try:
            self.find_worker(self.worker, self.frame())  # what is wrong in its file is told now
        except BaseException:
            self.release()
            raise

    def settings(self, frame: Frame) -> Settings:
        own = self._person is None or self.home.settings.exists()
        return load_settings(self.home if own or self._person is None else self._person, self.root)

    def frame(self) -> Frame:
        """What new work is done in: the member's folder, with the variables that it was given."""
        here = Frame(cwd=self.root, root=self.root)
        allowed = frozenset(self.settings(here).env)
        made = Frame.here(self.root, self.environ, allowed=allowed, caller="member", keys=travelling())
        return replace(made, root=self.root)


class SmallProcess(Process):
    """The process of a member: a hall that stays until it is told to leave, and serves the member's own address."""

    def __init__(self, hall: SmallHall, log: Log, *, port: int) -> None:
        super().__init__(hall, log, idle=None, port=port)
        self._small = hall
        self._operations = Operations(HallJobs(EmbeddedHall(hall, stays=True), hall.worker, hall.frame))

    def offer(self, offer: Offer, secret: str) -> str:
        """Serves this, with the worker; the address."""
        endpoint = Endpoint.of_one(replace(offer, worker=self._operate), secret)
        for path in (PATH, f"{PATH}/"):
            self.face.place(path, endpoint)
        return f"{self.url}{PATH}"

    async def _operate(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """`worker/*`, once what an earlier process has left behind goes on."""
        await self.recovered()
        if Hall.runs.of(self._small).peek() is None:  # it takes a second, the first time; others are answered meanwhile
            await asyncio.to_thread(import_module, "guildhall.runs.lifecycle")
        return await self._operations(method, params)


def worker_in(root: Path, name: str) -> str:
    """The worker of a member: the one that is named like it, else the only one that there is."""
    files = [path for path in sorted((root / WORKERS).glob("*")) if path.suffix in SUFFIXES and path.is_file()]
    names = [path.stem for path in files]
    if name in names:
        return name
    if len(names) == 1:
        return names[0]
    where = str(root / MANIFEST)
    if not names:
        hint = f"Write {WORKERS}/{name}.yaml, or take `worker` out of the capabilities."
        raise InvalidFile("the member takes work, and there is no worker in its folder", where=where, hint=hint)
    hint = f"Name one of them like the member: {WORKERS}/{name}.yaml."
    raise InvalidFile(f"the member takes work, and which worker does it? {', '.join(names)}", where=where, hint=hint)
