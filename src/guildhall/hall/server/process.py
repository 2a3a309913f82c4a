"""Process of a hall: `python -m guildhall.hall.server.process HOME FD` serves a home until stopped or idle.

    recovering -> serving -> leaving -> gone

The process writes its address and token to `hall.json`. It reports success or an error on the file descriptor and
closes that. Standard error is the log. Secrets are redacted in the log.
Does not define routes: `api` does. Does not start the process: `hall.client.discovery` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.core.clock import stamp
from guildhall.core.config import load_settings
from guildhall.core.errors import GuildError, HallUnavailable
from guildhall.core.paths import Home
from guildhall.core.redaction import Secrets
from guildhall.hall.client.discovery import Address, process_of
from guildhall.hall.composition.database import LOCK_PATIENCE
from guildhall.hall.composition.environment import peek
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.recovery import Recovery
from guildhall.hall.server.api import Api, House
from guildhall.hall.server.worker_methods import PREFIX, workers_endpoint
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.hall.services.workers import log_invalid
from guildhall.rpc.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.hall.client.model import ProcessStatus


class Log(logging.Formatter):
    """Formats log lines and redacts the secrets of the environment and of requests."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = Secrets(environ)
        self.learn = self._secrets.learn

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets(super().format(record))


def log_to_stderr(environ: Mapping[str, str]) -> Log:
    """Write the log of this process to standard error, without the secrets of its environment."""
    log = Log(environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("guildhall").setLevel(logging.INFO)
    return log


_LOCK_WITHIN = 30.0  # seconds for an earlier hall that is on its way out
_FAREWELL = 3.0  # seconds that clients get to read the end of what they follow
_OFTEN = 60.0  # seconds in which one that never leaves by itself looks that often, for what there is to log
_LOOKS = 4  # how often it looks whether it is idle, in the time that it would stay
_log = logging.getLogger("guildhall.hall")


class Process:
    """One hall, served."""

    def __init__(self, hall: Hall, log: Log, *, idle: float | None, port: int | None = None) -> None:
        """`idle`: seconds to stay without runs and clients, or None to stay until `leave` is called."""
        self._hall = hall
        self._log = log
        self._listener = Listener(port=port)
        self._leave = asyncio.Event()
        self._recovered = asyncio.Event()
        self._recovery = Recovery(hall)
        self._idle = idle
        self._address = Address(
            pid=os.getpid(),
            boot=hall.boot,
            version=__version__,
            url=f"http://127.0.0.1:{self._listener.port}",
            since=stamp(hall.clock.now()),
            token=secrets.token_urlsafe(32),
        )
        log.learn({"person_token": self._address.token})
        self.face = self._face()

    @property
    def url(self) -> str:
        return self._address.url

    async def recovered(self) -> None:
        """Return when the runs of an earlier hall are resumed."""
        await self._recovered.wait()

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until `leave` is called. Call `ready` when requests are accepted."""
        await self._listener.listen(self.face)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave)
        self._address.write(self._hall.home.address)
        _log.info("process %d serves at %s, version %s", os.getpid(), self._address.url, __version__)
        self._hall.runtimes.warm()
        ready()
        work = [asyncio.create_task(self._recover()), asyncio.create_task(self._watch())]
        try:
            await self._leave.wait()
        finally:
            for task in work:
                task.cancel()
            for came in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(came, Exception):
                    _log.error("something broke", exc_info=came)
            await self._depart()

    def leave(self) -> None:
        """Refuse new work, pause all runs, and let `serve` return."""
        self._leave.set()

    def _face(self) -> Api:
        client = EmbeddedHall(self._hall, stays=True, status=self._status)
        api = Api(
            House(
                boot=self._hall.boot,
                token=self._address.token,
                is_run=lambda token: self._hall.runtimes.tokens.find(token) is not None,
                hall=client,
                leaving=self._leave.is_set,
                recovered=self._recovered,
                secrets=self._log.learn,
            )
        )
        for prefix, app in self._hall.runtimes.reception.apps.items():
            api.mount(prefix, app)
        token, leaving = self._address.token, self._leave.is_set
        api.mount(PREFIX, workers_endpoint(self._hall, client, token, leaving=leaving, recovered=self._recovered))
        return api

    async def _recover(self) -> None:
        try:
            await self._recovery.go_on()
        finally:
            self._recovered.set()
        await asyncio.to_thread(log_invalid, self._hall.home)
        for name in self._hall.members.restart_busy(lambda root: self._hall.environment.frame_at(root, root)):
            _log.info("the member %s was at work and is started again", name)

    async def _watch(self) -> None:
        """Leave when the hall was idle for a while."""
        idle = 0
        while idle < _LOOKS:
            await asyncio.sleep((self._idle or _OFTEN) / _LOOKS)
            stays = self._idle is None or self._listener.clients > 0 or self._recovery.under_way or self._hall.is_busy()
            idle = 0 if stays else idle + 1
            compactor = peek(self._hall, Hall.memory_compactor)
            for event in compactor.take_unreported() if compactor is not None else ():
                _log.info("%s: %s", event.run, event.data["text"])
        _log.info("nothing lives here any more")
        self.leave()

    async def _depart(self) -> None:
        """Pause all runs, let clients read the end of their streams, and close the hall."""
        self._listener.refuse()
        await self._hall.drain()
        with suppress(FileNotFoundError):
            self._hall.home.address.unlink()
        await self._listener.close(_FAREWELL)
        await self._hall.drain()  # what was just beginning
        await self._hall.close()
        _log.info("process %d has left", os.getpid())

    def _status(self) -> ProcessStatus:
        return {
            "pid": self._address.pid,
            "url": self._address.url,
            "since": self._address.since,
            "state": "leaving" if self._leave.is_set() else "recovering" if self._recovery.under_way else "serving",
            "clients": self._listener.clients - 1,
            "idle": self._idle,
        }


def tell(ready: int, told: Mapping[str, Any]) -> None:
    """Report the outcome of the start to the parent process, which may have exited."""
    with suppress(OSError):
        os.write(ready, json.dumps(told).encode())
    with suppress(OSError):
        os.close(ready)


def main(home: Home, ready: int, environ: Mapping[str, str]) -> int:
    """Serve a home. Return the exit code."""
    log = log_to_stderr(environ)
    try:
        idle = load_settings(home, home.path).hall.idle  # of the user's own; a project says nothing about it
        patience = _LOCK_WITHIN if process_of(home) else LOCK_PATIENCE
        hall = Hall(home, environ=environ, process=True, children=True, patience=patience)
    except (GuildError, OSError) as error:
        known = error if isinstance(error, GuildError) else HallUnavailable(f"the home cannot be used: {error}")
        _log.error("%s", known)
        tell(ready, {"error": known.as_dict()})
        return 7

    async def serve() -> None:
        await Process(hall, log, idle=idle).serve(lambda: tell(ready, {"ready": True}))

    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(Home.at(Path(sys.argv[1])), int(sys.argv[2]), dict(os.environ)))
