"""Artifacts: reads, writes and lists the markdown files below `.lore/`, and offers them as worker tools.

An artifact is stored in a checkout, or on the integration branch, which is first updated from the user's branch.
Does not write the artifacts of commissions and meetings (`commissions/artifact.py`, `meetings/artifact.py`).

Invariant: the tools do not write the folders that belong to the hall: commissions, meetings and reviews.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from guildhall.core.errors import GuildError, InvalidFile, NotFound, Refused, UsageError
from guildhall.core.text import nearest_or
from guildhall.projects.model import LORE, Artifact, is_of_the_hall
from guildhall.sandbox.files import Rooted
from guildhall.sandbox.view import Folder, View
from guildhall.tools.definition import bind_tools
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.projects.git.integration import Branches


LARGEST = 1_000_000  # bytes
_LONGEST_PATH, _LONGEST_NAME = 240, 100  # bytes
_DEEPEST = 10


class Shelf(Protocol):
    """Where artifacts lie. Paths are those of the project, `.lore/` at their head."""

    def read(self, path: str) -> bytes | None: ...
    def files(self, under: str) -> Mapping[str, bytes]: ...
    def write(self, path: str, data: bytes) -> None: ...


class InWorktree:
    """The artifacts of a checkout, reached as a run's own files are: no link leads out."""

    def __init__(self, worktree: Path) -> None:
        folder = worktree.resolve()
        self._rooted = Rooted(View(cwd=folder, folders=(Folder(path=folder, writable=True),)))

    def read(self, path: str) -> bytes | None:
        try:
            return self._rooted.read(self._rooted.spot(path)).data
        except NotFound:
            return None

    def files(self, under: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with suppress(NotFound):
            for name, _ in self._rooted.files(self._rooted.spot(under)):
                with suppress(GuildError):  # a link that leads out, or a file that went away meanwhile
                    found[f"{under}/{name}"] = self.read(f"{under}/{name}") or b""
        return found

    def write(self, path: str, data: bytes) -> None:
        self._rooted.write(self._rooted.spot(path), data)


class OnBranch:
    """The artifacts of the integration branch, which follows the user's first, as far as that can be done."""

    def __init__(self, branches: Branches, author: str) -> None:
        self._branches = branches
        self._author = author

    def read(self, path: str) -> bytes | None:
        return self._branches.read(path, at=self._now())

    def files(self, under: str) -> dict[str, bytes]:
        return self._branches.files(under, at=self._now())

    def write(self, path: str, data: bytes) -> None:
        self._now()
        self._branches.write({path: data}, f"Write {path}", self._author)

    def _now(self) -> str:
        try:
            return self._branches.follow()
        except GuildError:  # what the two have both changed is no matter of this artifact
            return self._branches.tip()


class Artifacts:
    """Reads, writes and lists the artifacts of a checkout or of the integration branch."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def read(self, path: str) -> str:
        """Return the whole text of an artifact."""
        place = placed(path)
        data = self._shelf.read(place)
        if data is None:
            hint = nearest_or(place, self._shelf.files(LORE), "artifact_list shows which there are.")
            raise NotFound(f"there is no artifact {place}", hint=hint)
        if len(data) > LARGEST:
            raise Refused(f"{place} is larger than {LARGEST:,} bytes")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(f"{place} is not UTF-8 text") from None

    def write(
        self,
        path: str,
        content: str,
        *,
        date: str,
        title: str | None = None,
        status: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> Artifact:
        """Makes an artifact, or replaces its text. What its front matter says stays, unless something else is given.

        `date`: of one that is new.
        """
        place = placed(path)
        _demand_writable(place)
        given = Artifact.parse(content, place)
        try:
            before = Artifact.parse(self.read(place), place)
        except (NotFound, InvalidFile):  # front matter that cannot be read is replaced
            before = Artifact()
        new = Artifact(
            title=title if title is not None else given.title or before.title,
            date=given.date or before.date or date,
            status=status if status is not None else given.status or before.status,
            tags=tuple(tags) if tags is not None else given.tags or before.tags,
            extra={**before.extra, **given.extra},
            body=given.body,
        )
        if not new.title:
            new = replace(new, title=place.rpartition("/")[2].removesuffix(".md"))
        try:
            data = new.render().encode()
        except UnicodeEncodeError:
            raise UsageError("the text has half a character (a lone surrogate) in it") from None
        if len(data) > LARGEST:
            raise Refused(f"{place}: {len(data):,} bytes are more than the {LARGEST:,} that an artifact may have")
        self._shelf.write(place, data)
        return new

    def list(self, under: str | None = None) -> dict[str, Artifact]:
        """Return the artifacts below a folder by their paths. One that cannot be read is empty."""
        found: dict[str, Artifact] = {}
        for path, data in self._shelf.files(placed(under, folder=True) if under else LORE).items():
            if path.endswith(".md"):
                try:
                    found[path] = Artifact.parse(data[:LARGEST].decode("utf-8-sig"), path)
                except (GuildError, UnicodeDecodeError):
                    found[path] = Artifact()
        return found


def placed(path: str, *, folder: bool = False) -> str:
    """Return the path of an artifact in the project. `path` may start with `.lore/` or below it."""
    told = path.removesuffix("/") if folder else path
    if folder and told in ("", ".", LORE):
        return LORE
    parts = told.removeprefix(f"{LORE}/").split("/")
    hint = "Give it from `.lore/` on, such as plans/launch.md."
    if not told.isprintable() or len(told.encode("utf-8", "replace")) > _LONGEST_PATH or len(parts) > _DEEPEST:
        raise UsageError(f"{told[:80]!a} is no path of an artifact", hint=hint)
    for part in parts:
        long = len(part.encode("utf-8", "replace")) > _LONGEST_NAME
        if not part or part.startswith((".", "-")) or "\\" in part or long:
            raise UsageError(f"{told[:80]!r} is no path of an artifact: {part[:40]!r} in it is none", hint=hint)
    return f"{LORE}/{'/'.join(parts)}"


def _demand_writable(place: str) -> None:
    if not place.endswith(".md"):
        raise UsageError(f"{place} does not end in .md", hint="An artifact is a markdown file.")
    if is_of_the_hall(place):
        hint = "Write elsewhere in `.lore/`, and refer to it by its path."
        raise Refused(f"{place} is written by the hall, from what is on record", hint=hint)


TOOLS = {
    "artifact_read": {"artifact.read"},
    "artifact_write": {"artifact.write"},
    "artifact_list": {"artifact.read"},
}
_MAX_LISTED = 500


def artifact_toolbox(artifacts: Artifacts, today: Callable[[], str]) -> Toolbox:
    """Return the artifact tools of one run."""
    return Toolbox("artifacts", *bind_tools(ArtifactTools(artifacts, today), TOOLS, runs_in="hall"))


class ArtifactTools:
    """The artifact tools of one run. The model reads the docstrings."""

    def __init__(self, artifacts: Artifacts, today: Callable[[], str]) -> None:
        self._artifacts = artifacts
        self._today = today

    async def artifact_read(self, path: str) -> str:
        """Read an artifact of the project, whole: a markdown file with front matter, below `.lore/`.

        Args:
            path: Its path from `.lore/` on, such as plans/launch.md.
        """
        return await asyncio.to_thread(self._artifacts.read, path)

    async def artifact_write(
        self,
        path: str,
        content: str,
        title: str | None = None,
        status: str | None = None,
        tags: list[str] | None = None,
    ) -> str:
        """Write an artifact of the project: a plan, a report, notes. Others read it, and refer to it by its path.

        It replaces all of the text that is there. What its front matter says (title, date, status, tags and whatever
        else) stays, unless you give something else here or in front matter of your own.

        Args:
            path: Its path from `.lore/` on, such as plans/launch.md. It ends in .md.
            content: All of the text, in markdown, at most 1,000,000 bytes.
            title: What it is called.
            status: How it stands, such as draft or done.
            tags: Words by which it is found.
        """
        write = self._artifacts.write
        today = self._today()
        made = await asyncio.to_thread(write, path, content, date=today, title=title, status=status, tags=tags)
        return f"Written: {made.title!r}, {len(made.body):,} characters."

    async def artifact_list(self, under: str | None = None) -> str:
        """List the artifacts of the project: path, status, title.

        Args:
            under: A folder of them, such as plans; none: all.
        """
        found = await asyncio.to_thread(self._artifacts.list, under)
        if not found:
            return "There are no artifacts" + (f" below {under}." if under else " yet.")
        lines: list[str] = []
        for path, artifact in islice(found.items(), _MAX_LISTED):
            status = f"[{artifact.status}] " if artifact.status else ""
            lines.append(" ".join(f"{path}  {status}{artifact.title}".splitlines()).rstrip())
        if (more := len(found) - _MAX_LISTED) > 0:
            lines.append(f"... and {more:,} more; name a folder to see them.")
        return "\n".join(lines)
