"""YAML editor: changes parts of a YAML text and leaves the rest unchanged.

A caller tries several new texts, the smallest change first: a text with the value replaced in place, then the round
trip of ruamel. New files are written by `core.yaml_writer`.

Invariant: a text is used only if it reads back as the expected data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from pathlib import Path


def first_reading_as(
    expected: Any, texts: Iterable[str | None], path: Path, *, normalise: Callable[[Any], Any] | None = None
) -> str | None:
    """Return the first text whose data equals `expected`, or None. `normalise` is applied to the data of each text."""
    for text in texts:
        if text is None:
            continue
        try:
            data = yaml.parse(path, text).data
        except GuildError:
            continue
        if (normalise(data) if normalise else data) == expected:
            return text
    return None


def compose(text: str) -> Any:
    """Return the tree of ruamel nodes with their positions in the text, or None if the text is blank."""
    return _ruamel().compose(text) if text.strip() else None


def round_trip(text: str, change: Callable[[Any], object]) -> str:
    """Apply `change` to the data of a text and return the new text. Comments, order and quotes are kept."""
    ruamel = _ruamel()
    tree = ruamel.load(text)
    if tree is None:
        return ""
    change(tree)
    out = io.StringIO()
    ruamel.dump(tree, out)
    return out.getvalue()


def _ruamel() -> Any:
    ruamel = yaml.limited_ruamel()
    ruamel.preserve_quotes = True
    ruamel.width = 4096
    return ruamel
