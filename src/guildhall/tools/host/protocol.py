"""Protocol of a tool host: the specification of a host, and the frames between hall and host.

Does not import asyncio or pydantic, because the program of the host (`main`) imports this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox.view import Folder, View

LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 64 * 1024**2


@dataclass(frozen=True, kw_only=True)
class HostSpec:
    """The tools and the capabilities of one host."""

    view: View
    builtin: tuple[str, ...] = ()
    toolboxes: tuple[tuple[str, Path], ...] = ()  # the name and the Python file of each
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    capabilities: frozenset[str] = frozenset()
    memory_bytes: int = 2 * 1024**3
    schema_of: str | None = None  # `package.module:Model` if the host only creates a JSON Schema
    package: tuple[str, str] | None = None  # the name of a package, and its `module` or `module:toolbox`
    activate: str | None = None  # `package.module:function` if the host only calls it with `context`
    context: Mapping[str, Any] | None = None  # the argument of `activate`; None if the function is only imported
    pins: Mapping[str, str] = field(default_factory=dict[str, str])  # SHA-256 of trusted files by toolbox; not sent

    def as_dict(self) -> dict[str, Any]:
        return {
            "view": _view_as_dict(self.view),
            "builtin": list(self.builtin),
            "toolboxes": [[name, str(path)] for name, path in self.toolboxes],
            "env": dict(self.env),
            "capabilities": sorted(self.capabilities),
            "memory_bytes": self.memory_bytes,
            "schema_of": self.schema_of,
            "package": list(self.package) if self.package else None,
            "activate": self.activate,
            "context": dict(self.context) if self.context is not None else None,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> HostSpec:
        return HostSpec(
            view=_view_from(data["view"]),
            builtin=tuple(data["builtin"]),
            toolboxes=tuple((name, Path(path)) for name, path in data["toolboxes"]),
            env=data["env"],
            capabilities=frozenset(data["capabilities"]),
            memory_bytes=data["memory_bytes"],
            schema_of=data["schema_of"],
            package=tuple(data["package"]) if data["package"] else None,
            activate=data["activate"],
            context=data["context"],
        )


def _view_as_dict(view: View) -> dict[str, Any]:
    folders = [{**vars(folder), "path": str(folder.path)} for folder in view.folders]
    named = {"hidden": view.hidden, "protected": view.protected, "shown": view.shown}
    paths = {name: [str(path) for path in listed] for name, listed in named.items()}
    return {"cwd": str(view.cwd), "folders": folders, **paths}


def _view_from(data: Mapping[str, Any]) -> View:
    def folder(fields: Mapping[str, Any]) -> Folder:
        given: dict[str, Any] = {**fields, "path": Path(fields["path"])}
        for name in ("allowed_suffixes", "text_suffixes", "attachment_suffixes"):
            given[name] = tuple(fields[name])
        return Folder(**given)

    return View(
        cwd=Path(data["cwd"]),
        folders=tuple(map(folder, data["folders"])),
        hidden=tuple(map(Path, data["hidden"])),
        protected=tuple(map(Path, data["protected"])),
        shown=tuple(map(Path, data["shown"])),
    )


def to_frame(message: Mapping[str, Any]) -> bytes:
    """Return a message as a frame: its length, then JSON."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


MAX_SOURCE_BYTES = 2_000_000


def read_source(path: Path) -> bytes:
    """Return the content of a regular file. Raise ToolUnavailable for other files and for large files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ToolUnavailable("cannot read the file: not a regular file", where=str(path))
            data = file.read(MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise ToolUnavailable(f"cannot read the file: {error.strerror or error}", where=str(path)) from None
    if len(data) > MAX_SOURCE_BYTES:
        raise ToolUnavailable(f"the file is too large: at most {MAX_SOURCE_BYTES:,} bytes are allowed", where=str(path))
    return data


def source_digest(data: bytes) -> str:
    """Return the SHA-256 of a source file."""
    return hashlib.sha256(data).hexdigest()
