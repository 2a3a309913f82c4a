"""A worker's life: draft, active, retired, and a lock beside it.

    draft --promote--> active --retire--> retired        locked: yes | no, whatever the status

The status is in the file; a change of it edits that one field. The lock is a pin of the text in the database: what is
locked runs, and is neither changed nor, once its text differs from what was pinned, run. The functions here judge and
edit files; pins are stored by `records.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, Refused, UsageError, WorkerLocked, WorkerRetired
from guildhall.core.ids import is_name
from guildhall.workers.edit import set_field
from guildhall.workers.load import check_file, load
from guildhall.workers.model import Lock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.workers.definition import Status
    from guildhall.workers.model import Worker

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


def usable(worker: Worker, how: Use) -> None:
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
    if worker.changed:
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


def lock(worker: Worker, at: str) -> Lock:
    """The pin of the worker's text as it is now, to be stored."""
    if worker.lock is not None:
        raise Conflict(f"the worker {worker.name!r} is already locked", where=worker.place)
    return Lock(path=_path(worker, edits=False), digest=worker.digest, locked_at=at, wished=worker.definition.locked)


def wish(worker: Worker, at: str) -> Lock | None:
    """The pin that `locked: true` in the file asks for, where there is none yet. Stored at first sight."""
    if not worker.definition.locked or worker.lock is not None or worker.path is None:
        return None
    return Lock(path=worker.path, digest=worker.digest, locked_at=at, wished=True)


def unlock(worker: Worker) -> Worker:
    """Takes the wish for a lock out of the file, if it is there. The stored pin is dropped by the caller."""
    path = _path(worker, edits=worker.definition.locked)
    if not worker.locked:
        raise Conflict(f"the worker {worker.name!r} is not locked", where=worker.place)
    if worker.scope == "package":
        return replace(worker, lock=None)
    if check_file(path).locked:
        set_field(path, "locked", False)
    return load(path, scope=worker.scope)


def new(folder: Path, name: str, *, locks: Mapping[Path, Lock] | None = None, force: bool = False) -> Path:
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
    if worker.locked and not even_if_locked:
        raise _locked(worker.name, worker.place)
    status = check_file(path).status  # as it is now, not as it was when the worker was loaded
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
