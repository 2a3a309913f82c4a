"""Projects as data: the project, its settings, timeline entries and artifacts, and the names of the hall's refs.

Does not have I/O (`registry.py`, `activity_records.py`, `artifacts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.yaml_writer import dump

INTEGRATION = "claude/main"  # the integration branch
BRANCH_PREFIX = "claude/"  # of the hall's branches
ARCHIVE_REFS = "refs/guildhall/kept/"  # of archived branches
RECORDS = "refs/guildhall/records"  # the ref with the files of the hall folders
LORE = ".lore"  # the folder of a project's artifacts
HALL_FOLDERS = ("commissions", "meetings", "reviews")  # in `.lore`; only the hall may write there

Scope = Literal["sparse", "full"]  # a worktree contains only the artifacts, or all files


def is_hall_path(path: str) -> bool:
    """Return True if only the hall may write to this path."""
    return any(f"{path}/".startswith(f"{LORE}/{name}/") for name in HALL_FOLDERS)


def join_names(names: Sequence[str], max_names: int = 10) -> str:
    """Return the first names and the number of omitted names."""
    omitted = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + omitted


@dataclass(frozen=True, kw_only=True)
class Diffstat:
    """The extent of a change, without the hall's own records."""

    files: int
    insertions: int
    deletions: int

    def __str__(self) -> str:
        if self.files == 0:
            return "no files changed"
        return f"{self.files:,} {'file' if self.files == 1 else 'files'} changed, +{self.insertions} -{self.deletions}"


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """The optional fields of a project in config.yaml."""

    max_commissions: int = 3
    max_meetings: int = 5
    checks: tuple[str, ...] = ()  # commands that must succeed for every commission
    remote: str = "origin"  # for pull requests
    memory_tokens: int | None = None  # limit of the memory block, or None for the limit of the settings


@dataclass(frozen=True, kw_only=True)
class Project:
    """A registered git repository of the user."""

    name: str
    path: Path  # of the user's checkout
    branch: str  # the user's branch
    settings: ProjectSettings = field(default_factory=ProjectSettings)

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"

    def as_dict(self) -> dict[str, Any]:
        settings = {**asdict(self.settings), "checks": list(self.settings.checks)}
        return {"name": self.name, "path": str(self.path), "branch": self.branch, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A defect of a project."""

    message: str
    hint: str | None = None
    blocks: bool = True  # True if the project cannot be used


@dataclass(frozen=True, kw_only=True)
class ProjectEntry:
    """An entry of the registry: a project, or the error of an invalid entry."""

    name: str
    project: Project | None = None
    error: str | None = None
    unfinished: tuple[str, ...] = ()  # ids of its commissions and meetings that have not ended

    def as_dict(self) -> dict[str, Any]:
        fields = {} if self.project is None else self.project.as_dict()
        return {"name": self.name, **fields, "error": self.error, "unfinished": list(self.unfinished)}


class Activity(Protocol):
    """A commission or a meeting."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def id(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def branch(self) -> str | None: ...
    @property
    def checkout(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def created_at(self) -> str: ...


StatusT = TypeVar("StatusT", bound=str)


@dataclass(frozen=True)
class Transition(Generic[StatusT]):
    """The states in which an event is allowed, and the resulting state."""

    sources: tuple[StatusT, ...]
    target: StatusT


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """An entry in the timeline of a commission or a meeting: a transition, or a note if `after` is None."""

    at: str
    reason: str  # for people; programs use `kind` and `data`
    kind: str = "note"
    before: str | None = None
    after: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_FENCE = "---"
_MAX_FRONT_MATTER_CHARS = 20_000  # YAML takes a second for 10,000 values
_TEXT_FIELDS = ("title", "date", "status")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A markdown file with front matter, split into fields and body."""

    title: str = ""
    date: str = ""
    status: str = ""
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # other fields of the front matter
    body: str = ""

    @staticmethod
    def parse(text: str, where: str = "the artifact") -> Artifact:
        """Parse an artifact. Without front matter, the whole text is the body."""
        front_matter, body = _split_front_matter(text)
        if front_matter is None:
            return Artifact(body=text)
        if len(front_matter) > _MAX_FRONT_MATTER_CHARS:
            raise InvalidFile(f"invalid front matter: longer than {_MAX_FRONT_MATTER_CHARS:,} characters", where=where)
        data: Any = yaml.parse(Path(where), front_matter).data
        if data is None:
            return Artifact(body=body)
        if not isinstance(data, dict):
            raise InvalidFile("invalid front matter: expected fields such as `title: ...`", where=where)
        fields = cast("dict[str, Any]", data)
        texts = {name: _parse_text(fields.get(name), name, where) for name in _TEXT_FIELDS}
        extra = {name: value for name, value in fields.items() if name not in (*_TEXT_FIELDS, "tags")}
        return Artifact(**texts, tags=_parse_tags(fields.get("tags"), where), extra=extra, body=body)

    @staticmethod
    def decode(data: bytes, where: str) -> Artifact:
        """Parse the content of a file. Invalid UTF-8 is replaced."""
        return Artifact.parse(data.decode("utf-8", "replace"), where)

    @property
    def revision(self) -> int:
        """Return the number of transitions that the artifact of a commission or meeting contains."""
        revision = self.extra.get("revision")
        return revision if isinstance(revision, int) else 0

    def redact(self, redact: Callable[[str], str]) -> Artifact:
        """Return the artifact without known secrets, including those in its front matter."""
        texts = {name: redact(getattr(self, name)) for name in (*_TEXT_FIELDS, "body")}
        return Artifact(**texts, tags=tuple(map(redact, self.tags)), extra=_redact_value(self.extra, redact))

    def render(self) -> str:
        """Return the text of the artifact. `parse` is the inverse."""
        texts = {name: value for name in _TEXT_FIELDS if (value := getattr(self, name))}
        tags = {"tags": list(self.tags)} if self.tags else {}
        fields = {**texts, **tags, **self.extra}
        if not fields and _split_front_matter(self.body)[0] is None:
            return self.body
        return f"{_FENCE}\n{dump(fields)}{_FENCE}\n{self.body}"


def _split_front_matter(text: str) -> tuple[str | None, str]:
    """Return the front matter, or None if it is missing, and the body."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip("\r\n") != _FENCE:
        return None, text
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip("\r\n") == _FENCE:
            return "".join(lines[1:number]), "".join(lines[number + 1 :])
    return None, text


def redact_file(data: bytes, redact: Callable[[str], str]) -> bytes:
    """Return the content of a file without secrets. Content without secrets is unchanged, byte by byte."""
    try:
        artifact = Artifact.parse(data.decode())
    except (InvalidFile, UnicodeDecodeError):
        return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    redacted = artifact.redact(redact)
    return data if redacted == artifact else redacted.render().encode()


def _redact_value(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        return {_redact_value(key, redact): _redact_value(inner, redact) for key, inner in fields.items()}
    return [_redact_value(item, redact) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _parse_text(value: Any, name: str, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        raise InvalidFile(f"{name}: expected text", where=where)
    return str(value)


def _parse_tags(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(tag.strip() for tag in value.split(",") if tag.strip())
    if not isinstance(value, list) or any(isinstance(tag, dict | list) for tag in cast("list[Any]", value)):
        raise InvalidFile("tags: expected a list of texts", where=where)
    return tuple(str(tag) for tag in cast("list[Any]", value))
