"""Stand-ins: names that a confined program must not make are held for as long as it runs.

Namespaces can only cover what is there. So what is kept and not there is made, empty, before the program starts, and
taken away after it. A stand-in carries the sticky bit, which tells it from everything that people make, and each
program that relies on it holds a lock on it: the last one removes it. What a crash leaves behind, the next removes.
Not a guard: read-only it is made by those who mount it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.core.paths import stands_in

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

_TRIES = 100
# Where we may not make it, a program of ours may not either.
_OUT_OF_REACH = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def held(paths: Iterable[Path]) -> Generator[frozenset[Path]]:
    """Sees to it that something is at each of the paths, for the length of the block. Gives those where nothing can."""
    opened: dict[Path, int] = {}
    lost: set[Path] = set()
    try:
        for path in paths:
            try:
                opened[path] = _hold(path)
            except OSError as error:
                if error.errno not in _OUT_OF_REACH:
                    why = f"{path} cannot be kept from the program: {error.strerror}"
                    raise ToolUnavailable(why, hint="Make it yourself, empty, and try again.") from None
                if not path.exists():
                    lost.add(path)
        yield frozenset(lost)
    finally:
        for path, fd in opened.items():
            _release(path, fd)


def _hold(path: Path) -> int:
    """The thing at the path, made if need be, open and locked against being taken away."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            _make(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_at(path, fd):
            return fd
        os.close(fd)  # it was taken away before we had the lock
    raise OSError(errno.EBUSY, "it comes and goes")


def _make(path: Path) -> None:
    """Made with the bit in one step: nobody ever sees it without."""
    if path.suffix:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_ISVTX | 0o644))
    else:
        path.mkdir(stat.S_ISVTX | 0o755)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _release(path: Path, fd: int) -> None:
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while another program relies on it
            mode = os.fstat(fd).st_mode
            if not _is_at(path, fd) or not mode & stat.S_ISVTX:
                return
            if not stands_in(path):  # somebody has put something there: it is theirs now
                os.fchmod(fd, stat.S_IMODE(mode) & ~stat.S_ISVTX)
            elif stat.S_ISDIR(mode):
                path.rmdir()
            else:
                path.unlink()
    finally:
        os.close(fd)
