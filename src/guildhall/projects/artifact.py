"""The text of an artifact: markdown, and above it front matter with title, date, status, tags and whatever else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.yaml_text import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
