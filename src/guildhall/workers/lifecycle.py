"""Worker life cycle: changes the status and the lock of a worker, and writes the starter file of a new worker.

The status changes from draft to active and from active to retired. It is a field of the worker file, and a change edits
only that field. A lock pins the digest of the file and does not depend on the status. Locks are stored by
`workers.records`.

Invariant: a locked worker is not changed, and it does not run if its digest differs from the pinned one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core import yaml, yaml_writer
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, Refused, UsageError, WorkerLocked, WorkerRetired
from guildhall.core.ids import NAME_RULE, is_name
from guildhall.workers.loader import load, load_definition
from guildhall.workers.model import Lock, Worker, WorkerListing

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.workers.definition import Status

Use = Literal["name", "star", "schedule", "dispatch"]

TRANSITIONS: Collection[tuple[Status, Status]] = (("draft", "active"), ("active", "retired"))
_BOM = "\ufeff"
_USE_TEXTS: Mapping[Use, str] = {"star": "through '*'", "schedule": "by a schedule", "dispatch": "by dispatch"}
_TEMPLATE = """\
# Every field is described in guildhall/workers/schema/worker.schema.json of the installed package.
name: {name}
description: Describe the purpose of this worker on one line
instructions: |
  You are {name}. Describe here how to work, what to watch for, and what a good answer looks like.
# model: anthropic:claude-sonnet-5-5    # default: --model, GUILDHALL_MODEL or your settings
# tools: [Read, Grep, Glob]             # built-in tools; default: none
# sandboxes:
#   notes: {{path: ./notes, mode: rw}}    # a folder that the worker can read and write
# tool_rules:
#   fs.write: {{approval_required: true}} # ask you before each write
# limits: {{max_turns: 50, max_budget_usd: 1.0, timeout: 30m}}
"""


def set_field(path: Path, field: str, value: str | bool) -> None:
    """Set a top-level field of a worker file."""
    source = yaml.read(path)
    data = {**cast("dict[str, Any]", source.data), field: value}
    text = yaml_writer.first_reading_as(data, _candidates(source, field, value), path)
    if text is None:
        hint = f"Set `{field}: {_yaml_text(value)}` in an editor."
        raise Conflict(f"cannot change `{field}` safely in this file", where=str(path), hint=hint)
    bom = _BOM if path.read_bytes().startswith(_BOM.encode()) else ""
    replace_user_file(path, bom + text)


def _candidates(source: yaml.Source, field: str, value: str | bool) -> Iterator[str]:
    """Yield new texts of the file with the field set, the smallest change first."""
    if source.path.suffix == ".json":
        yield _edit_json(source, field, value)
        return
    yield from _edit_yaml(source.text, field, value)
    yield yaml_writer.round_trip(source.text, lambda tree: tree.update({field: value}))


def _yaml_text(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _edit_json(source: yaml.Source, field: str, value: str | bool) -> str:
    indent = re.match(r"\s*\{[ \t]*\r?\n([ \t]+)", source.text)
    data = {**cast("dict[str, Any]", source.data), field: value}
    text = json.dumps(data, indent=indent[1] if indent else None, ensure_ascii=False)
    return text + ("\n" if source.text.endswith("\n") else "")


def _edit_yaml(text: str, field: str, value: str | bool) -> Iterator[str]:
    """Yield the text with the value replaced, or with a new line after the name or at the top."""
    mapping = yaml_writer.compose(text)
    nodes: dict[str, Any] = {key.value: node for key, node in mapping.value if isinstance(key.value, str)}
    new = _yaml_text(value)
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


def check_usable(worker: Worker, use: Use) -> None:
    """Raise an error unless the worker can be used in this way."""
    if worker.status == "retired":
        hint = "Use another worker, or copy the file under a new name."
        raise WorkerRetired(f"the worker {worker.name!r} is retired", where=worker.place, hint=hint)
    if worker.status == "draft" and use != "name":
        name = worker.path.stem if worker.scope != "package" else worker.name  # agents have other names
        message = f"the worker {name!r} is a draft and cannot be used {_USE_TEXTS[use]}"
        hint = f"Run it by its name, or promote it: guild worker set {name} active"
        raise Refused(message, where=worker.place, hint=hint)
    if worker.is_changed:
        message = f"the worker {worker.name!r} is locked, but its file was changed afterwards"
        hint = f"Restore the file, or accept the change: guild worker unlock {worker.name}"
        raise WorkerLocked(message, where=worker.place, hint=hint)


def set_status(worker: Worker, to: Status, *, even_if_locked: bool = False) -> Worker:
    """Promote a draft or retire an active worker. The current runs of a retired worker continue."""
    path = _writable_path(worker)
    if worker.is_locked and not even_if_locked:
        raise _locked_error(worker.name, worker.place)
    status = load_definition(path).status  # the file may have changed since the worker was loaded
    if (status, to) not in TRANSITIONS:
        raise _transition_error(worker, status, to)
    set_field(path, "status", to)
    changed = load(path, scope=worker.scope)
    return replace(changed, lock=replace(worker.lock, digest=changed.digest)) if worker.lock else changed


def make_lock(worker: Worker, at: str) -> Lock:
    """Return a lock of the current text of the worker. Raise Conflict if the worker is locked."""
    if worker.lock is not None:
        raise Conflict(f"cannot lock the worker {worker.name!r}: it is already locked", where=worker.place)
    path, is_requested = _writable_path(worker, edits=False), worker.definition.locked
    return Lock(path=path, digest=worker.digest, locked_at=at, is_requested=is_requested)


def requested_lock(worker: Worker, at: str) -> Lock | None:
    """Return the lock that `locked: true` requests. Return None without `locked: true` or with an existing lock."""
    if not worker.definition.locked or worker.lock is not None:
        return None
    return Lock(path=worker.path, digest=worker.digest, locked_at=at, is_requested=True)


def unlock(worker: Worker) -> Worker:
    """Remove `locked: true` from the worker file. The caller removes the stored lock."""
    path = _writable_path(worker, edits=worker.definition.locked)
    if not worker.is_locked:
        raise Conflict(f"cannot unlock the worker {worker.name!r}: it is not locked", where=worker.place)
    if worker.scope == "package":
        return replace(worker, lock=None)
    if load_definition(path).locked:
        set_field(path, "locked", False)
    return load(path, scope=worker.scope)


def new_worker(
    folder: Path,
    name: str,
    *,
    existing: Iterable[WorkerListing] = (),
    locks: Mapping[Path, Lock] | None = None,
    force: bool = False,
) -> Path:
    """Write a starter file into a `workers/` folder. Raise Conflict if the name would become ambiguous.

    `existing`: the reachable workers. `force`: overwrite the file, or use the name of a worker in another scope.
    """
    if not is_name(name):
        raise UsageError(f"invalid worker name {name!r}: {NAME_RULE}")
    path = folder.resolve() / f"{name}.yaml"
    if path in (locks or {}) and not force:
        raise _locked_error(name, str(path))
    if path.exists() and not force:
        raise Conflict(f"the worker {name!r} already exists", where=str(path), hint="Overwrite it with --force.")
    for listed in existing:
        if listed.name == name and listed.path.resolve() != path and (listed.scope == "project" or not force):
            hint = "Use another name." + (
                "" if listed.scope == "project" else f" Or add --force, and use project/{name}."
            )
            raise Conflict(f"the worker {name!r} already exists", where=str(listed.path), hint=hint)
    replace_user_file(path, _TEMPLATE.format(name=name))
    return path


def _writable_path(worker: Worker, *, edits: bool = True) -> Path:
    """Return the path of the worker file. Raise an error if it cannot be locked or, with `edits`, changed."""
    if worker.scope == "shipped":
        hint = "Copy it to workers/ of your project and change the copy."
        raise Refused(f"cannot edit the worker {worker.name!r}: it comes with Guildhall", where=worker.place, hint=hint)
    if worker.scope == "package" and edits:
        hint = "Edit the pyproject.toml of the package."
        raise Refused(f"cannot edit the worker {worker.name!r}: it is a package", where=worker.place, hint=hint)
    return worker.path


def _locked_error(name: str, place: str) -> WorkerLocked:
    hint = f"Unlock it first: guild worker unlock {name}"
    return WorkerLocked(f"cannot change the worker {name!r}: it is locked", where=place, hint=hint)


def _transition_error(worker: Worker, status: Status, to: Status) -> Conflict:
    if status == to:
        return Conflict(f"the worker {worker.name!r} is already {to}", where=worker.place)
    hints: Mapping[Status, str] = {
        "draft": f"Promote it first (guild worker set {worker.name} active), or delete the file.",
        "retired": "Copy the file under a new name: a retired worker stays retired.",
    }
    message = f"the worker {worker.name!r} is {status} and cannot become {to}"
    return Conflict(message, where=worker.place, hint=hints.get(status))
