"""Comparison of a run with its test script, and the update of the test file.

Does not execute the run (see `hall.testrun.runner`).
"""

from __future__ import annotations

import copy
import difflib
import json
from collections import defaultdict
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import yaml_writer
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import ScriptExhausted
from guildhall.core.yaml_writer import dump, field_lines
from guildhall.hall.client.model import Deviation
from guildhall.models.scripted.source import ANY_WORKER, Answer, Script
from guildhall.runs.record.entries import ModelAsked, ToolStarted
from guildhall.runs.replay.portable_text import Normalizer, normalized_system_prompt, sent_texts, tool_fingerprints
from guildhall.runs.replay.script_export import expected_end
from guildhall.runtimes.pydantic import OUTPUT_TOOL

if TYPE_CHECKING:
    from guildhall.core.yaml import Location, Source
    from guildhall.models.scripted.test_section import Case
    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.runs.record.queries import History


_MAX_DIFF_LINES = 60
_CONTEXT_LINES = 2


class Comparison:
    """The deviations of a run from its script, and the changes that would update the test file."""

    def __init__(self, script: Script, case: Case, history: History, normalizer: Normalizer) -> None:
        self.deviations: list[Deviation] = []
        self.changes: dict[Location, Any] = {}  # new values of fields; None removes a field
        self.can_update = True  # False if the changes do not remove all deviations
        self._script = script
        self._case = case
        self._history = history
        self._normalizer = normalizer

    def compare(self, run: str, *, stopped: bool) -> None:
        """Compare a run and its child runs with the script. If the run was stopped early, its end is not compared."""
        counted: dict[str, int] = defaultdict(int)
        tree = self._history.tree(run)
        if self._case.workflow is not None:
            self._compare_setup(self._history.journal(run))
            tree = tree[1:]
        for child in tree:
            self._compare_run(child, counted[child.worker], self._history.journal(child.id), stopped=stopped)
            counted[child.worker] += 1
            if child.error and child.error_code == ScriptExhausted.code:
                self._add_unfixable(child.error["message"], child.worker)
        for worker, runs in self._script.workers.items():
            if worker != ANY_WORKER and not self._script.repeat and counted[worker] < len(runs) and not stopped:
                text = f"number of runs changed: {len(runs)} recorded, now {counted[worker]}"
                self._add_unfixable(text, worker)
        self.can_update = self.can_update and not stopped
        if not stopped:
            self._compare_end(self._history.get(run))

    def _compare_setup(self, journal: Journal) -> None:
        commands = [entry.data.arguments or {} for entry in journal.all(ToolStarted)]
        if len(commands) != len(self._case.setup):
            text = f"number of setup commands changed: {len(self._case.setup)} recorded, now {len(commands)}"
            self.deviations.append(Deviation(text=text))
            self.can_update = False
        for number, (step, arguments) in enumerate(zip(self._case.setup, commands, strict=False)):
            for name in ("command", "variables"):
                recorded, now = getattr(step, name), self._normalizer.value(arguments[name])
                if recorded != now:
                    label = f"setup step {number + 1}: {name} changed"
                    texts = [value if name == "command" else _format_fields(value) for value in (recorded, now)]
                    self.deviations.append(Deviation(text=difference(label, *texts)))
                    self.changes["test", "setup", number, name] = now

    def _compare_run(self, run: Run, ordinal: int, journal: Journal, *, stopped: bool) -> None:
        if ordinal == 0:
            self._compare_prompt(run.worker, journal)
        answers = self._script.find_run(run.worker, ordinal) or []
        steps = [(index, answer) for index, answer in enumerate(answers) if answer.fail is None]
        asked = {entry.key: entry for entry in journal.all(ModelAsked)}
        for number, (index, answer) in enumerate(steps, 1):
            entry = asked.get(f"m{number}")
            if entry is None:
                if not stopped:
                    text = f"the run ended before answer {number} of {len(steps)} of the script"
                    self._add_unfixable(text, run.worker, ordinal, number)
                return
            self._compare_sent(
                run.worker, ordinal, index, number, answer, sent_texts(entry.data.message, self._normalizer)
            )

    def _compare_sent(
        self, worker: str, ordinal: int, index: int, number: int, answer: Answer, now: str | list[str]
    ) -> None:
        if answer.sent is None or answer.sent == now:
            return
        text = difference("input of the model changed", answer.sent, now)
        self.deviations.append(Deviation(text=text, worker=worker, run=ordinal + 1, answer=number))
        section = worker if worker in self._script.workers else ANY_WORKER
        run_count = len(self._script.workers[section])
        self.changes["workers", section, min(ordinal, run_count - 1), index, "sent"] = now

    def _compare_prompt(self, worker: str, journal: Journal) -> None:
        shown = self._case.shown.get(worker)
        if shown is None:
            return
        frozen = journal.assembly
        system = normalized_system_prompt(frozen, self._normalizer)
        if shown.system is not None and shown.system.rstrip() != system:
            text = difference("system prompt changed", shown.system.rstrip(), system)
            self.deviations.append(Deviation(text=text, worker=worker))
            self.changes["test", "shown", worker, "system"] = system
        tools = tool_fingerprints(frozen, OUTPUT_TOOL)
        if shown.tools is not None and shown.tools != tools:
            texts = ["\n".join(f"{name} {mark}" for name, mark in marks.items()) for marks in (shown.tools, tools)]
            text = difference("tools of the model changed", *texts)
            self.deviations.append(Deviation(text=text, worker=worker))
            self.changes["test", "shown", worker, "tools"] = tools

    def _compare_end(self, run: Run) -> None:
        now = expected_end(run, self._normalizer)
        case = self._case
        recorded: dict[str, Any] = {"status": case.status}
        if case.status == "completed" and "output" in case.model_fields_set:
            recorded["output"] = case.output
        elif case.status == "failed" and case.error is not None:
            recorded["error"] = case.error
        differing = {name for name in recorded if recorded[name] != now.get(name)}
        if not differing:
            return
        label = "status changed" if "status" in differing else "result changed"
        detail = run.error["message"] if run.error else None
        after = {**{name: now.get(name) for name in recorded}, **({"because": detail} if detail else {})}
        now_text = self._normalizer.text(_format_fields(after))
        self.deviations.append(Deviation(text=difference(label, _format_fields(recorded), now_text)))
        if run.status not in {"completed", "failed"}:
            self.can_update = False
        self.changes |= {("test", name): now.get(name) for name in {"status", "output", "error"} if name in now}
        self.changes |= {("test", name): None for name in ("output", "error") if name not in now}

    def _add_unfixable(self, text: str, worker: str, ordinal: int | None = None, number: int | None = None) -> None:
        """Add a deviation that an update of the test file cannot remove."""
        run = None if ordinal is None else ordinal + 1
        self.deviations.append(Deviation(text=text, worker=worker, run=run, answer=number))
        self.can_update = False


def difference(label: str, recorded: Any, now: Any) -> str:
    """Return the label and a diff. `-` marks recorded lines, `+` current lines."""
    lines = difflib.unified_diff(_lines(recorded), _lines(now), n=_CONTEXT_LINES, lineterm="")
    shown = ["..." if line.startswith("@@") else line for line in lines if not line.startswith(("---", "+++"))]
    omitted = [f"... {len(shown) - _MAX_DIFF_LINES} more lines"] if len(shown) > _MAX_DIFF_LINES else []
    return "\n".join([label, *shown[1:_MAX_DIFF_LINES], *omitted])


def _lines(value: Any) -> list[str]:
    if isinstance(value, list):
        return [line for number, part in enumerate(value, 1) for line in (f"({number})", *_lines(part))]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value).splitlines()


def _format_fields(fields: dict[str, Any]) -> str:
    """Return the fields as text. Values that are not text are formatted as JSON."""
    lines: list[str] = []
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines)


def update_file(source: Source, comparison: Comparison) -> bool:
    """Update a test file. Return False and leave the file unchanged if it cannot be updated.

    Single values are replaced, which keeps comments. If that fails, the whole file is rewritten.
    """
    if not comparison.can_update or not comparison.changes:
        return False
    expected = copy.deepcopy(source.data)
    for location, value in comparison.changes.items():
        _set(expected, location, value)
    texts = (_replace_values(source, comparison.changes), _rewrite(source, expected))
    text = yaml_writer.first_reading_as(expected, texts, source.path)
    if text is not None:
        replace_user_file(source.path, text)
    return text is not None


def _set(data: Any, location: Location, value: Any) -> None:
    for part in location[:-1]:
        data = data[part]
    if value is None:
        cast("dict[Any, Any]", data).pop(location[-1], None)
    else:
        data[location[-1]] = value


def _rewrite(source: Source, expected: Any) -> str:
    """Return the file as `guild script` would write it, with the comments from its top."""
    comments = takewhile(lambda line: line.startswith("#"), source.text.splitlines())
    return "".join(f"{line}\n" for line in comments) + dump(expected)


def _replace_values(source: Source, changes: dict[Location, Any]) -> str | None:
    """Return the text with single values replaced, or None if a change adds or removes a field."""
    tree = yaml_writer.compose(source.text)
    text = source.text
    spans = [(_span(tree, location), location[-1], value) for location, value in changes.items()]
    if any(span is None and value is not None for span, _, value in spans):
        return None
    found = [(span, name, value) for span, name, value in spans if span is not None]
    for (start, end, column), name, value in sorted(found, key=itemgetter(0), reverse=True):
        if value is None:
            return None
        indent = " " * column
        lines = list(field_lines(str(name), value, column))
        new = "\n".join([lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])])
        newline = f"\n{indent if end < len(text) else ''}" if text[start:end].endswith("\n") else ""
        text = f"{text[:start]}{new}{newline}{text[end:].lstrip(' ')}"
    return text


def _span(tree: Any, location: Location) -> tuple[int, int, int] | None:
    """Return the start and end of a field in the text and its column, or None if it is missing."""
    node, key = tree, None
    for part in location:
        if isinstance(part, int):
            node, key = node.value[part], None
            continue
        pair = next(((name, value) for name, value in node.value if name.value == part), None)
        if pair is None:
            return None
        key, node = pair
    return (key.start_mark.index, node.end_mark.index, key.start_mark.column) if key is not None else None
