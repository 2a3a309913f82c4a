"""The scaffold of `guild member new`: creates a member folder from a skeleton, or copies a shipped member.

Does not start or trust the new member (`service.py`).

Invariant: an existing folder is never changed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text import did_you_mean
from guildhall.members.model import FOLDER, MANIFEST
from guildhall.members.service import WRITTEN

if TYPE_CHECKING:
    from collections.abc import Collection

SHIPPED = Path(__file__).parent / "shipped"
_NOT_COPIED = (*WRITTEN, ".guild", "__pycache__")
_SERVER = '''"""{name}: a guild member with one tool. More are made by more functions."""

from guildhall import Member

member = Member(__file__)


@member.tool
def greet(who: str) -> str:
    """Greets somebody by name."""
    return f"Good day, {{who}}!"


if __name__ == "__main__":
    member.main()
'''


def templates() -> list[str]:
    """The members that come with Guildhall."""
    return sorted(path.name for path in SHIPPED.glob("*") if (path / MANIFEST).is_file()) if SHIPPED.is_dir() else []


def new_member(root: Path, name: str, template: str | None = None) -> Path:
    """A new folder in the project's `guild-members`; what is there already is never touched."""
    if not is_name(name):
        raise UsageError(f"{name!r} cannot be a name", hint="Use letters, digits, '_', '-' and '.', at most 64.")
    if template is not None and template not in templates():
        raise NotFound(f"there is no template {template!r}", hint=did_you_mean(template, templates()))
    folder = root / FOLDER / name
    if folder.exists() or folder.is_symlink():
        raise Conflict(f"{folder} is there already", hint="Choose another name, or remove it first.")
    if template is None:
        folder.mkdir(parents=True)
        (folder / "server.py").write_text(_SERVER.format(name=name))
        _write(folder, _manifest(name))
        return folder
    shutil.copytree(SHIPPED / template, folder, ignore=_left_out)
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    manifest |= {"name": name, "displayName": name.replace("-", " ").replace("_", " ").title()}
    _write(folder, manifest)
    return folder


def _left_out(folder: str, names: Collection[str]) -> set[str]:
    return {name for name in names if name in _NOT_COPIED}


def _manifest(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "displayName": name.replace("-", " ").replace("_", " ").title(),
        "description": "What it is for, in a line",
        "version": "0.1.0",
        "transport": "http",
        "mcp": {"command": "${PYTHON}", "args": ["server.py", "--port", "${PORT}"]},
        "capabilities": [],
    }


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
