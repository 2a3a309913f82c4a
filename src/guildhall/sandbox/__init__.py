"""Sandbox: confines programs to the folders of a run, and gives tools file access that links cannot redirect.

Above: tools, workers, runtimes, room, runs, projects and hall, which start programs and read files through it.
Below: core.
Does not decide permissions. Callers pass in the folders and the rules.

Invariant: a program or a tool never reaches a path outside of its view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.sandbox.files import SandboxFiles as SandboxFiles
    from guildhall.sandbox.files import SandboxPath as SandboxPath
    from guildhall.sandbox.glob import PathPattern as PathPattern
    from guildhall.sandbox.jail import ConfinedProcess as ConfinedProcess
    from guildhall.sandbox.jail import Kind as Kind
    from guildhall.sandbox.jail import open_door as open_door
    from guildhall.sandbox.jail import spawn as spawn
    from guildhall.sandbox.jail import strongest_kind as strongest_kind
    from guildhall.sandbox.loopback import LoopbackDoor as LoopbackDoor
    from guildhall.sandbox.mounts import Confinement as Confinement
    from guildhall.sandbox.view import Folder as Folder
    from guildhall.sandbox.view import View as View

__getattr__, __dir__ = lazy_exports(__name__, __file__)
