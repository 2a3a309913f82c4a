"""Lazy exports: a package offers names without importing the modules that define them.

An `__init__` declares its public names once, for the type checker, and `lazy_exports` resolves them on first use:

    if TYPE_CHECKING:
        from guildhall.runs.model import Answer as Answer

    __getattr__, __dir__ = lazy_exports(__name__, __file__)

Does not export names without `as`: these are imports for annotations.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

_EXPORT = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the package whose `__init__` is `file`."""
    modules: dict[str, str] = {}

    def names() -> list[str]:
        if not modules:
            from pathlib import Path

            text = Path(file).read_text(encoding="utf-8")
            modules.update({name: module for module, name in _EXPORT.findall(text)})
        return sorted(modules)

    def get(name: str) -> Any:
        if name == "__all__":
            return names()
        if name.startswith("_") or name not in names():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return get, names
