"""Jail: starts programs that see only the run's folders and the system's programs, and nothing of the hall.

`spawn` uses the strongest kind of confinement that works on the machine. `bubblewrap` uses the program of that name.
`namespaces` (with Landlock) uses the kernel directly through `sandbox.launcher`. `landlock` serves machines that forbid
namespaces. docs/tools-exec.md lists the gaps of each kind.

Does not choose the visible paths (see `sandbox.mounts`) or the permitted system calls (see `sandbox.seccomp`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox import mounts, seccomp
from guildhall.sandbox.loopback import Doorway
from guildhall.sandbox.mounts import Access, Confinement, Place, Plan, planned
from guildhall.sandbox.view import View

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence


_PROGRAM = "bwrap"
_SIZED_SINCE = (0, 7)
_SECONDS = 10
_NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


@functools.cache
def _sized(program: str) -> bool:
    """Return True if this bubblewrap can limit the size of a tmpfs."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _SIZED_SINCE


def arguments(confinement: Confinement, plan: Plan, path: str, filter_fd: int | None) -> list[str]:
    """Return the command line of bubblewrap, without the program's own. `filter_fd`: a descriptor with the filter.

    It does not contain the environment, because every user of the machine can read a command line.
    """
    program = shutil.which(_PROGRAM, path=path) or _PROGRAM
    scratch = ["--size", str(confinement.scratch_bytes)] if _sized(program) else []
    argv = [program, *_NAMESPACES]
    if confinement.network:
        argv.append("--share-net")
    for link, target in plan.links:
        argv += ["--symlink", target, str(link)]
    argv += ["--proc", "/proc", "--dev", "/dev", *scratch, "--tmpfs", "/tmp"]
    covered: list[str] = []
    for place in plan.places:
        if place.access == "write":
            argv += ["--bind", str(place.source), str(place.path)]
        elif place.access == "read":
            argv += ["--ro-bind", str(place.source), str(place.path)]
        elif place.source.is_dir():
            argv += ["--tmpfs", str(place.path)]
            covered += ["--remount-ro", str(place.path)]  # once what is shown below it has its place there
        else:
            argv += ["--ro-bind", "/dev/null", str(place.path)]
    if filter_fd is not None:
        argv += ["--seccomp", str(filter_fd)]
    # What was made to hold the places is not a place: a write that would be lost is an error instead.
    return [*argv, *covered, "--remount-ro", "/", "--chdir", str(plan.cwd), "--"]


LAUNCHER = Path(__file__).with_name("launcher.py")
_CREATE_RULESET, _ASK_VERSION = 444, 1
_OLDEST = 3  # before it, files outside could be emptied
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ENTRIES = 5_000
_RANK = {"hidden": 0, "read": 1, "write": 2}

Rule = tuple[str, str]  # a real path, and read or write


def supported() -> bool:
    """Return True if this kernel has a recent Landlock and its system calls are known."""
    if not sys.platform.startswith("linux") or seccomp.compiled(seccomp.Filter(families=frozenset())) is None:
        return False
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return version >= _OLDEST


def specification(
    confinement: Confinement,
    plan: Plan,
    argv: Sequence[str],
    *,
    namespaces: bool,
    scratch: Path,
    loopback: bool = False,
    port: int | None = None,
) -> bytes:
    """Return the specification for the launcher. `loopback`: the program may reach itself in a network of its own.

    `port`: the only port that it may reach, as far as the kernel can enforce that.
    """
    places = [place for place in plan.places if place.access != "hidden" and not place.is_pin]
    if namespaces:
        rules: list[Rule] = [(str(place.source), place.access) for place in places]
    else:
        rules = [rule for place in places for rule in _given(place, plan)]
    rules += [(f"/dev/{name}", "write") for name in _DEVICES]
    rules += [("/proc", "read"), (str(scratch), "write")]
    # Without a network of its own nothing can be open to it, not even loopback: that is the whole machine's.
    families = seccomp.families(network=confinement.network, loopback=loopback)
    filter_ = seccomp.compiled(seccomp.Filter(families=families, modes=namespaces, datagrams=port is None))
    cwd = plan.cwd if any(place.holds(plan.cwd) for place in places) else scratch
    spec: dict[str, Any] = {
        "parent": os.getpid(),
        "namespaces": namespaces,
        "network": confinement.network,
        "loopback": loopback,
        "port": port,
        "rules": [rule for rule in dict.fromkeys(rules) if Path(rule[0]).exists()],
        "mounts": _mounts(plan) if namespaces else [],
        "scratch": [str(scratch), confinement.scratch_bytes],
        "seccomp": (filter_ or b"").hex(),
        "cwd": str(cwd),
        "argv": list(argv),
    }
    return json.dumps(spec).encode()


def _mounts(plan: Plan) -> list[tuple[str, Access]]:
    """Return the places that need a mount. All others are read-only from the start."""
    others = [place for place in plan.places if place.access != "read"]
    return [
        (str(place.source), place.access)
        for place in plan.places
        if place.access != "read" or any(_is_inside(place, other) for other in others)
    ]


def _is_inside(place: Place, other: Place) -> bool:
    return other.source in place.source.parents


def _given(place: Place, plan: Plan) -> Iterable[Rule]:
    """Return the rules for a place, without the places below it that have less access."""
    inner = [other for other in plan.places if _is_inside(other, place) and _RANK[other.access] < _RANK[place.access]]
    return _around(place.source, place.access, [other for other in inner if not other.is_pin])


def _around(path: Path, access: Access, inner: list[Place]) -> Iterable[Rule]:
    if path.is_symlink() or any(other.source == path for other in inner):
        return
    below = [other for other in inner if path in other.source.parents]
    if not below:
        yield str(path), access
        return
    if all(other.access == "read" for other in below):
        yield str(path), "read"
    for number, entry in enumerate(sorted(path.iterdir())):
        if number == _ENTRIES:
            break
        yield from _around(entry, access, below)


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
    """Return the strongest kind of confinement that works with the programs on `path`, or None."""
    return _available(path or os.environ.get("PATH", _PATH))


@functools.cache
def _available(path: str) -> Kind | None:
    if shutil.which("bwrap", path=path) and _works("bubblewrap", path):
        return "bubblewrap"
    if not supported():
        return None
    return next((kind for kind in ("namespaces", "landlock") if _works(kind, path)), None)


def _works(kind: Kind, path: str) -> bool:
    """Try a kind of confinement: containers and distributions forbid namespaces in many ways."""
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
        plan = plan.without(opened.enter_context(mounts.held(plan.missing)))
    program = _limited(argv, confinement)
    if kind == "bubblewrap":
        families = seccomp.families(network=confinement.network, loopback=True)
        code = seccomp.compiled(seccomp.Filter(families=families))
        filter_ = None if code is None else _held(code, opened)
        prefix = arguments(confinement, plan, path, filter_)
        env = _environment(confinement, "/tmp")
        return _Prepared(argv=[*prefix, *program], env=env, fds=() if filter_ is None else (filter_,))
    scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="guild-", ignore_cleanup_errors=True))
    spec = specification(
        confinement,
        plan,
        program,
        namespaces=kind == "namespaces",
        loopback=door is not None and door.inside,
        port=port,
        scratch=Path(os.path.realpath(scratch)),
    )
    held = _held(spec, opened)
    launcher = [os.path.realpath(sys.executable), "-I", "-S", str(LAUNCHER), str(held)]
    return _Prepared(argv=launcher, env=_environment(confinement, scratch), fds=(held,))


def _held(data: bytes, opened: contextlib.ExitStack) -> int:
    """Return a file descriptor with the data that a child can read."""
    held = os.memfd_create("guild", 0)
    opened.callback(os.close, held)
    os.write(held, data)
    os.lseek(held, 0, os.SEEK_SET)
    return held


def _limited(argv: Sequence[str], confinement: Confinement) -> list[str]:
    """Return a command line that sets limits first; `-d` counts allocated memory, not address space."""
    limits = _LIMITED.format(
        file_blocks=confinement.file_bytes // 512,
        data_kilobytes=confinement.memory_bytes // 1024,
        processes=_running_tasks() + confinement.processes,
    )
    return ["/bin/sh", "-c", limits, "sh", *argv]


def _running_tasks() -> int:
    """Return the number of threads of the machine. A limit per user must not be below it."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 32_768


def _environment(confinement: Confinement, scratch: str) -> dict[str, str]:
    """Return the program's variables. LD_* would act on its jail too, and GIT_* leads git to other repositories."""
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
        """Return the exit code. A code above 128 is 128 plus the number of the signal that ended the program."""
        code = await self.process.wait()
        await asyncio.to_thread(self._opened.close)
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        """End the program and all processes that it started, even if the caller is cancelled."""
        await asyncio.shield(self._killed())

    async def _killed(self) -> None:
        # The keeper of the other kinds has to be asked: it is what ends the rest.
        first = signal.SIGKILL if self.kind == "bubblewrap" else signal.SIGTERM
        for number in (first, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self.wait()
                return
            except TimeoutError:
                continue


async def _to_the_end(work: Coroutine[Any, Any, _Prepared]) -> _Prepared:
    """Finish the work even if the caller is cancelled: the caller closes what it opens."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def doorway(kind: Kind | None = None, *, path: str | None = None, network: bool = False) -> Doorway:
    """Return a door for a confined program, which the caller closes. `network`: it has the machine's network."""
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
    """Start a confined program. `kind`: the kind of confinement, by default the strongest.

    With a `door`, made for the same kind, the program reaches this process and nothing else.
    """
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


def describe_exit(code: int) -> str:
    """Return how a confined program ended, from the code that `Confined.wait` returned."""
    if code <= 128:
        return f"ended by itself (exit code {code})"
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"was ended by signal {code - 128}"
