"""What is on record, in lines that people read: runs, asks, entries of a journal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli.visible import one_line
from guildhall.core.clock import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from guildhall.runs.model import Entry

_LONG = 160


def age(stamp: str, now: datetime) -> str:
    """How long ago, in the one unit that matters."""
    span = _span((now - moment(stamp)).total_seconds())
    return f"{span} ago" if span else "just now"


def ahead(stamp: str, now: datetime) -> str:
    """How long there is still time, in the one unit that matters."""
    return f"for {_span((moment(stamp) - now).total_seconds()) or 'a moment'}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return ""


def entry_line(entry: Entry) -> str:
    """An entry of a journal in one line."""
    key = one_line(entry.key or "-", 20)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {_told(entry)}".rstrip()


def _told(entry: Entry) -> str:
    """What matters most in an entry; what is not known here is shown as it is."""
    tell = _TELLERS.get(entry.kind, _json)
    return one_line(tell(entry.data), _LONG)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _assembled(data: Mapping[str, Any]) -> str:
    from guildhall.runtimes.model import labelled

    return "; ".join([str(data.get("model") or ""), *map(labelled, _parts(data.get("attachments")))])


def _asked(data: Mapping[str, Any]) -> str:
    again = f"attempt {data['attempt'] + 1}: " if data.get("attempt") else ""
    return again + "; ".join(_text(part.get("content")) for part in _parts(data.get("message")))


def _answered(data: Mapping[str, Any]) -> str:
    told: list[str] = []
    for part in _parts(_inside(data, "response").get("parts")):
        if part.get("part_kind") == "tool-call":
            told.append(f"calls {part.get('tool_name')}")
        elif part.get("content"):
            told.append(f"says {_text(part['content'])}")
    return "; ".join(told)


def _call(data: Mapping[str, Any]) -> str:
    return f"{data.get('tool')} {_json(data.get('arguments'))}"


def _refused(data: Mapping[str, Any]) -> str:
    """With what the model reads: who refused it, and why."""
    return f"{_call(data)}: {_content(data) or data.get('reason') or ''}"


def _result(data: Mapping[str, Any]) -> str:
    text = _content(data)
    return f"error: {text}" if _inside(data, "result").get("is_error") else text


def _content(data: Mapping[str, Any]) -> str:
    blocks = _parts(_inside(data, "result").get("content"))
    return "; ".join(_text(block.get("text") or block) for block in blocks)


def _resumed(data: Mapping[str, Any]) -> str:
    return f"was {data.get('from')}{_more(data)}"


def _said(data: Mapping[str, Any]) -> str:
    return _words("ask", "choice", "note")(data) + _more(data)


def _more(data: Mapping[str, Any]) -> str:
    """The limits that were granted."""
    return "".join(f", {name} now {value}" for name, value in _inside(data, "bounds").items())


def _ended(data: Mapping[str, Any]) -> str:
    said = _inside(data, "error").get("message") or data.get("reason")
    return f"{data.get('status')}: {said}" if said else str(data.get("status"))


def _words(*names: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda data: " ".join(str(data[name]) for name in names if isinstance(data.get(name), str))


def _inside(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _parts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


_TELLERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "assembled": _assembled,
    "model_asked": _asked,
    "model_failed": _words("message"),
    "model_answered": _answered,
    "tool_refused": _refused,
    "tool_asked": _call,
    "tool_started": _call,
    "tool_doubted": _call,
    "tool_ended": _result,
    "loop_asked": lambda data: f"{data.get('title')}, {data.get('ask')} asks whether they may go on",
    "question_asked": lambda data: f"{data.get('ask')} asks: {data.get('question')}",
    "limit_asked": lambda data: f"{data.get('limit')} {data.get('value')} is used up, {data.get('ask')} asks for more",
    "answered": _said,
    "listening": lambda data: "",
    "said": _words("words"),
    "crashed": _words("message"),
    "resumed": _resumed,
    "paused": _ended,
    "ended": _ended,
}
