"""YAML editor: changes parts of a YAML text and leaves the rest unchanged.

An edit tries several texts, the smallest change first: values spliced in at their marks, then ruamel's round trip.
Does not write new files (see `core.yaml_writer`).

Invariant: a text is used only if it reads back as the expected data.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def first_reading_as(
    expected: Any, texts: Iterable[str | None], path: Path, *, normalise: Callable[[Any], Any] | None = None
) -> str | None:
    """Return the first text whose data is as expected, or None. `normalise` is applied to the data of each text."""
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
    """Return ruamel's nodes of a text, which have marks, or None if the text is empty."""
    return _ruamel().compose(text) if text.strip() else None


def round_trip(text: str, change: Callable[[Any], object]) -> str:
    """Return the text after `change` was applied to its data. Comments, order and quotes are kept."""
    ruamel = _ruamel()
    tree = ruamel.load(text)
    if tree is None:
        return ""
    change(tree)
    out = io.StringIO()
    ruamel.dump(tree, out)
    return out.getvalue()


def _ruamel() -> Any:
    from ruamel.yaml import YAML

    ruamel: Any = YAML(typ="rt")
    ruamel.preserve_quotes = True
    ruamel.width = 4096
    ruamel.composer.warn_double_anchors = False
    return ruamel
