"""The hall's own workers by `worker/*`: `POST /workers/NAME/mcp` with the token of the person.

A worker of a project, or work in one, is named by `?project=` and the folder. The variables are those of the terminal
that has started the hall, as for work that a hall goes on with by itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from guildhall import __version__
from guildhall.core.errors import GuildError
from guildhall.core.frame import Frame
from guildhall.core.paths import project_root
from guildhall.hall.operations import Operations, refusal
from guildhall.rpc.endpoint import Endpoint, Offer
from guildhall.rpc.http import HttpError, is_token

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.services.embedded import EmbeddedHall
    from guildhall.rpc.http import Message

PREFIX = "/workers/"
_OF_A_PROJECT = "A worker of a project is at /workers/NAME/mcp?project= and the absolute path of its folder."
_PATH = re.compile(r"/workers/([A-Za-z0-9][A-Za-z0-9_.-]{0,63})/mcp/?")


class ServedWorkers:
    """Finds what a request goes to."""

    def __init__(
        self, hall: Hall, client: EmbeddedHall, *, leaving: Callable[[], bool], recovered: asyncio.Event
    ) -> None:
        self._hall = hall
        self._client = client
        self._leaving = leaving
        self._recovered = recovered

    def endpoint(self, token: str) -> Endpoint:
        return Endpoint(admits=lambda shown: is_token(shown, token), find=self.find)

    def find(self, scope: Message) -> Offer | None:
        path = _PATH.fullmatch(scope["path"])
        if path is None:
            return None
        if self._leaving():
            raise HttpError(503, "the hall is leaving: the same again finds a new one")
        project = _project(scope.get("query_string", b""))
        try:
            frame = self._frame(project)
            worker = self._hall.find_worker(path[1], frame)
        except GuildError as error:
            where = "" if project else f" {_OF_A_PROJECT}"
            return Offer(name=path[1], version=__version__, missing=f"{refusal(error).message}{where}")
        operations = Operations(self._client, path[1], lambda: frame, name=worker.name)

        async def operate(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            await self._recovered.wait()
            return await operations(method, params)

        return Offer(name=worker.name, version=__version__, worker=operate)

    def _frame(self, project: Path | None) -> Frame:
        cwd = project or self._hall.home.path
        here = Frame(cwd=cwd, root=project_root(cwd))
        allowed = frozenset(self._hall.settings(here).env)
        return Frame.here(cwd, self._hall.environ, allowed=allowed, caller="member")


def _project(query: bytes) -> Path | None:
    """The folder that a request names."""
    try:
        named = parse_qs(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise HttpError(400, "the address cannot be read") from None
    if not named:
        return None
    folder = Path(named["project"][0]) if set(named) == {"project"} and len(named["project"]) == 1 else None
    if folder is None or "\0" in str(folder) or not folder.is_absolute() or not folder.is_dir():
        raise HttpError(400, "an address may end with ?project= and the absolute path of a folder that is there")
    return folder.resolve()
