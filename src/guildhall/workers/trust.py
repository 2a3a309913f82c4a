"""Trust: decides if the code of a worker may run, by comparing each file with its trusted content.

A file is pinned by its path and its SHA-256. Code in the user's own home is trusted. Does not find the code (see
`workers.references`), store pins (see `workers.records`) or ask the user (see `cli.prompt`).

Invariant: code of a project runs only in the form that the user has trusted.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import NotTrusted
from guildhall.workers.model import GENERATED, WORKERS, Worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.references import Code

Standing = Literal["trusted", "new", "changed", "gone"]

_SAID: Mapping[Standing, str] = {
    "trusted": "trusted",
    "new": "not trusted yet",
    "changed": "changed since you trusted it",
    "gone": "gone since you trusted it",
}

_FIELDS = {"toolbox": "toolboxes", "server": "mcp_servers", "member": "members"}


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A file that a person trusts, as it was then."""

    path: Path
    digest: str
    trusted_at: str


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A file of some code, and how it stands. `size` and `digest` are those of now."""

    path: Path
    shown: str
    size: int
    digest: str
    standing: Standing
    trusted_at: str | None = None

    @property
    def said(self) -> str:
        return _SAID[self.standing]

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "file": self.shown,
            "size": self.size,
            "sha256": self.digest,
            "standing": self.standing,
            "trusted_at": self.trusted_at,
        }


@dataclass(frozen=True)
class Trust:
    """What is trusted in a home."""

    pins: Mapping[Path, Pin]
    own: Path | None = None  # the folder of the program itself: whoever runs it has trusted it

    def seen(self, code: Code) -> tuple[Seen, ...]:
        """Each file of the code; of a package also those that were trusted and are there no more."""
        now = tuple(
            Seen(
                path=file.path,
                shown=file.shown,
                size=len(file.content),
                digest=file.digest,
                standing=self._standing(file.path, file.digest),
                trusted_at=self.pins[file.path].trusted_at if file.path in self.pins else None,
            )
            for file in code.files
        )
        return (*now, *self._gone(code))

    def holds(self, code: Code) -> bool:
        """Whether the code may run: it is in the person's own home, or every file is as it was trusted."""
        if self.own is not None and code.root.resolve() == self.own:
            return True
        return code.own or all(seen.standing == "trusted" for seen in self.seen(code))

    def demand(self, code: Code, worker: Worker, frame: Frame) -> None:
        """Raises NotTrusted unless the code may run."""
        if self.holds(code):
            return
        field = _FIELDS.get(code.kind, "output_schema_ref")
        raise NotTrusted(
            f"{field}: {code.name} is {self.why_not(code)}",
            where=worker.place,
            hint=f"Look at it, then: {how_to_trust(worker, frame)}",
        )

    def why_not(self, code: Code) -> str:
        """Which of its files a person has not trusted as they are."""
        open_ones = [f"{seen.shown} ({seen.said})" for seen in self.seen(code) if seen.standing != "trusted"]
        more = f", and {len(open_ones) - 5} more" if len(open_ones) > 5 else ""
        return f"code that is not trusted as it is: {', '.join(open_ones[:5])}{more}"

    def _standing(self, path: Path, digest: str) -> Standing:
        if path not in self.pins:
            return "new"
        return "trusted" if self.pins[path].digest == digest else "changed"

    def _gone(self, code: Code) -> tuple[Seen, ...]:
        if code.folder is None:
            return ()
        real, there = code.folder.resolve(), {file.path for file in code.files}
        return tuple(
            Seen(
                path=path,
                shown=path.relative_to(code.root.resolve()).as_posix(),
                size=0,
                digest=pin.digest,
                standing="gone",
                trusted_at=pin.trusted_at,
            )
            for path, pin in sorted(self.pins.items())
            if path.is_relative_to(real) and path not in there
        )


def how_to_trust(worker: Worker, frame: Frame) -> str:
    """The command that shows what the worker would execute, and asks."""
    if worker.path is None:
        return "guild trust"
    if worker.path.parent in (frame.root / WORKERS, frame.root / WORKERS / GENERATED):
        return "guild trust"
    return f"guild trust {shlex.quote(str(worker.path))}"
