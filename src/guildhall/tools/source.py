"""Reads code that is to be executed: once, whole, and only from a plain file of a sensible size."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable

if TYPE_CHECKING:
    from pathlib import Path

MAX_SOURCE = 2_000_000  # bytes


def read_source(path: Path) -> bytes:
    """The content of a file. A pipe or a device is not waited for, and what is too large is not read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolUnavailable("this is no plain file", where=str(path))
            data = file.read(MAX_SOURCE + 1)
    except OSError as error:
        raise ToolUnavailable(f"the file cannot be read: {error.strerror or error}", where=str(path)) from None
    if len(data) > MAX_SOURCE:
        raise ToolUnavailable(f"the file is too large to be code: over {MAX_SOURCE:,} bytes", where=str(path))
    return data


def pin_of(data: bytes) -> str:
    """What pins a content: its whole SHA-256."""
    return hashlib.sha256(data).hexdigest()
