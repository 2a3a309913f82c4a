"""What a person trusts who trusts a member: every file of its folder but what it writes there itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import NotTrusted, ToolUnavailable
from guildhall.members.model import FOLDER
from guildhall.workers.code import Code, code_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from guildhall.members.model import Member
    from guildhall.workers.code import CodeFile
    from guildhall.workers.trust import Trust

# What a member writes: its state, which is data. Nothing of it is executed.
WRITTEN = frozenset({"jobs", "memory", "logs"})
# The home of a member's own hall is state too, but for what decides there.
_HOME = ".guild"
_DECIDING = frozenset({"config.yaml", "workers", "prompts", "toolboxes", "packages", FOLDER})
_MOST_FILES = 500
_MOST_BYTES = 5_000_000


def member_code(member: Member) -> Code:
    """The files of a member, read and not run. Those of a member in the home are the person's own."""
    root = member.folder.parent.parent
    if member.scope == "home":
        return Code(kind="member", name=member.name, root=root, files=(), own=True)
    files: list[CodeFile] = []
    size = 0
    for path in _files(member):
        files.append(code_file(path, root))
        size += len(files[-1].content)
        if len(files) > _MOST_FILES or size > _MOST_BYTES:
            raise ToolUnavailable(
                f"the member {member.name} has more than {_MOST_FILES} files, or {_MOST_BYTES:,} bytes",
                where=str(member.folder),
                hint="Nobody can look at so many. Put what it needs elsewhere, or the member into your home.",
            )
    return Code(kind="member", name=member.name, root=root, files=tuple(files), folder=member.folder)


def demand(trust: Trust, member: Member) -> Code:
    """The code of a member that may run; NotTrusted says why it may not."""
    code = member_code(member)
    if not trust.holds(code):
        message = f"the member {code.name} is {trust.why_not(code)}"
        raise NotTrusted(message, where=str(member.path), hint="Look at it, then: guild trust")
    return code


def _files(member: Member) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise ToolUnavailable(f"the folder cannot be read: {error.strerror or error}", where=error.filename)

    for place, folders, files in os.walk(member.folder, onerror=unreadable):
        here = Path(place)
        kept = [name for name in sorted((*folders, *files)) if name != "__pycache__" and _counts(here, name, member)]
        if link := next((here / name for name in kept if name in folders and (here / name).is_symlink()), None):
            raise ToolUnavailable("this is a link to a folder, in which anything could be", where=str(link))
        folders[:] = [name for name in kept if name in folders]
        yield from (here / name for name in kept if name in files)


def _counts(here: Path, name: str, member: Member) -> bool:
    if here == member.folder:
        return name not in WRITTEN
    return name in _DECIDING if here == member.folder / _HOME else True
