"""Confinement where bubblewrap does not work: Landlock and a system-call filter, with namespaces where permitted.

This is the hall's half: it turns a plan into the rules that the kernel takes. jail_launch.py, a program of its own,
applies them to itself and becomes the confined program. Landlock can only give, never take away again, so without
namespaces a place inside another that is less open is left out by giving everything beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.tools import jail_seccomp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from guildhall.tools.jail_plan import Access, Confinement, Place, Plan

LAUNCHER = Path(__file__).with_name("jail_launch.py")
_CREATE_RULESET, _ASK_VERSION = 444, 1
_OLDEST = 3  # before it, files outside could be emptied
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_ENTRIES = 5_000
_RANK = {"hidden": 0, "read": 1, "write": 2}

Rule = tuple[str, str]  # a real path, and read or write


def supported() -> bool:
    """Whether this kernel has a Landlock that is good enough, and its system calls are known."""
    if not sys.platform.startswith("linux") or jail_seccomp.compiled(jail_seccomp.Filter(families=frozenset())) is None:
        return False
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return version >= _OLDEST


def arguments(spec: int) -> list[str]:
    """The command line of the launcher. `spec` is a file descriptor with what `specification` gives."""
    return [os.path.realpath(sys.executable), "-I", "-S", str(LAUNCHER), str(spec)]


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
    """All that the launcher needs to know. `loopback`: in a network of its own it may reach itself.

    `port`: of the network it may reach this port, and no more, as far as the kernel can hold that.
    """
    places = [place for place in plan.places if place.access != "hidden" and not place.is_pin]
    if namespaces:
        rules: list[Rule] = [(str(place.source), place.access) for place in places]
    else:
        rules = [rule for place in places for rule in _given(place, plan)]
    rules += [(f"/dev/{name}", "write") for name in _DEVICES]
    rules += [("/proc", "read"), (str(scratch), "write")]
    # Without a network of its own nothing can be open to it, not even loopback: that is the whole machine's.
    families = jail_seccomp.families(network=confinement.network, loopback=loopback)
    filter_ = jail_seccomp.compiled(jail_seccomp.Filter(families=families, modes=namespaces, datagrams=port is None))
    cwd = plan.cwd if any(_holds(place, plan.cwd) for place in places) else scratch
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


def _holds(place: Place, path: Path) -> bool:
    return place.path == path or place.path in path.parents


def _mounts(plan: Plan) -> list[tuple[str, Access]]:
    """The places that need a mount: everything starts read-only, so those that are not and what lies below them."""
    others = [place for place in plan.places if place.access != "read"]
    return [
        (str(place.source), place.access)
        for place in plan.places
        if place.access != "read" or any(_is_inside(place, other) for other in others)
    ]


def _is_inside(place: Place, other: Place) -> bool:
    return other.source in place.source.parents


def _given(place: Place, plan: Plan) -> Iterable[Rule]:
    """The rules that give a place, and nothing that a place below it takes back."""
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
