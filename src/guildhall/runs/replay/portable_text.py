"""Normalization: replaces folders, run ids, times and secrets in recorded texts, so that scripts are portable.

Does not write scripts (`runs.replay.script_export`) and does not find secrets: the caller passes in the function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.ids import digest, fingerprint
from guildhall.models.scripted.test_section import HOME, PROJECT, RUN, TIME, WHY

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runs.record.entries import Assembly

_MAX_CHARS = 4_000  # the rest of a longer text is compared by its digest
_RUN = re.compile(r"\br-[23456789abcdefghjkmnpqrstvwxyz]{10}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_DATED_HASH = re.compile(r"(\[decisions\.md, base )[0-9a-f]{32}")  # the hash of a text that contains times
_FAILURE = re.compile(r"(could not handle [#\d, ]+ and gave up: ).+")  # the provider words the reason
_SURROGATE = re.compile("[\ud800-\udfff]")


class Normalizer:
    """Replaces folders by names, and remembers whether secrets or surrogates were replaced."""

    def __init__(self, project: Path, home: Path, redact: Callable[[str], str], *, times: bool = False) -> None:
        """`times`: replace times too, because the messages of a room contain them."""
        self._times = times
        self._project = str(project)
        self._names: dict[str, str] = {}
        for path, name in ((home, HOME), (project, PROJECT)):
            self._names[os.path.realpath(path)] = self._names[str(path)] = name
        longest_first = sorted(self._names, key=len, reverse=True)
        ends = r"(?![\w.-]*[\w-])"  # not a folder with a longer name
        self._folders = re.compile("|".join(re.escape(path) + ends for path in longest_first if path != "/"))
        self._redact = redact
        self.has_redactions = False
        self.has_surrogates = False

    def text(self, text: str) -> str:
        safe = self._redact(text)
        valid = _SURROGATE.sub("\ufffd", safe)
        self.has_redactions |= safe != text
        self.has_surrogates |= valid != safe
        return self._folders.sub(lambda found: self._names[found[0]], valid)

    def sent_text(self, text: str) -> str:
        """Normalize a text that was sent to a model: replace run ids and times too, and shorten it."""
        text = self.text(text)
        if self._times:
            text = _FAILURE.sub(rf"\1{WHY}", _DATED_HASH.sub(rf"\1{TIME}", _TIME.sub(TIME, text)))
        text = _RUN.sub(RUN, text)
        if len(text) <= _MAX_CHARS:
            return text
        return f"{text[:_MAX_CHARS]}\n... ({len(text):,} characters, {digest(text.encode())[:12]})"

    def value(self, value: Any) -> Any:
        """Normalize every text of a JSON value."""
        return _map_texts(value, self.text)

    def restore(self, value: Any) -> Any:
        """Return a value of a script with the folder of this project in place of its name."""
        return _map_texts(value, lambda text: text.replace(PROJECT, self._project))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        inside = cast("dict[str, Any]", value)
        return {change(name): _map_texts(part, change) for name, part in inside.items()}
    if isinstance(value, list):
        return [_map_texts(part, change) for part in cast("list[Any]", value)]
    return value


def sent_texts(message: Sequence[Mapping[str, Any]], normalizer: Normalizer) -> str | list[str]:
    """Return the new message to a model: one text, or a list with one text for each call."""
    texts = [normalizer.sent_text(_part_text(part)) for part in message]
    return texts[0] if len(texts) == 1 else texts


def _part_text(part: Mapping[str, Any]) -> str:
    text = _content_text(part["content"])
    return f"error: {text}" if part.get("outcome") == "failed" else text


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(map(_content_text, cast("list[Any]", content)))
    return content if isinstance(content, str) else str(content)


def normalized_system_prompt(assembly: Assembly, normalizer: Normalizer) -> str:
    """Return the recorded system prompt without its memory block, because a test starts with an empty memory."""
    return normalizer.text(assembly.system_prompt.removesuffix(assembly.memory).rstrip())


def tool_fingerprints(assembly: Assembly, answer_tool: str) -> dict[str, str]:
    """Return the name of each tool that the model was shown, with a fingerprint of its schema."""
    tools: dict[str, Any] = {tool["name"]: tool for tool in assembly.tools}
    if assembly.output_schema is not None:
        tools[answer_tool] = assembly.output_schema
    return {name: fingerprint(tool)[:8] for name, tool in sorted(tools.items())}
