"""Artifacts: parses, reads, writes and lists the markdown files below `.lore/`, and offers them as worker tools.

An artifact has front matter (title, date, status, tags and other fields) and a body. It is stored in a checkout, or on
the integration branch, which is first updated from the user's branch if possible. An artifact has at most 1,000,000
bytes.
Does not write the artifacts of commissions and meetings (`commissions/artifact.py`, `meetings/artifact.py`).

Invariant: the tools do not write the folders that belong to the hall: commissions, meetings and reviews.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile, NotFound, Refused, UsageError
from guildhall.core.text import nearest_or
from guildhall.core.yaml_writer import dump
from guildhall.projects.model import LORE, is_of_the_hall
from guildhall.sandbox.files import Rooted
from guildhall.sandbox.view import Folder, View
from guildhall.tools.definition import bind_tools
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.projects.git.integration import Branches


_FENCE = "---"
_MOST_HEAD = 100_000  # characters of front matter
_WORDS = ("title", "date", "status")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """An artifact, in its parts."""

    title: str = ""
    date: str = ""
    status: str = ""
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # whatever else the front matter says
    body: str = ""

    @staticmethod
    def parse(text: str, where: str = "the artifact") -> Artifact:
        """The artifact that a text is. Without front matter all of it is the body."""
        head, body = _split(text)
        if head is None:
            return Artifact(body=text)
        if len(head) > _MOST_HEAD:
            raise InvalidFile("the front matter is too long", where=where)
        data: Any = yaml.parse(Path(where), head).data
        if data is None:
            return Artifact(body=body)
        if not isinstance(data, dict):
            raise InvalidFile("the front matter has no fields, like `title: ...`", where=where)
        fields = cast("dict[str, Any]", data)
        words = {name: _word(fields.get(name), name, where) for name in _WORDS}
        extra = {name: value for name, value in fields.items() if name not in (*_WORDS, "tags")}
        return Artifact(**words, tags=_tags(fields.get("tags"), where), extra=extra, body=body)

    @staticmethod
    def of(data: bytes, where: str) -> Artifact:
        """The same for a file as it lies there, whatever is in it."""
        return Artifact.parse(data.decode("utf-8", "replace"), where)

    @property
    def revision(self) -> int:
        """How many transitions the record of a commission or a meeting knows of.

        One that knows fewer than there were is merely older; another one that says something else, a hand has changed.
        """
        found = self.extra.get("revision")
        return found if isinstance(found, int) else 0

    def redacted(self, redact: Callable[[str], str]) -> Artifact:
        """The same one without the secrets that are known, in its front matter too."""
        words = {name: redact(getattr(self, name)) for name in (*_WORDS, "body")}
        return Artifact(**words, tags=tuple(map(redact, self.tags)), extra=_each(self.extra, redact))

    def render(self) -> str:
        """The text of it; parsed, it is the same artifact."""
        words = {name: value for name in _WORDS if (value := getattr(self, name))}
        tags = {"tags": list(self.tags)} if self.tags else {}
        head = {**words, **tags, **self.extra}
        if not head and _split(self.body)[0] is None:
            return self.body
        return f"{_FENCE}\n{dump(head)}{_FENCE}\n{self.body}"


def _split(text: str) -> tuple[str | None, str]:
    """Front matter and body; None: there is no front matter."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip("\r\n") != _FENCE:
        return None, text
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip("\r\n") == _FENCE:
            return "".join(lines[1:number]), "".join(lines[number + 1 :])
    return None, text


def without_secrets(data: bytes, redact: Callable[[str], str]) -> bytes:
    """A file that the hall writes, as it may lie in a repository; unchanged where there is nothing to hide."""
    try:
        artifact = Artifact.parse(data.decode())
    except (InvalidFile, UnicodeDecodeError):
        return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    redacted = artifact.redacted(redact)
    return data if redacted == artifact else redacted.render().encode()


def _each(value: Any, redact: Callable[[str], str]) -> Any:
    """All text in what YAML knows."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {_each(key, redact): _each(one, redact) for key, one in cast("dict[Any, Any]", value).items()}
    return [_each(one, redact) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _word(value: Any, name: str, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        raise InvalidFile(f"{name}: expected text", where=where)
    return str(value)


def _tags(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(tag.strip() for tag in value.split(",") if tag.strip())
    if not isinstance(value, list) or any(isinstance(tag, dict | list) for tag in cast("list[Any]", value)):
        raise InvalidFile("tags: expected a list of words", where=where)
    return tuple(str(tag) for tag in cast("list[Any]", value))


LARGEST = 1_000_000  # bytes
_LONGEST_PATH, _LONGEST_NAME = 240, 100  # bytes
_DEEPEST = 10


class Shelf(Protocol):
    """Where artifacts lie. Paths are those of the project, `.lore/` at their head."""

    def read(self, path: str) -> bytes | None: ...
    def list(self, under: str) -> Sequence[str]: ...
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

    def list(self, under: str) -> list[str]:
        try:
            return [f"{under}/{name}" for name, _ in self._rooted.files(self._rooted.spot(under))]
        except NotFound:
            return []

    def files(self, under: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for path in self.list(under):
            with suppress(GuildError):  # a link that leads out, or a file that went away meanwhile
                found[path] = self.read(path) or b""
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

    def list(self, under: str) -> list[str]:
        return self._branches.list(under, at=self._now())

    def files(self, under: str) -> dict[str, bytes]:
        return self._branches.files(under, at=self._now())

    def write(self, path: str, data: bytes) -> None:
        self._now()
        self._branches.write({path: data}, f"Write {path}", self._author)

    def _now(self) -> str:
        try:
            return self._branches.follow().commit
        except GuildError:  # what the two have both changed is no matter of this artifact
            return self._branches.tip()


@dataclass(frozen=True, kw_only=True)
class Line:
    """An artifact in a listing."""

    path: str
    title: str = ""
    status: str = ""


class Artifacts:
    """What can be done with the artifacts of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def read(self, path: str) -> str:
        """The text of an artifact, whole."""
        place = placed(path)
        data = self._shelf.read(place)
        if data is None:
            hint = nearest_or(place, self._shelf.list(LORE), "artifact_list shows which there are.")
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
        before = self._before(place)
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

    def list(self, under: str | None = None) -> list[Line]:
        """The artifacts below a folder, each with what its front matter says."""
        place = placed(under, folder=True) if under else LORE
        return [_line(path, data) for path, data in self._shelf.files(place).items() if path.endswith(".md")]

    def _before(self, place: str) -> Artifact:
        """What is there already; a front matter that cannot be read is replaced with the rest."""
        try:
            return Artifact.parse(self.read(place), place)
        except (NotFound, InvalidFile):
            return Artifact()


def _line(path: str, data: bytes) -> Line:
    try:
        artifact = Artifact.parse(data[:LARGEST].decode("utf-8-sig"), path)
    except (GuildError, UnicodeDecodeError):
        return Line(path=path)
    return Line(path=path, title=artifact.title, status=artifact.status)


def placed(path: str, *, folder: bool = False) -> str:
    """The path of an artifact as the project has it. It may be given with `.lore/` at its head, or from there."""
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
        lines = await asyncio.to_thread(self._artifacts.list, under)
        if not lines:
            return "There are no artifacts" + (f" below {under}." if under else " yet.")
        told = [_told(one) for one in lines[:_MAX_LISTED]]
        if (more := len(lines) - _MAX_LISTED) > 0:
            told.append(f"... and {more:,} more; name a folder to see them.")
        return "\n".join(told)


def _told(line: Line) -> str:
    status = f"[{line.status}] " if line.status else ""
    return " ".join(f"{line.path}  {status}{line.title}".splitlines()).rstrip()
