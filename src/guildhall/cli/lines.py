"""What is on record, in lines that people read: runs, asks, entries of a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.visible import one_line
from guildhall.core.clock import moment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from guildhall.runs.model import Entry

_LONG = 160


def age(stamp: str, now: datetime) -> str:
    """How long ago, in the one unit that matters."""
    seconds = max(int((now - moment(stamp)).total_seconds()), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def entry_line(entry: Entry) -> str:
    """An entry of a journal in one line."""
    key = entry.key or "-"
    return f"{entry.seq:>4}  {entry.at[11:19]}  {entry.kind:<14}  {one_line(key, 24):<6}  {_told(entry)}".rstrip()


def _told(entry: Entry) -> str:
    """What matters most in an entry; what is not known here is shown as it is."""
    data = entry.data
    match entry.kind:
        case "model_answered":
            text = _answer(data.get("response") or {})
        case "tool_started" | "tool_refused" | "tool_asked" | "tool_doubted":
            text = f"{data.get('tool')} {json.dumps(data.get('arguments'), ensure_ascii=False, default=str)}"
            if entry.kind == "tool_refused":
                text += f": {data.get('reason') or ''}"
        case "tool_ended":
            text = _result(data.get("result") or {})
        case "model_failed":
            text = str(data.get("message"))
        case "answered":
            text = " ".join(str(data[name]) for name in ("ask", "choice", "note") if data.get(name))
        case "assembled":
            text = " ".join(str(data[name]) for name in ("worker", "model") if isinstance(data.get(name), str))
        case _:
            text = json.dumps(data, ensure_ascii=False, default=str) if data else ""
    return one_line(text, _LONG)


def _answer(response: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for part in cast("list[dict[str, Any]]", response.get("parts") or []):
        if part.get("part_kind") == "tool-call":
            parts.append(f"calls {part.get('tool_name')}")
        elif part.get("content"):
            parts.append(f"says {part['content']!s}")
    return "; ".join(parts)


def _result(result: Mapping[str, Any]) -> str:
    text = result.get("text")
    if text is None:
        text = json.dumps(result, ensure_ascii=False, default=str)
    return f"error: {text}" if result.get("is_error") else str(text)
