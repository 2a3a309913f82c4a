"""Normalization: replaces folders, run ids, times and secrets in recorded texts, so that scripts are portable.

Does not write scripts (`runs.replay.script_export`) and does not find secrets: the caller passes in the function.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.ids import digest, fingerprint
from guildhall.models.scripted.test_case import HOME, PROJECT, RUN, TIME, WHY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.runs.record.entries import Assembly

_LONG = 4_000  # characters of a text that are kept; the rest is compared by its digest
_RUN = re.compile(r"\br-[23456789abcdefghjkmnpqrstvwxyz]{10}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_DATED = re.compile(r"(\[decisions\.md, base )[0-9a-f]{32}")  # the hash of a text with times in it
_WHY = re.compile(r"(could not handle [#\d, ]+, and has stopped trying: ).+")  # a provider says it in its own words
_HALF = re.compile("[\ud800-\udfff]")


class Normalizer:
    """Puts names in the place of folders, and notes what it had to take out."""

    def __init__(self, project: Path, home: Path, redact: Callable[[str], str], *, times: bool = False) -> None:
        """`times`: what models are told names times, as a room does, which are others each time."""
        self.times = times
        self._project = str(project)
        self._names: dict[str, str] = {}
        for path, name in ((home, HOME), (project, PROJECT)):
            self._names[os.path.realpath(path)] = self._names[str(path)] = name
        longest_first = sorted(self._names, key=len, reverse=True)
        ends = r"(?![\w.-]*[\w-])"  # a folder whose name only begins alike is another one
        self._folders = re.compile("|".join(re.escape(path) + ends for path in longest_first if path != "/"))
        self._redact = redact
        self.redacted = False
        self.halved = False

    def text(self, text: str) -> str:
        safe = self._redact(text)
        whole = _HALF.sub("\ufffd", safe)
        self.redacted |= safe != text
        self.halved |= whole != safe
        return self._folders.sub(lambda found: self._names[found[0]], whole)

    def value(self, value: Any) -> Any:
        """The same in every text of a JSON value."""
        return _everywhere(value, self.text)

    def restore(self, value: Any) -> Any:
        """A value from a script, with the folder of this project where its name stands."""
        return _everywhere(value, lambda text: text.replace(PROJECT, self._project))


def _everywhere(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        return {change(name): _everywhere(part, change) for name, part in inside.items()}
    if isinstance(value, list):
        return [_everywhere(part, change) for part in cast("list[Any]", value)]
    return value


def sent_texts(message: Sequence[Mapping[str, Any]], neutral: Normalizer) -> str | list[str]:
    """What a model was newly told: one text, or one for each of its calls. Long ones are cut, and pinned."""
    texts = [_shortened(_RUN.sub(RUN, _timeless(neutral, neutral.text(_part(part))))) for part in message]
    return texts[0] if len(texts) == 1 else texts


def _timeless(neutral: Normalizer, text: str) -> str:
    if not neutral.times:
        return text
    return _WHY.sub(rf"\1{WHY}", _DATED.sub(rf"\1{TIME}", _TIME.sub(TIME, text)))


def _part(part: Mapping[str, Any]) -> str:
    text = _content(part["content"])
    return f"error: {text}" if part.get("outcome") == "failed" else text


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(map(_content, cast("list[Any]", content)))
    return content if isinstance(content, str) else str(content)


def _shortened(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}\n... ({len(text):,} characters, {digest(text.encode())[:12]})"


def normalized_system_prompt(frozen: Assembly, neutral: Normalizer) -> str:
    """Return the recorded system prompt without its memory block, because a test starts with an empty memory."""
    return neutral.text(frozen.system_prompt.removesuffix(frozen.memory).rstrip())


def tool_fingerprints(frozen: Assembly, answer_tool: str) -> dict[str, str]:
    """The tools that the model was shown, each with a fingerprint of its words."""
    shown: dict[str, Any] = {tool["name"]: tool for tool in frozen.tools}
    if frozen.output_schema is not None:
        shown[answer_tool] = frozen.output_schema
    return {name: fingerprint(tool)[:8] for name, tool in sorted(shown.items())}
