"""Journal output: renders each kind of journal entry as one line.

Only `guild log` imports this module, because the types of entries take long to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from guildhall.cli.screen import one_line
from guildhall.runs.record import entries

_MAX_SUMMARY_CHARS = 160


def entry_line(entry: entries.Entry[entries.Payload]) -> str:
    """Return a journal entry as one line."""
    key = one_line(entry.key or "-", 20)
    summary = one_line(_describe(entry.data), _MAX_SUMMARY_CHARS)
    return f"{entry.seq:>4}  {entry.at[11:19]}Z  {entry.kind:<14}  {key:<12}  {summary}".rstrip()


def _describe(data: entries.Payload) -> str:
    """Return the main facts of an entry."""
    match data:
        case entries.Assembly():
            from guildhall.runtimes.model import attachment_label

            return "; ".join([data.model, *map(attachment_label, data.attachments)])
        case entries.ModelAsked():
            attempt = f"attempt {data.attempt + 1}: " if data.attempt else ""
            broken = f"[cached prefix broken at {data.prefix_break}] " if data.prefix_break else ""
            return attempt + broken + "; ".join(_text(part.get("content")) for part in data.message)
        case entries.ModelAnswered():
            return "; ".join(_describe_response(data.response))
        case entries.ModelCallFailed() | entries.Crashed():
            return data.message
        case entries.Said():
            return data.words
        case entries.Answered():
            return " ".join(filter(None, (data.ask, data.choice, data.note))) + _raised_limits(data.bounds)
        case entries.Resumed():
            return f"was {data.was}{_raised_limits(data.bounds)}"
        case entries.Ended():
            return _describe_end(data.status, data.error["message"] if data.error else data.reason)
        case entries.Paused():
            return _describe_end(data.status, data.reason)
        case entries.WorkerCreated():
            return _json(data.to_record())
        case _:
            return _describe_call(data)


def _describe_call(data: entries.Payload) -> str:
    match data:
        case entries.ToolRefused():  # the text for the model says who refused the call, and why
            return f"{_call(data)}: {_content(data.result) or data.reason or ''}"
        case entries.ToolAsked():
            return f"answer needed: guild answer {data.ask}; {_call(data)}"
        case entries.ToolStarted() | entries.ToolDoubted():
            return _call(data)
        case entries.ToolEnded():
            text = _content(data.result)
            return f"error: {text}" if data.result.get("is_error") else text
        case entries.LoopAsked():
            return f"{data.title}, {data.ask} asks if the agents may continue"
        case entries.QuestionAsked():
            return f"{data.ask} asks: {data.question}"
        case entries.LimitAsked():
            return f"{data.limit} {data.value} reached, {data.ask} asks for more"
        case _:
            return ""


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str) if data else ""


def _describe_response(response: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts and the tool calls of a model response, then its thinking, because the line is cut at the end."""
    parts = _parts(response.get("parts"))
    for part in sorted(parts, key=lambda part: part.get("part_kind") == "thinking"):
        if part.get("part_kind") == "tool-call":
            yield f"calls {part.get('tool_name')}"
        elif part.get("content"):
            verb = "thinks" if part.get("part_kind") == "thinking" else "says"
            yield f"{verb} {_text(part['content'])}"


def _call(data: entries.ToolRefused | entries.ToolAsked | entries.ToolStarted | entries.ToolDoubted) -> str:
    return f"{data.tool} {_json(data.arguments)}"


def _content(result: Mapping[str, Any]) -> str:
    return "; ".join(_text(block.get("text") or block) for block in _parts(result.get("content")))


def _raised_limits(bounds: Mapping[str, Any] | None) -> str:
    return "".join(f", {name} now {value}" for name, value in (bounds or {}).items())


def _describe_end(status: str, reason: str | None) -> str:
    return f"{status}: {reason}" if reason else status


def _parts(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value) if isinstance(value, list) else []


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)
