"""Atomic file replacement: readers see the old content or the new content, never a part of it.

The content is written to a draft in the folder of the target, and the draft is renamed. This module does not lock: the
last of two concurrent writers wins.

Invariant: a failed write leaves the old file and no draft. A link at the path of the draft is not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from guildhall.core.errors import Conflict

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(
    path: Path,
    data: bytes | Iterable[bytes],
    *,
    mode: int = 0o600,
    exact_mode: bool = False,
    durable: bool = False,
    single_writer: bool = False,
) -> None:
    """Replace or create the file at `path`. A link at `path` is replaced, not followed. Raise OSError if that fails.

    `mode` is limited by the umask unless `exact_mode`. `durable` waits until the content and the name are on disk.
    `single_writer` gives the draft a fixed name, so that drafts of killed processes do not accumulate. The caller must
    exclude other writers.
    """
    suffix = "new" if single_writer else f"{os.urandom(4).hex()}.new"
    draft = path.with_name(f".{path.name}.{suffix}")
    if single_writer:
        draft.unlink(missing_ok=True)
    descriptor = os.open(draft, _FLAGS, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if exact_mode:
                os.fchmod(descriptor, mode)
            file.writelines((data,) if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the name of the file
        finally:
            os.close(folder)


def replace_user_file(path: Path, text: str) -> None:
    """Replace or create a text file of the user. Raise Conflict if the file cannot be written.

    The write is durable. The file keeps its mode. If `path` is a link, its target is replaced.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        replace_file(path, text.encode(), mode=mode, exact_mode=True, durable=True)
    except OSError as error:
        raise Conflict(f"cannot write the file: {error.strerror}", where=str(path)) from None
