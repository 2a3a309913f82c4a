"""Member registry: finds the members of a project and of the home, reads their code, and creates new members.

Does not run a member: `members.process` does.

Invariant: an existing folder is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, NotTrusted, ToolUnavailable, UsageError
from guildhall.core.ids import NAME_RULE, is_name
from guildhall.core.paths import Home, is_placeholder
from guildhall.core.text_checks import did_you_mean
from guildhall.members.manifest import Manifest
from guildhall.members.model import FOLDER, MANIFEST, Member, Scope
from guildhall.workers.code_trust import MAX_BYTES, MAX_FILES, Code, CodeFile, Trust, code_file, raise_unreadable

SHIPPED = Path(__file__).parent / "shipped"
_MAX_FOLDERS = 1_000
_NOT_FOUND_HINT = "Change to the folder of the member's project, or create a member: guild member new NAME"
# Folders of state, which is not executed.
_STATE_FOLDERS = ("jobs", "memory", "logs")
# The home of a member's own hall. Of its entries, only those below affect what is executed.
_HALL_HOME = ".guild"
_CODE_IN_HALL_HOME = frozenset({"config.yaml", "workers", "prompts", "toolboxes", "packages", FOLDER})
_SERVER = '''"""{name}: a member with one tool. Add more functions for more tools."""

from guildhall import Member

member = Member(__file__)


@member.tool
def greet(name: str) -> str:
    """Greet a person by name."""
    return f"Good day, {{name}}!"


if __name__ == "__main__":
    member.main()
'''


_MANIFEST: dict[str, Any] = {
    "name": "",
    "displayName": "",
    "description": "Describe the purpose of this member on one line",
    "version": "0.1.0",
    "transport": "http",
    "mcp": {"command": "${PYTHON}", "args": ["server.py", "--port", "${PORT}"]},
    "capabilities": [],
}


class MemberRegistry:
    """The members that can be reached from a project."""

    def __init__(self, root: Path, home: Home) -> None:
        self._folders: dict[Scope, Path] = {"project": root / FOLDER, "home": home.path / FOLDER}
        if root.resolve() == home.path.resolve():  # members of the home need no trust
            del self._folders["project"]

    def members(self) -> list[Member]:
        """Return all members: first those of the project, then those of the home."""
        return [member for scope, top in self._folders.items() for member in _iterate_members(scope, top)]

    def find(self, name: str) -> Member:
        """Return a member by NAME, project/NAME or home/NAME. Raise InvalidFile if its manifest is invalid."""
        scope, _, rest = name.rpartition("/")
        members = [member for member in self.members() if not scope or member.scope == scope]
        matching = [member for member in members if member.name == rest]
        if not matching:
            hint = did_you_mean(rest, {member.name for member in members}) or _NOT_FOUND_HINT
            raise NotFound(f"unknown member {name!r}", hint=hint)
        if len(matching) > 1:
            raise _ambiguous_error(name, matching)
        if matching[0].manifest is None:
            raise InvalidFile(f"invalid member {name!r}: {matching[0].error}")
        return matching[0]


def _iterate_members(scope: Scope, top: Path) -> Iterator[Member]:
    try:
        if not top.is_dir() or is_placeholder(top):
            return
        folders = sorted(path for path in top.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError as error:
        yield Member(name=top.name, scope=scope, folder=top, error=f"cannot read the folder: {error.strerror}")
        return
    for folder in folders[:_MAX_FOLDERS]:
        if (member := _read_member(scope, top, folder)) is not None:
            yield member


def _read_member(scope: Scope, top: Path, folder: Path) -> Member | None:
    """Return the member in a folder, or None if the folder has no manifest."""
    shown = folder.name if is_name(folder.name) else ascii(folder.name)
    try:
        if not (folder / MANIFEST).exists():
            return None
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return Member(name=shown, scope=scope, folder=folder, error=f"cannot read the folder: {error}")
    if scope == "project" and not real.is_relative_to(top.parent.resolve()):
        error = f"{folder} is a link out of the project, to {real}"
        return Member(name=shown, scope=scope, folder=folder, error=error)
    try:
        manifest = read_manifest(real)
    except GuildError as error:
        return Member(name=shown, scope=scope, folder=real, error=str(error))
    return Member(name=manifest.name, scope=scope, folder=real, manifest=manifest)


def _ambiguous_error(name: str, members: list[Member]) -> GuildError:
    lines = "\n".join(f"  {member.qualified_name}  {member.folder}" for member in members)
    message = f"{len(members)} members have the name {name!r}:\n{lines}"
    if len({member.scope for member in members}) == len(members):
        return Conflict(message, hint=f"Use {' or '.join(member.qualified_name for member in members)}.")
    return InvalidFile(message, hint="Change the `name` in one of the manifests.")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a member. Raise InvalidFile with file, line and field if the manifest is invalid."""
    return yaml.validate(Manifest, yaml.read(folder / MANIFEST))


def member_code(member: Member) -> Code:
    """Return the code of a member. A member in the home is trusted, so its files are not read."""
    root = member.folder.parent.parent
    if member.scope == "home":
        return Code(kind="member", name=member.name, root=root, files=(), is_own=True)
    files: list[CodeFile] = []
    size = 0
    for path in _iterate_code_files(member):
        files.append(code_file(path, root))
        size += len(files[-1].content)
        if len(files) > MAX_FILES or size > MAX_BYTES:
            message = f"cannot trust the member {member.name}: more than {MAX_FILES} files or {MAX_BYTES:,} bytes"
            hint = f"Remove files, or move the member to {FOLDER} of your home, which needs no trust."
            raise ToolUnavailable(message, where=str(member.folder), hint=hint)
    return Code(kind="member", name=member.name, root=root, files=tuple(files), folder=member.folder)


def trusted_code(trust: Trust, member: Member) -> Code:
    """Return the code of a member. Raise NotTrusted if the user does not trust it."""
    code = member_code(member)
    if not trust.is_trusted(code):
        message = f"the member {code.name} is {trust.describe_untrusted(code)}"
        raise NotTrusted(message, where=str(member.path), hint="Review and trust it: guild trust")
    return code


def _iterate_code_files(member: Member) -> Iterator[Path]:
    for parent, folders, files in os.walk(member.folder, onerror=raise_unreadable):
        folder = Path(parent)
        names = [name for name in sorted((*folders, *files)) if _is_code(folder, name, member)]
        if link := next((folder / name for name in names if name in folders and (folder / name).is_symlink()), None):
            hint = "Replace the link by a copy of the folder."
            raise ToolUnavailable("cannot trust a link to a folder", where=str(link), hint=hint)
        folders[:] = [name for name in names if name in folders]
        yield from (folder / name for name in names if name in files)


def _is_code(folder: Path, name: str, member: Member) -> bool:
    if folder == member.folder / _HALL_HOME:
        return name in _CODE_IN_HALL_HOME
    return name != "__pycache__" and not (folder == member.folder and name in _STATE_FOLDERS)


def templates() -> list[str]:
    """Return the names of the members that come with Guildhall."""
    return sorted(path.name for path in SHIPPED.glob("*") if (path / MANIFEST).is_file())


def new_member(root: Path, name: str, template: str | None = None) -> Path:
    """Create a member in `guild-members` of a project. `template`: a member that comes with Guildhall."""
    if not is_name(name):
        raise UsageError(f"invalid member name {name!r}: {NAME_RULE}")
    if template is not None and template not in templates():
        raise NotFound(f"unknown template {template!r}", hint=did_you_mean(template, templates()))
    folder = root / FOLDER / name
    if folder.exists() or folder.is_symlink():
        raise Conflict(
            f"cannot create the member: {folder} already exists", hint="Use another name, or remove the folder."
        )
    if template is None:
        folder.mkdir(parents=True)
        (folder / "server.py").write_text(_SERVER.format(name=name))
        manifest = _MANIFEST
    else:
        ignored = shutil.ignore_patterns(*_STATE_FOLDERS, _HALL_HOME, "__pycache__")
        shutil.copytree(SHIPPED / template, folder, ignore=ignored)
        manifest = json.loads((folder / MANIFEST).read_text())
    manifest = {**manifest, "name": name, "displayName": name.replace("-", " ").replace("_", " ").title()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return folder
