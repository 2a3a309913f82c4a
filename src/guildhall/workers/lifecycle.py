"""Worker life cycle: changes the status and the lock of a worker, and writes the starter file of a new worker.

    draft --promote--> active --retire--> retired        locked: yes | no, independent of the status

The status is a field of the worker file, and a change edits only that field. The lock is a pin of the file's text in
the database. Does not store pins (see `workers.records`).

Invariant: a locked worker is not changed, and it does not run if its text differs from the pin.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core import yaml, yaml_edit
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, Refused, UsageError, WorkerLocked, WorkerRetired
from guildhall.core.ids import is_name
from guildhall.workers.loader import load, load_definition
from guildhall.workers.model import Lock, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from guildhall.workers.definition import Status


_BOM = "\ufeff"


def set_field(path: Path, field: str, value: str | bool) -> None:
    """Sets a top-level field of a worker file."""
    source = yaml.read(path)
    data = {**cast("dict[str, Any]", source.data), field: value}
    text = yaml_edit.first_reading_as(data, _candidates(source, field, value), path)
    if text is None:
        raise Conflict(
            f"{field}: the file is written in a way that cannot be changed safely",
            where=str(path),
            hint=f"Write `{field}: {_written(value)}` into it yourself.",
        )
    bom = _BOM if path.read_bytes().startswith(_BOM.encode()) else ""
    replace_user_file(path, bom + text)


def _candidates(source: yaml.Source, field: str, value: str | bool) -> Iterator[str]:
    """Yield new texts, the smallest change first."""
    if source.path.suffix == ".json":
        yield _json(source, field, value)
        return
    yield from _in_place(source.text, field, value)
    yield yaml_edit.round_trip(source.text, lambda tree: tree.update({field: value}))


def _written(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _json(source: yaml.Source, field: str, value: str | bool) -> str:
    indent = re.match(r"\s*\{[ \t]*\r?\n([ \t]+)", source.text)
    data = {**cast("dict[str, Any]", source.data), field: value}
    text = json.dumps(data, indent=indent[1] if indent else None, ensure_ascii=False)
    return text + ("\n" if source.text.endswith("\n") else "")


def _in_place(text: str, field: str, value: str | bool) -> Iterator[str]:
    """The text with the value replaced where it stands, or with a line of its own after the name, or at the top."""
    mapping = yaml_edit.compose(text)
    nodes: dict[str, Any] = {key.value: node for key, node in mapping.value if isinstance(key.value, str)}
    new = _written(value)
    if not mapping.value:
        return
    if field in nodes:
        start, end = nodes[field].start_mark.index, nodes[field].end_mark.index
        yield text[:start] + (new if end > start else f" {new}") + text[end:]
        return
    first = mapping.value[0][0].start_mark
    if mapping.flow_style:
        yield f"{text[: first.index]}{field}: {new}, {text[first.index :]}"
        return
    newline = "\r\n" if "\r\n" in text else "\n"
    line = f"{' ' * first.column}{field}: {new}{newline}"
    if "name" in nodes and (after := text.find("\n", nodes["name"].end_mark.index)) >= 0:
        yield text[: after + 1] + line + text[after + 1 :]
    yield text[: first.index - first.column] + line + text[first.index - first.column :]


Use = Literal["name", "star", "schedule", "dispatch"]

# From where to where, and the verb that does it. Nothing else is permitted.
TRANSITIONS: Mapping[tuple[Status, Status], str] = {("draft", "active"): "promote", ("active", "retired"): "retire"}

_TEMPLATE = """\
# What each field means: docs/worker-file.md
name: {name}
description: Say in a line what this worker is for
instructions: |
  You are {name}. Say here how to work, what to care about, and what a good answer looks like.
# model: anthropic:claude-sonnet-5-5    # not set: --model, GUILDHALL_MODEL or your settings decide
# tools: [Read, Grep, Glob]             # built-in tools; none are given that are not named
# sandboxes:
#   notes: {{path: ./notes, mode: rw}}    # a folder that it may read and write
# tool_rules:
#   fs.write: {{approval_required: true}} # you are asked before each write
# limits: {{max_turns: 50, max_budget_usd: 1.0, timeout: 30m}}
"""

_HOWS: Mapping[Use, str] = {"star": "through '*'", "schedule": "by a schedule", "dispatch": "by dispatch"}


def check_usable(worker: Worker, how: Use) -> None:
    """Raises unless the worker may be used in this way now."""
    if worker.status == "retired":
        raise WorkerRetired(
            f"the worker {worker.name!r} is retired and takes no new work",
            where=worker.place,
            hint="Use another worker, or make a copy of the file under a new name.",
        )
    if worker.status == "draft" and how != "name":
        raise Refused(
            f"the worker {worker.name!r} is a draft and is not reached {_HOWS[how]}",
            where=worker.place,
            hint=f"Run it by its name, or promote it: guild worker promote {worker.name}",
        )
    if worker.is_changed:
        raise WorkerLocked(
            f"the worker {worker.name!r} is locked, and its text is not what was locked",
            where=worker.place,
            hint=f"Restore the file, or accept the change: guild worker unlock {worker.name}",
        )


def promote(worker: Worker, *, even_if_locked: bool = False) -> Worker:
    """Makes a draft active."""
    return _move(worker, "active", even_if_locked)


def retire(worker: Worker, *, even_if_locked: bool = False) -> Worker:
    """Retires an active worker: it takes no new work, and what runs goes on."""
    return _move(worker, "retired", even_if_locked)


def make_lock(worker: Worker, at: str) -> Lock:
    """The pin of the worker's text as it is now, to be stored."""
    if worker.lock is not None:
        raise Conflict(f"the worker {worker.name!r} is already locked", where=worker.place)
    return Lock(
        path=_path(worker, edits=False), digest=worker.digest, locked_at=at, is_requested=worker.definition.locked
    )


def requested_lock(worker: Worker, at: str) -> Lock | None:
    """The pin that `locked: true` in the file asks for, where there is none yet. Stored at first sight."""
    if not worker.definition.locked or worker.lock is not None or worker.path is None:
        return None
    return Lock(path=worker.path, digest=worker.digest, locked_at=at, is_requested=True)


def unlock(worker: Worker) -> Worker:
    """Takes the wish for a lock out of the file, if it is there. The stored pin is dropped by the caller."""
    path = _path(worker, edits=worker.definition.locked)
    if not worker.is_locked:
        raise Conflict(f"the worker {worker.name!r} is not locked", where=worker.place)
    if worker.scope == "package":
        return replace(worker, lock=None)
    if load_definition(path).locked:
        set_field(path, "locked", False)
    return load(path, scope=worker.scope)


def new_worker(folder: Path, name: str, *, locks: Mapping[Path, Lock] | None = None, force: bool = False) -> Path:
    """Writes a starter file for a worker into a `workers/` folder. One that is there stays unless `force` says so."""
    if not is_name(name):
        raise UsageError(f"{name!r} cannot name a worker", hint="Use letters, digits, '_', '-' and '.'.")
    path = folder.resolve() / f"{name}.yaml"
    if path in (locks or {}) and not force:
        raise _locked(name, str(path))
    if path.exists() and not force:
        raise Conflict(f"there is already a worker {name!r}", where=str(path), hint="Use --force to overwrite it.")
    replace_user_file(path, _TEMPLATE.format(name=name))
    return path


def _move(worker: Worker, to: Status, even_if_locked: bool) -> Worker:
    path = _path(worker)
    if worker.is_locked and not even_if_locked:
        raise _locked(worker.name, worker.place)
    status = load_definition(path).status  # as it is now, not as it was when the worker was loaded
    if (status, to) not in TRANSITIONS:
        raise _not_permitted(worker, status, to)
    set_field(path, "status", to)
    moved = load(path, scope=worker.scope)
    return replace(moved, lock=replace(worker.lock, digest=moved.digest)) if worker.lock else moved


def _path(worker: Worker, *, edits: bool = True) -> Path:
    if worker.path is None:
        hint = "Write it to a file first."
        raise UsageError(f"the worker {worker.name!r} was built in Python and has no file", hint=hint)
    if worker.scope == "shipped":
        hint = "Copy it into your project's workers/ and change the copy."
        raise Refused(f"the worker {worker.name!r} comes with Guildhall", where=worker.place, hint=hint)
    if worker.scope == "package" and edits:
        hint = "Change its pyproject.toml yourself."
        raise Refused(f"the worker {worker.name!r} is a package, which is not edited", where=worker.place, hint=hint)
    return worker.path


def _locked(name: str, place: str) -> WorkerLocked:
    hint = f"Unlock it first: guild worker unlock {name}"
    return WorkerLocked(f"the worker {name!r} is locked and is not changed", where=place, hint=hint)


def _not_permitted(worker: Worker, status: Status, to: Status) -> Conflict:
    if status == to:
        return Conflict(f"the worker {worker.name!r} is already {to}", where=worker.place)
    hints: Mapping[Status, str] = {
        "draft": f"Promote it first (guild worker promote {worker.name}), or delete the file.",
        "retired": "A retired worker stays retired; copy the file under a new name.",
    }
    message = f"the worker {worker.name!r} is {status} and cannot become {to}"
    return Conflict(message, where=worker.place, hint=hints.get(status))
