"""Member folders: finds the members of a project and of the home, reads their code, and creates new members.

A name is looked up in the project's `guild-members` folder and in the home's. `project/name` and `home/name` select a
folder. Does not run a member (`process.py`).

Invariant: an existing folder is never changed.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, NotTrusted, ToolUnavailable, UsageError
from guildhall.core.ids import is_name
from guildhall.core.paths import Home, stands_in
from guildhall.core.text import did_you_mean
from guildhall.members.manifest import Manifest
from guildhall.members.model import FOLDER, MANIFEST, Member, Scope
from guildhall.workers.code import MAX_BYTES, MAX_FILES, Code, CodeFile, Trust, code_file, raise_unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIPPED = Path(__file__).parent / "shipped"
_MAX_FOLDERS = 1_000  # that are looked at
_HOW_TO_FIND = "One of a project is found from that project's folder alone. To make one: guild member new NAME."
# The state that a member writes. None of it is executed.
_STATE = ("jobs", "memory", "logs")
# The home of a member's own hall is state too, except for these.
_HOME = ".guild"
_DECIDING = frozenset({"config.yaml", "workers", "prompts", "toolboxes", "packages", FOLDER})
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


_MANIFEST: dict[str, Any] = {
    "name": "",
    "displayName": "",
    "description": "What it is for, in a line",
    "version": "0.1.0",
    "transport": "http",
    "mcp": {"command": "${PYTHON}", "args": ["server.py", "--port", "${PORT}"]},
    "capabilities": [],
}


class MemberRegistry:
    """The members that can be reached from a project."""

    def __init__(self, root: Path, home: Home) -> None:
        self._folders: dict[Scope, Path] = {"project": root / FOLDER, "home": home.path / FOLDER}
        if root.resolve() == home.path.resolve():  # what lies there the person has put there
            del self._folders["project"]

    def members(self) -> list[Member]:
        """Return every member in the order of look-up, the invalid ones with their error."""
        return [member for scope, top in self._folders.items() for member in _members(scope, top)]

    def find(self, name: str) -> Member:
        """Return the member of a name, or of `project/name` or `home/name`. Raise InvalidFile if it is not valid."""
        scope, _, rest = name.rpartition("/")
        everyone = [member for member in self.members() if not scope or member.scope == scope]
        found = [member for member in everyone if member.name == rest]
        if not found:
            hint = did_you_mean(rest, {member.name for member in everyone}) or _HOW_TO_FIND
            raise NotFound(f"there is no member {name!r}", hint=hint)
        if len(found) > 1:
            raise _ambiguous(name, found)
        if found[0].manifest is None:
            raise InvalidFile(f"the member {name!r} cannot be used: {found[0].error}")
        return found[0]


def _members(scope: Scope, top: Path) -> Iterator[Member]:
    try:
        if not top.is_dir() or stands_in(top):
            return
        folders = sorted(path for path in top.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError as error:
        yield Member(name=top.name, scope=scope, folder=top, error=f"the folder cannot be read: {error.strerror}")
        return
    for folder in folders[:_MAX_FOLDERS]:
        if (found := _member(scope, top, folder)) is not None:
            yield found


def _member(scope: Scope, top: Path, folder: Path) -> Member | None:
    """Return the member in a folder, or None if the folder has no manifest."""
    shown = folder.name if is_name(folder.name) else ascii(folder.name)
    try:
        if not (folder / MANIFEST).exists():
            return None
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return Member(name=shown, scope=scope, folder=folder, error=f"the folder cannot be read: {error}")
    if scope == "project" and not real.is_relative_to(top.parent.resolve()):
        error = f"{folder}: this is a link out of the project, to {real}"
        return Member(name=shown, scope=scope, folder=folder, error=error)
    try:
        manifest = read_manifest(real)
    except GuildError as error:
        return Member(name=shown, scope=scope, folder=real, error=str(error))
    return Member(name=manifest.name, scope=scope, folder=real, manifest=manifest)


def _ambiguous(name: str, found: list[Member]) -> GuildError:
    places = "\n".join(f"  {one.qualified_name}  {one.folder}" for one in found)
    if len({one.scope for one in found}) == len(found):
        hint = f"Say which one: {' or '.join(one.qualified_name for one in found)}."
        return Conflict(f"there are {len(found)} members named {name!r}:\n{places}", hint=hint)
    hint = "Change the `name` in one of the manifests."
    return InvalidFile(f"there are {len(found)} members named {name!r} in one folder:\n{places}", hint=hint)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a member. Raise InvalidFile with file, line and field if it is not valid."""
    return yaml.validate(Manifest, yaml.read(folder / MANIFEST))


def member_code(member: Member) -> Code:
    """Return the files of a member. A member in the home is the user's own, and its files are not read."""
    root = member.folder.parent.parent
    if member.scope == "home":
        return Code(kind="member", name=member.name, root=root, files=(), is_own=True)
    files: list[CodeFile] = []
    size = 0
    for path in _files(member):
        files.append(code_file(path, root))
        size += len(files[-1].content)
        if len(files) > MAX_FILES or size > MAX_BYTES:
            raise ToolUnavailable(
                f"the member {member.name} has more than {MAX_FILES} files, or {MAX_BYTES:,} bytes",
                where=str(member.folder),
                hint="Nobody can look at so many. Put what it needs elsewhere, or the member into your home.",
            )
    return Code(kind="member", name=member.name, root=root, files=tuple(files), folder=member.folder)


def trusted_code(trust: Trust, member: Member) -> Code:
    """Return the code of a member. Raise NotTrusted if it may not run."""
    code = member_code(member)
    if not trust.is_trusted(code):
        message = f"the member {code.name} is {trust.describe_untrusted(code)}"
        raise NotTrusted(message, where=str(member.path), hint="Look at it, then: guild trust")
    return code


def _files(member: Member) -> Iterator[Path]:
    for place, folders, files in os.walk(member.folder, onerror=raise_unreadable):
        here = Path(place)
        kept = [name for name in sorted((*folders, *files)) if name != "__pycache__" and _counts(here, name, member)]
        if link := next((here / name for name in kept if name in folders and (here / name).is_symlink()), None):
            raise ToolUnavailable("this is a link to a folder, in which anything could be", where=str(link))
        folders[:] = [name for name in kept if name in folders]
        yield from (here / name for name in kept if name in files)


def _counts(here: Path, name: str, member: Member) -> bool:
    if here == member.folder:
        return name not in _STATE
    return name in _DECIDING if here == member.folder / _HOME else True


def templates() -> list[str]:
    """Return the names of the members that come with Guildhall."""
    return sorted(path.name for path in SHIPPED.glob("*") if (path / MANIFEST).is_file())


def new_member(root: Path, name: str, template: str | None = None) -> Path:
    """Create a member in the project's `guild-members`, from a skeleton or from a member that comes with Guildhall."""
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
        manifest = _MANIFEST
    else:
        shutil.copytree(SHIPPED / template, folder, ignore=shutil.ignore_patterns(*_STATE, _HOME, "__pycache__"))
        manifest = json.loads((folder / MANIFEST).read_text())
    manifest = {**manifest, "name": name, "displayName": name.replace("-", " ").replace("_", " ").title()}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return folder
