"""Process of a hall: runs the hall of a home until it is stopped or idle.

The command line is `python -m guildhall.hall.server.process HOME FD`. The states of the process:

    recovering -> serving -> stopping (`leaving` in responses) -> exited

The process writes its address and token to `hall.json`. It reports success or an error on the file descriptor FD, and
closes FD. Standard error is the log. Secrets are redacted in the log.
Does not define routes: `api` does. Does not start the process: `hall.client.discovery` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.core.clock import stamp
from guildhall.core.config import load_settings
from guildhall.core.errors import GuildError, HallGone
from guildhall.core.paths import Home
from guildhall.core.redaction import Secrets
from guildhall.hall.client.discovery import Address, find_hall_pid
from guildhall.hall.composition.database import LOCK_TIMEOUT_S, home_error
from guildhall.hall.composition.environment import peek
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.recovery import Recovery
from guildhall.hall.server.api import Api, ApiContext
from guildhall.hall.server.job_rpc_methods import WORKERS_PREFIX, workers_endpoint
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.hall.services.workers import log_invalid_packages
from guildhall.rpc.listener import Listener

if TYPE_CHECKING:
    from guildhall.core.errors import StorageFailed
    from guildhall.hall.client.model import ProcessStatus


class RedactingFormatter(logging.Formatter):
    """Formats log lines and redacts the secrets of the environment and of requests."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = Secrets(environ)
        self.add_secrets = self._secrets.add

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets(super().format(record))


def configure_logging(environ: Mapping[str, str]) -> RedactingFormatter:
    """Configure logging to standard error. Return the formatter, which redacts the secrets of the environment."""
    formatter = RedactingFormatter(environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("guildhall").setLevel(logging.INFO)
    return formatter


_STOPPING_HALL_TIMEOUT_S = 30.0  # for the lock of a hall that is stopping
_CLOSE_TIMEOUT_S = 3.0  # for clients that read the end of their streams
_MAX_POLL_INTERVAL_S = 1.0
_log = logging.getLogger("guildhall.hall")


class HallProcess:
    def __init__(
        self, hall: Hall, formatter: RedactingFormatter, *, idle_timeout_s: float | None, port: int | None = None
    ) -> None:
        """`idle_timeout_s`: exit after this time without runs, clients and requests, or None to serve until `stop`."""
        self._hall = hall
        self._formatter = formatter
        self._listener = Listener(port=port)
        self._stopping = asyncio.Event()
        self._recovered = asyncio.Event()
        self._recovery = Recovery(hall)
        self._idle_timeout_s = idle_timeout_s
        self._address = Address(
            pid=os.getpid(),
            boot=hall.boot,
            version=__version__,
            url=f"http://127.0.0.1:{self._listener.port}",
            since=stamp(hall.clock.now()),
            token=secrets.token_urlsafe(32),
        )
        formatter.add_secrets({"person_token": self._address.token})
        self.api = self._build_api()

    @property
    def url(self) -> str:
        return self._address.url

    async def wait_recovered(self) -> None:
        """Return when the runs of an earlier hall are resumed."""
        await self._recovered.wait()

    async def serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop` is called. Call `on_ready` when requests are accepted."""
        await self._listener.listen(self.api)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        self._address.write(self._hall.home.address)
        _log.info("hall %s (pid %d) is listening on %s", __version__, os.getpid(), self._address.url)
        self._hall.runtimes.start_fork_server()
        self._hall.enable_disk_retries(partial(loop.call_soon_threadsafe, self._report_disk_error))
        on_ready()
        tasks = [asyncio.create_task(self._recover()), asyncio.create_task(self._watch())]
        try:
            await self._stopping.wait()
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception):
                    _log.error("a background task of the hall failed", exc_info=outcome)
            await self._close()

    def stop(self) -> None:
        """Request a shutdown: `serve` then rejects new work, pauses all runs and returns."""
        self._stopping.set()

    def _build_api(self) -> Api:
        client = EmbeddedHall(self._hall, self._status)
        api = Api(
            ApiContext(
                boot=self._hall.boot,
                token=self._address.token,
                is_run_token=lambda token: self._hall.runtimes.tokens.find(token) is not None,
                hall=client,
                is_stopping=self._stopping.is_set,
                disk_error=lambda: self._hall.disk_error,
                recovered=self._recovered,
                add_secrets=self._formatter.add_secrets,
            )
        )
        for prefix, app in self._hall.runtimes.door_app.apps.items():
            api.mount(prefix, app)
        token, is_stopping = self._address.token, self._stopping.is_set
        endpoint = workers_endpoint(self._hall, client, token, is_stopping=is_stopping, recovered=self._recovered)
        api.mount(WORKERS_PREFIX, endpoint)
        return api

    async def _recover(self) -> None:
        try:
            await self._recovery.resume_runs()
        finally:
            self._recovered.set()
        await asyncio.to_thread(log_invalid_packages, self._hall.home)
        for name in self._hall.members.restart_busy(lambda root: self._hall.environment.frame_at(root, root)):
            _log.info("restarted the member %s, which had running jobs", name)

    async def _watch(self) -> None:
        """Stop when the hall is idle or its database is removed. Log finished compactions of memory."""
        limit_s, clock = math.inf if self._idle_timeout_s is None else self._idle_timeout_s, self._hall.clock
        last_busy_at = clock.monotonic()
        while True:
            await asyncio.sleep(min(limit_s / 4, _MAX_POLL_INTERVAL_S))
            compactor = peek(self._hall, Hall.memory_compactor)
            for event in compactor.take_unreported() if compactor is not None else ():
                _log.info("%s: %s", event.run, event.data["text"])
            if not self._hall.database.is_in_place():
                self._report_lost_database()
                break
            if self._recovery.is_active or self._hall.is_busy():
                last_busy_at = clock.monotonic()
            elif min(clock.monotonic() - last_busy_at, self._listener.idle_s) >= limit_s:
                _log.info("idle: stopping")
                break
        self.stop()

    def _report_disk_error(self, error: StorageFailed) -> None:
        _log.error("%s: runs wait until the disk accepts writes", error.message)
        message = f"{error.message}. {error.hint}" if error.hint else error.message
        self._hall.workflow_databases.publish_error({**error.as_dict(), "message": message, "transient": True})

    def _report_lost_database(self) -> None:
        message = f"the hall stops: {self._hall.database.path} was moved, removed or replaced"
        error = HallGone(message, hint="Move it back or restore a backup. Then list the interrupted runs: guild ls")
        _log.error("%s", error.message)
        self._hall.workflow_databases.publish_error({**error.as_dict()})

    async def _close(self) -> None:
        """Pause all runs, let clients read the end of their streams, and close the hall."""
        self._listener.stop_accepting()
        await self._hall.drain()
        with suppress(FileNotFoundError):
            self._hall.home.address.unlink()
        await self._listener.close(_CLOSE_TIMEOUT_S)
        await self._hall.drain()  # runs that were started meanwhile
        await self._hall.close()
        _log.info("hall (pid %d) stopped", os.getpid())

    def _status(self) -> ProcessStatus:
        return {
            "pid": self._address.pid,
            "url": self._address.url,
            "since": self._address.since,
            "state": "leaving" if self._stopping.is_set() else "recovering" if self._recovery.is_active else "serving",
            "clients": self._listener.client_count - 1,
            "idle": self._idle_timeout_s,
        }


def _report_start(ready_fd: int, outcome: Mapping[str, Any]) -> None:
    """Report the outcome of the start to the parent process, which may have exited."""
    with suppress(OSError):
        os.write(ready_fd, json.dumps(outcome).encode())
    with suppress(OSError):
        os.close(ready_fd)


def _report_failure(ready_fd: int, error: GuildError | OSError, home: Home) -> int:
    """Log a fatal error and report it to the parent process. Return the exit code."""
    if isinstance(error, OSError):
        error = home_error(error, home)
    _log.error("%s", error)
    _report_start(ready_fd, {"error": error.as_dict()})
    return error.exit_code


def main(home: Home, ready_fd: int, environ: Mapping[str, str]) -> int:
    """Run the hall of a home until it stops. Return the exit code."""
    formatter = configure_logging(environ)
    try:
        idle_timeout_s = load_settings(home, home.path).hall.idle  # a project must not change it
        timeout_s = _STOPPING_HALL_TIMEOUT_S if find_hall_pid(home) else LOCK_TIMEOUT_S
        hall = Hall(home, environ=environ, is_persistent=True, forks_runs=True, lock_timeout_s=timeout_s)
    except (GuildError, OSError) as error:
        return _report_failure(ready_fd, error, home)

    async def serve() -> None:
        process = HallProcess(hall, formatter, idle_timeout_s=idle_timeout_s)
        await process.serve(lambda: _report_start(ready_fd, {"ready": True}))

    try:
        asyncio.run(serve())
    except (GuildError, OSError) as error:  # such as a full disk
        return _report_failure(ready_fd, error, home)
    return 0


if __name__ == "__main__":
    sys.exit(main(Home.at(Path(sys.argv[1])), int(sys.argv[2]), dict(os.environ)))
