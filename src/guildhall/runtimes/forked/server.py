"""Fork server: imports and warms up the pydantic runtime once, and forks a confined process for each run.

The server is started by exec and inherits only its end of a control socket. A request contains the socket of the new
process. The reply contains its pidfd. The exit status follows when the process ends.
When the hall is gone, the server ends all its processes and itself.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from guildhall.sandbox import jail, launcher, seccomp
from guildhall.sandbox.mounts import program_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    Rehearsal = Callable[[], Coroutine[Any, Any, None]]
    Live = Callable[[socket.socket], NoReturn]

CONNECTION = 3  # the descriptor of a child's only socket
DONE, BROKE, OUT_OF_MEMORY, LEFT_ALONE = 0, 70, 71, 72  # how a child ends by itself, as an exit code
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FILES = 64  # descriptors that a child may have
_OUT_OF_MEMORY_FIRST = "500"  # of those on the machine, when the kernel has to choose
_WARM_RUNS = 3
_ORDER_BYTES = 4096


def main(control_fd: int) -> None:
    """Comes up, warms itself, serves until the hall is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    from guildhall.runtimes.forked import child

    serve(socket.socket(fileno=control_fd), child.main, [child.rehearse] * _WARM_RUNS)


def serve(control: socket.socket, live: Live, rehearsals: Sequence[Rehearsal] = ()) -> None:
    """Forks on request; `live` is what a child does. What is rehearsed, whenever there is time, children can do."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a child leaves behind becomes ours, to be ended
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    _freeze()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the hall is gone
        _Zygote(control, live, rehearsals).work()


def _freeze() -> None:
    """What is there now is not looked at again when a child collects its garbage, so it stays shared with all."""
    gc.collect()
    gc.freeze()


class _Zygote:
    def __init__(self, control: socket.socket, live: Live, rehearsals: Sequence[Rehearsal]) -> None:
        self._control = control
        self._live = live
        self._confine = _confinement()
        self._rehearsals = list(rehearsals)
        self._children: dict[int, tuple[int, int]] = {}  # by pidfd: the number of the order, the process
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def work(self) -> None:
        try:
            while True:
                if self._rehearsals and not self._poll.poll(0):
                    asyncio.run(self._rehearsals.pop()())
                    _freeze()
                    continue
                for fd, _ in self._poll.poll():
                    if fd != self._control.fileno():  # a child has ended
                        number, status = self._end(fd)
                        self._tell({"id": number, "status": status})
                    elif not self._order():
                        return
        finally:
            for pidfd in list(self._children):
                self._end(pidfd)

    def _order(self) -> bool:
        """One order: a child. False: the hall is gone."""
        data, fds, _, _ = socket.recv_fds(self._control, _ORDER_BYTES, 1)
        if not data:
            return False
        order = json.loads(data)
        try:
            pid = os.fork()
            if pid == 0:
                self._be_born(order, fds[0])
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            self._tell({"id": order["id"], "failed": str(error)})
            return True
        finally:
            for fd in fds:
                os.close(fd)
        self._children[pidfd] = (order["id"], pid)
        self._poll.register(pidfd, select.POLLIN)
        self._tell({"id": order["id"], "pid": pid}, pidfd)
        return True

    def _end(self, pidfd: int) -> tuple[int, int]:
        """End a child and everything that it has started. Return the number of its order and its exit status."""
        number, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # not reaped yet: the number is still its own
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        self._end_strays()
        return number, status

    def _end_strays(self) -> None:
        """Ends those that a child has left behind, whatever session they are in."""
        known = {pid for _, pid in self._children.values()}
        while strays := [pid for pid in _own_children() if pid not in known]:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _tell(self, message: dict[str, Any], *fds: int) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], fds)

    def _be_born(self, order: dict[str, Any], connection: int) -> NoReturn:
        """In the child, from the first moment on."""
        try:
            parent = os.getppid()
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(LEFT_ALONE)
            _keep_only(connection)
            _limit(order["memory_bytes"])
            self._confine()
            self._live(socket.socket(fileno=CONNECTION))
        except OSError as error:
            from guildhall.runtimes.forked.protocol import Failed

            told = Failed(message=f"the process of the run could not be made ready: {error}")
            os.write(CONNECTION, told.line())
        finally:
            os._exit(BROKE)


def _confinement() -> Callable[[], None]:
    """What leaves a child only the program's own files to read, and nobody to reach, where the kernel can do that."""
    code = seccomp.compile_filter(seccomp.Filter(families=frozenset(), may_change_modes=False))
    if code is None or not jail.has_landlock():
        return lambda: None
    rules = [(str(path), "look") for path in dict.fromkeys(path.resolve() for path in program_paths())]

    def confine() -> None:
        launcher.drop_capabilities()
        launcher.restrict(rules)
        launcher.install_filter(code)

    return confine


def _own_children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _keep_only(connection: int) -> None:
    """No descriptor is left but the three that everyone has, which lead nowhere, and the connection."""
    if connection != CONNECTION:
        os.dup2(connection, CONNECTION, inheritable=False)
    os.closerange(CONNECTION + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(CONNECTION):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _limit(memory_bytes: int) -> None:
    """So much memory beside what it was born with, no files to write, and the first to go when all memory is used."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_FIRST)
    limits = {
        resource.RLIMIT_AS: pages * resource.getpagesize() + memory_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: _FILES,
    }
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
