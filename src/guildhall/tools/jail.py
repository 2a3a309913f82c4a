"""Starts programs confined: they see the run's folders and the system's programs, and nothing of the hall.

Three kinds, the strongest that works here is used: bubblewrap; namespaces (with Landlock), the same with the kernel's
own means; landlock, where namespaces are forbidden. docs/tools-exec.md says what each leaves open.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import ToolUnavailable
from guildhall.tools import jail_bwrap, jail_hold, jail_landlock, jail_seccomp
from guildhall.tools.doorway import Doorway
from guildhall.tools.jail_plan import Confinement, planned
from guildhall.tools.model import View

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

__all__ = ["Confined", "Confinement", "Doorway", "Kind", "available", "doorway", "spawn"]

Kind = Literal["bubblewrap", "namespaces", "landlock"]

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROBE_SECONDS = 10
_END_SECONDS = 5
_LIMITED = (
    "{{ ulimit -c 0; ulimit -f {file_blocks}; ulimit -d {data_kilobytes}; "
    'ulimit -u {processes} || ulimit -p {processes}; }} 2>/dev/null; exec "$@"'
)


def available(path: str | None = None) -> Kind | None:
    """The strongest kind of confinement that works on this machine, by the programs on `path`; None: none does."""
    return _available(path or os.environ.get("PATH", _PATH))


@functools.cache
def _available(path: str) -> Kind | None:
    if shutil.which("bwrap", path=path) and _works("bubblewrap", path):
        return "bubblewrap"
    if not jail_landlock.supported():
        return None
    return next((kind for kind in ("namespaces", "landlock") if _works(kind, path)), None)


def _works(kind: Kind, path: str) -> bool:
    """Tried, not guessed: containers and distributions forbid namespaces in many ways."""
    confinement = Confinement(view=View(cwd=Path("/")))
    with contextlib.ExitStack() as opened:
        prepared = _prepared(["/bin/sh", "-c", ":"], confinement, kind, path, opened)
        try:
            done = subprocess.run(
                prepared.argv,
                env=prepared.env,
                pass_fds=prepared.fds,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    argv: list[str]
    env: Mapping[str, str]
    fds: tuple[int, ...]


def _prepared(
    argv: Sequence[str],
    confinement: Confinement,
    kind: Kind,
    path: str,
    opened: contextlib.ExitStack,
    door: Doorway | None = None,
) -> _Prepared:
    plan = planned(confinement)
    port = None
    if door is not None:
        argv = door.before(argv)
        port = None if door.inside or confinement.network else door.port
        confinement = confinement if door.inside else replace(confinement, network=True)
    if kind != "landlock":  # there the folder around it takes no new names at all
        plan = plan.without(opened.enter_context(jail_hold.held(plan.missing)))
    program = _limited(argv, confinement)
    if kind == "bubblewrap":
        families = jail_seccomp.families(network=confinement.network, loopback=True)
        code = jail_seccomp.compiled(jail_seccomp.Filter(families=families))
        filter_ = None if code is None else _held(code, opened)
        prefix = jail_bwrap.arguments(confinement, plan, path, filter_)
        env = _environment(confinement, "/tmp")
        return _Prepared(argv=[*prefix, *program], env=env, fds=() if filter_ is None else (filter_,))
    scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="guild-", ignore_cleanup_errors=True))
    spec = jail_landlock.specification(
        confinement,
        plan,
        program,
        namespaces=kind == "namespaces",
        loopback=door is not None and door.inside,
        port=port,
        scratch=Path(os.path.realpath(scratch)),
    )
    held = _held(spec, opened)
    return _Prepared(argv=jail_landlock.arguments(held), env=_environment(confinement, scratch), fds=(held,))


def _held(data: bytes, opened: contextlib.ExitStack) -> int:
    """The data as a file descriptor that a child can read."""
    held = os.memfd_create("guild", 0)
    opened.callback(os.close, held)
    os.write(held, data)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def _limited(argv: Sequence[str], confinement: Confinement) -> list[str]:
    """The command line with limits set before it; `-d` counts memory that is really asked for, not address space."""
    limits = _LIMITED.format(
        file_blocks=confinement.file_bytes // 512,
        data_kilobytes=confinement.memory_bytes // 1024,
        processes=_running_tasks() + confinement.processes,
    )
    return ["/bin/sh", "-c", limits, "sh", *argv]


def _running_tasks() -> int:
    """How many threads the machine runs now. Where a user's are counted together, the limit must not be below that."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 32_768


def _environment(confinement: Confinement, scratch: str) -> dict[str, str]:
    """What the program gets. LD_* would also act on what confines it, and GIT_* sends git to other repositories."""
    kept = {name: value for name, value in confinement.env.items() if not name.startswith(("LD_", "GIT_"))}
    # Git stops at a configuration that it may not read, and the system's may be one.
    home = scratch if confinement.home is None else str(confinement.home)
    return {"PATH": _PATH, **kept, "HOME": home, "TMPDIR": home, "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(kw_only=True)
class Confined:
    """A confined program that was started."""

    process: asyncio.subprocess.Process
    kind: Kind
    _opened: contextlib.ExitStack = field(repr=False)

    async def wait(self) -> int:
        """The exit code; 128 and more: the number of the signal that ended it."""
        code = await self.process.wait()
        await asyncio.to_thread(self._opened.close)
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        """Ends the program and everything that it started. Goes on to the end even if the caller is cancelled."""
        await asyncio.shield(self._killed())

    async def _killed(self) -> None:
        # The keeper of the other kinds has to be asked: it is what ends the rest.
        first = signal.SIGKILL if self.kind == "bubblewrap" else signal.SIGTERM
        for number in (first, signal.SIGKILL):
            self._send(number)
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self.wait()
                return
            except TimeoutError:
                continue

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


async def _to_the_end(work: Coroutine[Any, Any, _Prepared]) -> _Prepared:
    """The result of work that must not be left half done: what it opens is closed by the caller."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def doorway(kind: Kind | None = None, *, path: str | None = None, network: bool = False) -> Doorway:
    """A way for a confined program to come to us. Whoever asks for it closes it.

    `network`: the program is to have the machine's network, so it has none of its own.
    """
    chosen = await _chosen(kind, path or os.environ.get("PATH", _PATH))
    return Doorway(inside=chosen != "landlock" and not network)


async def _chosen(kind: Kind | None, path: str) -> Kind:
    chosen: Kind | None = kind or await asyncio.to_thread(_available, path)
    if chosen is None:
        hint = "Install bubblewrap (the package `bubblewrap`), or use Linux 6.2 or newer with Landlock switched on."
        raise ToolUnavailable("programs cannot be confined on this machine, so none is started", hint=hint)
    return chosen


async def spawn(
    argv: Sequence[str],
    confinement: Confinement,
    *,
    kind: Kind | None = None,
    path: str | None = None,
    door: Doorway | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.STDOUT,
    pass_fds: Sequence[int] = (),
) -> Confined:
    """Starts a program confined, without input unless `stdin` says otherwise. `kind` asks for one kind of confinement
    instead of the strongest. With a `door`, made for the same kind, it can come to us, and to nobody else."""
    path = path or os.environ.get("PATH", _PATH)
    chosen = await _chosen(kind, path)
    with contextlib.ExitStack() as opened:
        prepared = await _to_the_end(asyncio.to_thread(_prepared, argv, confinement, chosen, path, opened, door))
        process = await asyncio.create_subprocess_exec(
            *prepared.argv,
            env=prepared.env,
            cwd="/",
            pass_fds=(*prepared.fds, *pass_fds, *(door.fds if door is not None else ())),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        return Confined(process=process, kind=chosen, _opened=opened.pop_all())
