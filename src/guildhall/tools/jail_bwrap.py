"""Confinement by bubblewrap: the program gets a file system made for it, and namespaces of its own."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.tools.jail_plan import Confinement, Plan

_PROGRAM = "bwrap"
_SIZED_SINCE = (0, 7)
_SECONDS = 10
_NAMESPACES = ("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL")


@functools.cache
def _sized(program: str) -> bool:
    """Whether this bubblewrap can limit the size of a tmpfs."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _SIZED_SINCE


def arguments(confinement: Confinement, plan: Plan, path: str, seccomp: int | None) -> list[str]:
    """The command line that goes before the program's own. `seccomp` is a file descriptor with the filter.

    The environment is not on it, because everybody on the machine can read a command line: bubblewrap is started
    with exactly the variables that the program gets.
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
    if seccomp is not None:
        argv += ["--seccomp", str(seccomp)]
    # What was made to hold the places is not a place: a write that would be lost is an error instead.
    return [*argv, *covered, "--remount-ro", "/", "--chdir", str(plan.cwd), "--"]
