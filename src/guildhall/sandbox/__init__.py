"""Sandbox: confines programs to the folders of a run, and gives tools file access that no link can redirect.

Above: tools, workers, runtimes, room, runs, projects and hall, which start programs and read files through it.
Below: core.
Does not decide permissions. Callers pass in the folders and the rules.

Invariant: a program or a path never reaches more than its view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.sandbox.files import Rooted as Rooted
    from guildhall.sandbox.files import Spot as Spot
    from guildhall.sandbox.glob import PathPattern as PathPattern
    from guildhall.sandbox.jail import Confined as Confined
    from guildhall.sandbox.jail import Kind as Kind
    from guildhall.sandbox.jail import available as available
    from guildhall.sandbox.jail import doorway as doorway
    from guildhall.sandbox.jail import spawn as spawn
    from guildhall.sandbox.loopback import Doorway as Doorway
    from guildhall.sandbox.mounts import Confinement as Confinement
    from guildhall.sandbox.view import Folder as Folder
    from guildhall.sandbox.view import View as View

__getattr__, __dir__ = lazy_exports(__name__, __file__)
