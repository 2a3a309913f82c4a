"""Fork server: imports and warms up the pydantic runtime once, and forks a confined process for each run.

The server is started by exec and inherits only its end of a control socket. A request contains the socket of the new
process. The reply contains its pidfd. The exit status follows when the process ends.
When the hall has exited, the server kills all its processes and exits.
Does not know runs: `child` executes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.sandbox import jail, launcher, seccomp
from guildhall.sandbox.mounts import program_paths

if TYPE_CHECKING:
    WarmUp = Callable[[], Coroutine[Any, Any, None]]
    RunChild = Callable[[socket.socket], NoReturn]

CONNECTION_FD = 3
DONE, BROKE, OUT_OF_MEMORY, HALL_GONE = 0, 70, 71, 72  # exit codes of a child
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MAX_FILES = 64  # open descriptors of a child
_OOM_SCORE = "500"  # the kernel kills children before other processes
_WARM_RUNS = 3
_MAX_REQUEST_BYTES = 4096


def main(control_fd: int) -> None:
    """Import and warm up the runtime, then serve until the hall exits."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    from guildhall.runtimes.forked import child

    serve(socket.socket(fileno=control_fd), child.main, [child.warm_up] * _WARM_RUNS)


def serve(control: socket.socket, run_child: RunChild, warm_ups: Sequence[WarmUp] = ()) -> None:
    """Fork a process for each request. `run_child` is its main function; `warm_ups` run while there are no requests."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a child become children of the server
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    _freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the hall has exited
        _ForkServer(control, run_child, warm_ups).work()


def _freeze() -> None:
    """Keep the current objects out of garbage collections in children, so that their memory stays shared."""
    gc.collect()
    gc.freeze()


class _ForkServer:
    def __init__(self, control: socket.socket, run_child: RunChild, warm_ups: Sequence[WarmUp]) -> None:
        self._control = control
        self._run_child = run_child
        self._confine = _build_confinement()
        self._warm_ups = list(warm_ups)
        self._children: dict[int, tuple[int, int]] = {}  # by pidfd: the id of the request and the pid
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def work(self) -> None:
        try:
            while True:
                if self._warm_ups and not self._poll.poll(0):
                    asyncio.run(self._warm_ups.pop()())
                    _freeze()
                    continue
                for fd, _ in self._poll.poll():
                    if fd != self._control.fileno():  # a child has ended
                        number, status = self._reap(fd)
                        self._send({"id": number, "status": status})
                    elif not self._handle_request():
                        return
        finally:
            for pidfd in list(self._children):
                self._reap(pidfd)

    def _handle_request(self) -> bool:
        """Fork a process. Return False if the hall has exited."""
        data, fds, _, _ = socket.recv_fds(self._control, _MAX_REQUEST_BYTES, 1)
        if not data:
            return False
        request = json.loads(data)
        try:
            pid = os.fork()
            if pid == 0:
                self._start_child(request, fds[0])
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._send({"id": request["id"], "failed": str(error)})
            return True
        finally:
            for fd in fds:
                os.close(fd)
        self._children[pidfd] = (request["id"], pid)
        self._poll.register(pidfd, select.POLLIN)
        self._send({"id": request["id"], "pid": pid}, pidfd)
        return True

    def _reap(self, pidfd: int) -> tuple[int, int]:
        """Kill a child and everything that it has started. Return the id of its request and its exit status."""
        number, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # not reaped yet, so the pid is still valid
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        self._kill_orphans()
        return number, status

    def _kill_orphans(self) -> None:
        """Kill the orphans of a child, in any session."""
        known = {pid for _, pid in self._children.values()}
        while strays := [pid for pid in _child_pids() if pid not in known]:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _send(self, message: dict[str, Any], *fds: int) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _start_child(self, request: dict[str, Any], connection: int) -> NoReturn:
        """Prepare and run the child. Called in the child right after the fork."""
        try:
            parent = os.getppid()
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(HALL_GONE)
            _close_descriptors(connection)
            _set_limits(request["memory_bytes"])
            self._confine()
            self._run_child(socket.socket(fileno=CONNECTION_FD))
        except OSError as error:
            from guildhall.runtimes.forked.protocol import Failed

            failure = Failed(message=f"cannot prepare the process of the run: {error}")
            os.write(CONNECTION_FD, failure.encode())
        finally:
            os._exit(BROKE)


def _build_confinement() -> Callable[[], None]:
    """Return a function that limits a child to reading the program's files, if the kernel supports it."""
    code = seccomp.compile_filter(seccomp.Filter(families=frozenset(), may_change_modes=False))
    if code is None or not jail.has_landlock():
        return lambda: None
    rules = [(str(path), "look") for path in dict.fromkeys(path.resolve() for path in program_paths())]

    def confine() -> None:
        launcher.drop_capabilities()
        launcher.restrict(rules)
        launcher.install_filter(code)

    return confine


def _child_pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _close_descriptors(connection: int) -> None:
    """Close all descriptors except for the connection. Standard streams lead to /dev/null."""
    if connection != CONNECTION_FD:
        os.dup2(connection, CONNECTION_FD, inheritable=False)
    os.closerange(CONNECTION_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(CONNECTION_FD):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _set_limits(memory_bytes: int) -> None:
    """Limit memory and files, and let the kernel kill this process first if memory runs out."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _MAX_FILES,
    }
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
