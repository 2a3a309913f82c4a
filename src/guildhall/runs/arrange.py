"""What a run has to work with: its view of the disk, its tools in the order that the model sees, its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runs.create import may_create
from guildhall.runs.model import Bounds
from guildhall.tools.builtin import BUILT_IN, built_in_tools
from guildhall.tools.model import Folder, View
from guildhall.tools.rooted import settled
from guildhall.tools.sandboxes import sandbox_tools

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.runs.model import RunRequest
    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


def view_of(worker: Worker, folders: Iterable[Folder], frame: Frame, home: Home, locked: Iterable[Path] = ()) -> View:
    """The worker's sandboxes; and, to be read only, the project that it works in if it has tools that look at files.

    An agent may write in its working folder, with the tools that it has for that. What decides what runs may do is
    kept, and so are the files of `locked` workers.
    """
    folders = tuple(folders)
    can = frozenset[str]().union(*(BUILT_IN[name] for name in worker.definition.tools))
    if not can.isdisjoint({"fs.read", "proc.exec"}):
        folders = (Folder(path=frame.root), *folders)
    if worker.workdir is not None and not can.isdisjoint({"fs.read", "fs.write", "proc.exec"}):
        others = tuple(folder for folder in folders if folder != Folder(path=worker.workdir))
        folders = (Folder(path=worker.workdir, writable="fs.write" in can), *others)
    kept = (*worker.deciding(frame), *locked)
    return settled(View(cwd=worker.workdir or frame.cwd, folders=folders, hidden=(home.path,), kept=kept))


def kept_in(view: View) -> tuple[Path, ...]:
    """What a run could write if it were not kept, without what lies below another such path."""
    writable = [folder.path for folder in view.folders if folder.writable]
    out = (*view.hidden, *writable)
    found = [path for path in view.kept if any(folder in path.parents for folder in writable) and path not in out]
    seen = [path for path in found if not any(one in path.parents for one in view.hidden)]
    return tuple(path for path in seen if not any(other in path.parents for other in seen))


def tools_of(
    worker: Worker,
    surroundings: Surroundings,
    *,
    system: Sequence[Tool],
    toolboxes: Mapping[str, Sequence[Tool]],
    without: Iterable[str] = (),
) -> tuple[Tool, ...]:
    """Exactly: system tools, sandbox tools, declared toolboxes, declared built-ins (`without` some)."""
    tools = [*system]
    if worker.definition.sandboxes:
        tools += sandbox_tools(surroundings.view)
    for name in worker.definition.toolboxes:
        tools += toolboxes.get(name, ())
    declared = [name for name in worker.definition.tools if name not in without]
    return (*tools, *built_in_tools(declared, surroundings))


def permitted(tools: Iterable[Tool], forbidden: Collection[str]) -> dict[str, frozenset[str]]:
    """The tools that the `forbidden` names and capabilities leave, each with what it can do to the world."""
    left = (tool for tool in tools if tool.name not in forbidden and tool.capabilities.isdisjoint(forbidden))
    return {tool.name: tool.capabilities for tool in left}


def keeps_budget(worker: Worker, *, priced: bool) -> bool:
    """Whether the settings' budget applies: without a price it could not be kept, except for those that it calls."""
    return priced or bool(worker.definition.allow_workers) or may_create(worker)


def bounds_of(
    worker: Worker,
    settings: Settings,
    request: RunRequest | None = None,
    *,
    priced: bool = True,
    called: bool = False,
) -> Bounds:
    """What a run may use up. The settings' budget does not apply to a model without a price: it could not be kept.

    Nor does it to a run that another one `called`: it is that one's already.
    """
    limits = worker.definition.limits
    asked = {} if request is None else {name: value for name, value in vars(request).items() if value is not None}
    return Bounds(
        max_turns=asked.get("max_turns", limits.max_turns),
        max_tokens=asked.get("max_tokens", limits.max_tokens),
        max_budget_usd=asked.get("max_budget_usd", limits.max_budget_usd),
        timeout=limits.timeout,
        budget=asked.get("budget", settings.budget if priced and not called else None),
    )
