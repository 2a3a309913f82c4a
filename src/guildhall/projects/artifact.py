"""An artifact as text: YAML front matter between two lines of dashes, then markdown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.yaml_text import dump

if TYPE_CHECKING:
    from collections.abc import Mapping

_FENCE = "---\n"


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """What an artifact says."""

    title: str
    date: str
    status: str
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    body: str = ""

    @staticmethod
    def parse(text: str) -> Artifact:
        """InvalidFile: there is no front matter, or it cannot be read."""
        head, fence, body = text.removeprefix(_FENCE).partition("\n" + _FENCE)
        if not text.startswith(_FENCE) or not fence:
            raise InvalidFile("an artifact begins with front matter between two lines of ---")
        data: Any = yaml.parse(Path("artifact.yaml"), head).data
        if not isinstance(data, dict):
            raise InvalidFile("the front matter of an artifact has fields")
        fields = dict(cast("dict[str, Any]", data))
        tags: Any = fields.pop("tags", None) or ()
        known = {name: str(fields.pop(name, "")) for name in ("title", "date", "status")}
        return Artifact(**known, tags=tuple(map(str, tags)), extra=fields, body=body.removeprefix("\n"))

    def render(self) -> str:
        fields = {"title": self.title, "date": self.date, "status": self.status, "tags": list(self.tags), **self.extra}
        return f"{_FENCE}{dump(fields)}{_FENCE}\n{self.body}"
