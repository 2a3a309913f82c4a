"""Projects as data: the project, its settings, timeline entries and artifacts, and the names of the hall's refs.

Does not have I/O: `registry.py` reads projects, `records.py` stores timelines, and `artifacts.py` stores artifacts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.yaml_writer import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INTEGRATION = "claude/main"  # the branch that all work is gathered on
OURS = "claude/"  # below it are the branches of the hall; everything else is the user's
KEPT = "refs/guildhall/kept/"  # where branches go that are done with: nothing is ever thrown away
LORE = ".lore"  # the folder of a project's artifacts
OF_THE_HALL = ("commissions", "meetings", "reviews")  # what it writes there itself, so that nobody else does


def is_of_the_hall(path: str) -> bool:
    """Return True if only the hall writes there."""
    return any(path == place or path.startswith(f"{place}/") for place in (f"{LORE}/{name}" for name in OF_THE_HALL))


def join_names(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


Scope = Literal["sparse", "full"]  # what a worktree has: the artifacts only, or everything


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """What config.yaml may say about a project beside where it is."""

    max_commissions: int = 3
    max_meetings: int = 5
    checks: tuple[str, ...] = ()  # commands that every commission's work has to pass
    remote: str = "origin"  # where pull requests go
    memory_tokens: int | None = None  # limit of the memory block; None: the limit of the settings


@dataclass(frozen=True, kw_only=True)
class Project:
    """A repository of the user's that is registered."""

    name: str
    path: Path  # the user's own folder; nobody works there but the user
    branch: str  # the user's, that the integration branch follows
    settings: ProjectSettings = field(default_factory=ProjectSettings)

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"

    def as_dict(self) -> dict[str, Any]:
        """Return the project as `--json` prints it."""
        settings = {**asdict(self.settings), "checks": list(self.settings.checks)}
        return {"name": self.name, "path": str(self.path), "branch": self.branch, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is wrong with a project. `blocks`: nothing can be done there before it is put right."""

    message: str
    hint: str | None = None
    blocks: bool = True


@dataclass(frozen=True, kw_only=True)
class ProjectShown:
    """A project in a listing. One that is written wrongly is listed too, with what is wrong."""

    name: str
    project: Project | None = None
    error: str | None = None
    living: tuple[str, ...] = ()  # its commissions and meetings that have not ended

    def as_dict(self) -> dict[str, Any]:
        told = {} if self.project is None else self.project.as_dict()
        return {"name": self.name, **told, "error": self.error, "living": list(self.living)}


@dataclass(frozen=True, kw_only=True)
class Moment:
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
        """Parse an artifact. A text without front matter is only a body."""
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
        """Parse the content of a file, which may not be valid UTF-8."""
        return Artifact.parse(data.decode("utf-8", "replace"), where)

    @property
    def revision(self) -> int:
        """Return the number of transitions that the artifact of a commission or meeting contains.

        An artifact with fewer transitions than the row is older. Another difference is an edit by hand.
        """
        found = self.extra.get("revision")
        return found if isinstance(found, int) else 0

    def redacted(self, redact: Callable[[str], str]) -> Artifact:
        """Return the artifact without known secrets, also in its front matter."""
        words = {name: redact(getattr(self, name)) for name in (*_WORDS, "body")}
        return Artifact(**words, tags=tuple(map(redact, self.tags)), extra=_each(self.extra, redact))

    def render(self) -> str:
        """Return the text of the artifact. `parse` returns an equal artifact."""
        words = {name: value for name in _WORDS if (value := getattr(self, name))}
        tags = {"tags": list(self.tags)} if self.tags else {}
        head = {**words, **tags, **self.extra}
        if not head and _split(self.body)[0] is None:
            return self.body
        return f"{_FENCE}\n{dump(head)}{_FENCE}\n{self.body}"


def _split(text: str) -> tuple[str | None, str]:
    """Return front matter, or None if there is none, and body."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].rstrip("\r\n") != _FENCE:
        return None, text
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip("\r\n") == _FENCE:
            return "".join(lines[1:number]), "".join(lines[number + 1 :])
    return None, text


def without_secrets(data: bytes, redact: Callable[[str], str]) -> bytes:
    """Return the content of a file without secrets. It is unchanged if it contains none."""
    try:
        artifact = Artifact.parse(data.decode())
    except (InvalidFile, UnicodeDecodeError):
        return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    redacted = artifact.redacted(redact)
    return data if redacted == artifact else redacted.render().encode()


def _each(value: Any, redact: Callable[[str], str]) -> Any:
    """Redact all texts in a YAML value."""
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
