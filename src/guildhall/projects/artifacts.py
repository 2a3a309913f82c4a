"""Artifacts: reads, writes and lists the Markdown files below `.lore/`, and the artifact tools of workers.

An artifact is stored in a checkout, or on the integration branch.
Does not write the artifacts of commissions and meetings (`commissions/artifact.py`, `meetings/artifact.py`).

Invariant: the tools do not write to the folders of the hall.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from guildhall.core.errors import GuildError, InvalidFile, NotFound, Refused, UsageError
from guildhall.core.text_checks import suggest_or
from guildhall.projects.model import HALL_FOLDERS, LORE, Artifact, is_hall_path
from guildhall.sandbox.files import SandboxFiles
from guildhall.sandbox.view import Folder, View
from guildhall.tools.definition import bind_tools
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.projects.git.integration_branch import Branches


MAX_ARTIFACT_BYTES = 1_000_000
_MAX_PATH_BYTES, _MAX_NAME_BYTES, _MAX_DEPTH = 240, 100, 10


class ArtifactStore(Protocol):
    """The storage of artifacts. Paths start with `.lore/`."""

    def read(self, path: str) -> bytes | None: ...
    def read_files(self, folder: str) -> Mapping[str, bytes]: ...
    def write(self, path: str, data: bytes) -> None: ...


class CheckoutStore:
    """The artifacts of a checkout. Links that lead out of the checkout are not followed."""

    def __init__(self, worktree: Path) -> None:
        folder = worktree.resolve()
        self._files = SandboxFiles(View(cwd=folder, folders=(Folder(path=folder, is_writable=True),)))

    def read(self, path: str) -> bytes | None:
        try:
            return self._files.read(self._files.locate(path)).data
        except NotFound:
            return None

    def read_files(self, folder: str) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        with suppress(NotFound):
            for name, _ in self._files.list_files(self._files.locate(folder)):
                with suppress(GuildError):  # a link that leads out of the checkout, or a removed file
                    contents[f"{folder}/{name}"] = self.read(f"{folder}/{name}") or b""
        return contents

    def write(self, path: str, data: bytes) -> None:
        self._files.write(self._files.locate(path), data)


class BranchStore:
    """The artifacts of the integration branch, which is updated from the user's branch before each access."""

    def __init__(self, branches: Branches, author: str) -> None:
        self._branches = branches
        self._author = author

    def read(self, path: str) -> bytes | None:
        return self._branches.read(path, ref=self._update())

    def read_files(self, folder: str) -> dict[str, bytes]:
        return self._branches.read_files(folder, ref=self._update())

    def write(self, path: str, data: bytes) -> None:
        self._update()
        self._branches.write({path: data}, f"Write {path}", self._author)

    def _update(self) -> str:
        try:
            return self._branches.update()
        except GuildError:  # a merge conflict with the user's branch does not affect this artifact
            return self._branches.tip()


class StoreWithRecords:
    """The artifacts of a store, with the hall's records of commissions, meetings and reviews in place of its own."""

    def __init__(self, store: ArtifactStore, branches: Branches) -> None:
        self._store = store
        self._branches = branches

    def read(self, path: str) -> bytes | None:
        return self._branches.read(path) if is_hall_path(path) else self._store.read(path)

    def read_files(self, folder: str) -> dict[str, bytes]:
        own = {path: data for path, data in self._store.read_files(folder).items() if not is_hall_path(path)}
        stored = (self._branches.read_files(f"{LORE}/{name}") for name in HALL_FOLDERS)
        records = {path: data for files in stored for path, data in files.items() if path.startswith(f"{folder}/")}
        return dict(sorted({**own, **records}.items()))

    def write(self, path: str, data: bytes) -> None:
        self._store.write(path, data)


class Artifacts:
    """Reads, writes and lists the artifacts of a checkout or of the integration branch."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def read(self, path: str) -> str:
        path = artifact_path(path)
        data = self._store.read(path)
        if data is None:
            hint = suggest_or(path, self._store.read_files(LORE), "artifact_list lists the artifacts.")
            raise NotFound(f"artifact not found: {path}", hint=hint)
        if len(data) > MAX_ARTIFACT_BYTES:
            raise Refused(f"cannot read {path}: larger than {MAX_ARTIFACT_BYTES:,} bytes", hint="Split the artifact.")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(f"cannot read {path}: not UTF-8 text", hint="Convert the file to UTF-8.") from None

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
        """Create an artifact or replace its text. Omitted fields of the front matter keep their values.

        `date`: for a new artifact.
        """
        path = artifact_path(path)
        if not path.endswith(".md"):
            message = f"invalid artifact path {path!r}: it does not end in .md"
            raise UsageError(message, hint="Add .md to the path.")
        if is_hall_path(path):
            hint = "Write to another folder of `.lore/`, and refer to this file by its path."
            raise Refused(f"cannot write {path}: only the hall may write there", hint=hint)
        parsed = Artifact.parse(content, path)
        try:
            current = Artifact.parse(self.read(path), path)
        except (NotFound, InvalidFile):  # invalid front matter is replaced
            current = Artifact()
        title = title if title is not None else parsed.title or current.title
        new = Artifact(
            title=title or path.rpartition("/")[2].removesuffix(".md"),
            date=parsed.date or current.date or date,
            status=status if status is not None else parsed.status or current.status,
            tags=tuple(tags) if tags is not None else parsed.tags or current.tags,
            extra={**current.extra, **parsed.extra},
            body=parsed.body,
        )
        try:
            data = new.render().encode()
        except UnicodeEncodeError:
            raise UsageError(
                "invalid content: contains a lone surrogate", hint="Remove the invalid characters."
            ) from None
        if len(data) > MAX_ARTIFACT_BYTES:
            size = f"{len(data):,} bytes (maximum: {MAX_ARTIFACT_BYTES:,})"
            raise Refused(f"cannot write {path}: {size}", hint="Split the artifact.")
        self._store.write(path, data)
        return new

    def list(self, folder: str | None = None) -> dict[str, Artifact]:
        """Return the artifacts below a folder by path. An unreadable artifact has empty fields."""
        artifacts: dict[str, Artifact] = {}
        name = (folder or "").removesuffix("/")
        for path, data in self._store.read_files(LORE if name in ("", ".", LORE) else artifact_path(name)).items():
            if path.endswith(".md"):
                try:
                    artifacts[path] = Artifact.parse(data[:MAX_ARTIFACT_BYTES].decode("utf-8-sig"), path)
                except (GuildError, UnicodeDecodeError):
                    artifacts[path] = Artifact()
        return artifacts


def artifact_path(path: str) -> str:
    """Return the path of an artifact in the project. Raise UsageError if it is invalid.

    `path` may omit the prefix `.lore/`.
    """
    parts = path.removeprefix(f"{LORE}/").split("/")
    hint = "Give the path below `.lore/`, such as plans/launch.md."
    if not path.isprintable() or len(path.encode("utf-8", "replace")) > _MAX_PATH_BYTES or len(parts) > _MAX_DEPTH:
        reason = f"more than {_MAX_PATH_BYTES} bytes or {_MAX_DEPTH} parts, or not printable"
        raise UsageError(f"invalid artifact path {path[:80]!a}: {reason}", hint=hint)
    for part in parts:
        is_long = len(part.encode("utf-8", "replace")) > _MAX_NAME_BYTES
        if not part or part.startswith((".", "-")) or "\\" in part or is_long:
            reason = f"{part[:40]!r} is empty, starts with '.' or '-', contains a backslash or is too long"
            raise UsageError(f"invalid artifact path {path[:80]!r}: {reason}", hint=hint)
    return f"{LORE}/{'/'.join(parts)}"


TOOLS = {"artifact_read": {"artifact.read"}, "artifact_write": {"artifact.write"}, "artifact_list": {"artifact.read"}}
_MAX_LISTED = 500


def artifact_toolbox(artifacts: Artifacts, today: Callable[[], str]) -> Toolbox:
    return Toolbox("artifacts", *bind_tools(ArtifactTools(artifacts, today), TOOLS, runs_in="hall"))


class ArtifactTools:
    """The artifact tools of one run. The model reads the docstrings of the methods."""

    def __init__(self, artifacts: Artifacts, today: Callable[[], str]) -> None:
        self._artifacts = artifacts
        self._today = today

    async def artifact_read(self, path: str) -> str:
        """Read a whole artifact of the project. An artifact is a markdown file with front matter below `.lore/`.

        Args:
            path: Its path below `.lore/`, such as plans/launch.md.
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
        """Write an artifact of the project, such as a plan, a report or notes. Other workers can read it.

        The content replaces the whole text of an existing artifact. The fields of its front matter (title, date,
        status, tags and others) keep their values, unless you set them here or in front matter of your own.

        Args:
            path: Its path below `.lore/`, such as plans/launch.md. It must end in .md.
            content: The whole text, in markdown, at most 1,000,000 bytes.
            title: The title of the artifact.
            status: The status of the artifact, such as draft or done.
            tags: Keywords to find it by.
        """
        write, today = self._artifacts.write, self._today()
        written = await asyncio.to_thread(write, path, content, date=today, title=title, status=status, tags=tags)
        return f"Saved {written.title!r} ({len(written.body):,} characters)."

    async def artifact_list(self, under: str | None = None) -> str:
        """List the artifacts of the project: path, status, title.

        Args:
            under: A folder of artifacts, such as plans. Omit it to list all artifacts.
        """
        artifacts = await asyncio.to_thread(self._artifacts.list, under)
        if not artifacts:
            return f"No artifacts below {under}." if under else "No artifacts."
        lines: list[str] = []
        for path, artifact in islice(artifacts.items(), _MAX_LISTED):
            status = f"[{artifact.status}] " if artifact.status else ""
            lines.append(" ".join(f"{path}  {status}{artifact.title}".splitlines()).rstrip())
        if (omitted := len(artifacts) - _MAX_LISTED) > 0:
            lines.append(f"... and {omitted:,} more. Name a folder to list them.")
        return "\n".join(lines)
