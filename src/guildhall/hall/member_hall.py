"""The hall inside a member: serves the worker of a member from a home of its own.

Does not read the manifest (`member`). Imported when a member starts to work, because it imports the database.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import InvalidFile
from guildhall.core.paths import HOME_VARIABLE, MEMBER_STATE, Home
from guildhall.hall.composition.environment import MemberFolder
from guildhall.hall.composition.hall import Hall
from guildhall.hall.server.process import Log, Process
from guildhall.hall.server.worker_methods import HallJobs, Operations
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.members.model import MANIFEST
from guildhall.rpc.endpoint import PATH, Endpoint, Offer
from guildhall.workers.loader import WORKER_SUFFIXES
from guildhall.workers.model import WORKERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame


@dataclass(frozen=True)
class MemberHall:
    """The hall of one member, with the worker that does its work."""

    hall: Hall
    root: Path
    worker: str

    def frame(self) -> Frame:
        """Return the frame of new work: the member's folder, with the variables that the member was given."""
        return replace(self.hall.environment.frame_at(self.root, self.root), caller="member")


def open_member_hall(root: Path, name: str, environ: Mapping[str, str]) -> MemberHall:
    """Open the hall of the member in a folder. Raise if the file of its worker is invalid.

    The settings are those of the user who started the member, unless the member has its own.
    """
    worker = worker_in(root, name)
    user = environ.get(HOME_VARIABLE)
    folder = MemberFolder(root, user_home=Home(Path(user)) if user else None)
    hall = Hall(Home.at(root / MEMBER_STATE), environ=environ, process=True, member=folder)
    member = MemberHall(hall, root, worker)
    try:
        hall.workers.find(worker, member.frame())
    except BaseException:
        hall.release()
        raise
    return member


class MemberHallProcess(Process):
    """The process of a member: a hall that never exits when idle, and serves the member's own address."""

    def __init__(self, member: MemberHall, log: Log, *, port: int) -> None:
        super().__init__(member.hall, log, idle=None, port=port)
        self._member = member
        self._operations = Operations(HallJobs(EmbeddedHall(member.hall, stays=True), member.worker, member.frame))

    def offer(self, offer: Offer, secret: str) -> str:
        """Serve these tools and the worker. Return the address."""
        endpoint = Endpoint.of_one(replace(offer, worker=self._operate), secret)
        for path in (PATH, f"{PATH}/"):
            self.face.place(path, endpoint)
        return f"{self.url}{PATH}"

    async def _operate(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Execute `worker/*`, once the runs of an earlier process are resumed."""
        await self.recovered()
        if self._member.hall.main.peek_runs() is None:  # importing takes a second; others are answered meanwhile
            await asyncio.to_thread(import_module, "guildhall.runs.execution.runs")
        return await self._operations(method, params)


def worker_in(root: Path, name: str) -> str:
    """Return the worker of a member: the one with the member's name, else the only one in the folder."""
    files = [path for path in sorted((root / WORKERS).glob("*")) if path.suffix in WORKER_SUFFIXES and path.is_file()]
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
