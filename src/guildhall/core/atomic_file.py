"""Atomic file replacement: readers see the old content or the new content, never a part of it.

The content is written to a draft in the target's folder, which is then renamed. Does not lock. The last of two
concurrent writers wins.

Invariant: a link in the place of the draft is never followed, and a failed write leaves the old file and no draft.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Replace the file at `path`, or create it. A link in its place is replaced, not followed. Raise OSError.

    `mode` is limited by the umask unless `exact_mode`. `durable` waits until the content and the name are on disk.
    `single_writer` gives the draft a fixed name, so that drafts of killed processes do not pile up. The caller has to
    exclude other writers then.
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
        _sync_folder(path.parent)


def replace_user_file(path: Path, text: str) -> None:
    """Replace the text of a file that belongs to the user, or create it. Raise Conflict if it cannot be written.

    Durable. The file keeps its mode. If it is a link, its target is replaced.
    """
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        replace_file(path, text.encode(), mode=mode, exact_mode=True, durable=True)
    except OSError as error:
        raise Conflict(f"cannot write the file: {error.strerror}", where=str(path)) from None


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
