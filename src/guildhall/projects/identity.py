"""Repository identity: maps project names to repositories, and archives the records of reassigned names.

An id in the git directory (`guildhall-id`) identifies a repository: it moves with the repository, and a clone has none.
A copy of a repository gets a new id while the original exists.
Does not read config.yaml (`registry.py`).

Invariant: records and checkouts, stored by project name, return when their repository is registered again.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import GuildError
from guildhall.projects.git import repository as program
from guildhall.projects.records import aside, put_aside, take_back

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.projects.model import Project
    from guildhall.store.engine import Store

_FILE = "guildhall-id"  # in the git directory: it moves with the repository, and a clone has none
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The repository that a name stood for when it was last looked at."""

    id: str
    path: str
    commit: str  # that it has


class Identities:
    """Binds project names to repositories."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._one_at_a_time = threading.Lock()

    def claim(self, project: Project) -> None:
        """Bind the name to this repository, with the records of this repository and of no other."""
        with self._one_at_a_time:
            common = program.common_directory(project.path)
            known = self._known(project.name)
            own = self._identify(project, common, known)
            if known is not None and known.id == own:
                if known.path != str(project.path):  # it was moved
                    self._remember(project, own)
                return
            if known is not None:
                self._put_aside(project.name, known.id)
            self._take_back(project.name, own)
            self._remember(project, own)

    def release(self, name: str, project: Project | None) -> None:
        """Unbind a name, and archive its records. `project` is None if its entry is invalid."""
        with suppress(GuildError, OSError):  # its folder may be gone
            if project is not None:
                self.claim(project)
        with self._one_at_a_time:
            known = self._known(name)
            self._put_aside(name, known.id if known else secrets.token_hex(8))

    def is_at(self, name: str, path: Path) -> bool:
        """Return True if the repository in a folder is bound to a name."""
        known = self._known(name)
        return known is not None and known.id == _own(program.common_directory(path))

    # how

    def _identify(self, project: Project, common: Path, known: _Known | None) -> str:
        own = _own(common)
        if not own or self._is_copy(own, project.path, common):
            same = not own and known is not None and _is_same(project, known)
            own = known.id if known is not None and same else secrets.token_hex(8)
            replace_user_file(common / _FILE, f"{own}\n")
        return own

    def _is_copy(self, own: str, path: Path, common: Path) -> bool:
        """Return True if the original with this id still exists in another folder."""
        every = (self._known(place.parent.name) for place in self._records.glob("*/repository.json"))
        known = [Path(one.path) for one in every if one is not None and one.id == own]
        if path in known:
            return False
        there: set[Path] = set()
        for one in known:
            with suppress(GuildError, OSError):
                there.add(program.common_directory(one))
        return common not in there and own in map(_own, there)

    def _put_aside(self, name: str, id: str) -> None:
        self._store.submit(lambda connection: put_aside(connection, name, id)).result()
        shutil.rmtree(self._home.desks / name, ignore_errors=True)
        for folder in (self._home.worktrees, self._records):  # the mark is in the last: what is cut off is done again
            if (folder / name).is_dir():
                _rename(folder / name, folder / aside(name, id))

    def _take_back(self, name: str, id: str) -> None:
        self._store.submit(lambda connection: take_back(connection, name, id)).result()
        for folder in (self._home.worktrees, self._records):
            for there in sorted(folder.glob(aside("*", id))):
                if not (folder / name).exists():
                    _rename(there, folder / name)

    @property
    def _records(self) -> Path:
        return self._home.path / "projects"

    def _known(self, name: str) -> _Known | None:
        try:
            fields: dict[str, Any] = json.loads((self._records / name / "repository.json").read_text())
            known = _Known(**{key: str(fields[key]) for key in ("id", "path", "commit")})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return known if _ID.fullmatch(known.id) else None

    def _remember(self, project: Project, id: str) -> None:
        commit = program.ask(project.path, "rev-parse", "--verify", "--quiet", project.ref, ok=(0, 1, 128)).line
        known = _Known(id=id, path=str(project.path), commit=commit)
        folder = self._records / project.name
        folder.mkdir(parents=True, exist_ok=True)
        replace_user_file(folder / "repository.json", json.dumps(vars(known), indent=1) + "\n")


def _own(common: Path) -> str:
    """Return the id in a git directory, or an empty text."""
    place = common / _FILE
    told = place.read_text(errors="replace").strip() if place.is_file() else ""
    return told if _ID.fullmatch(told) else ""


def _is_same(project: Project, known: _Known) -> bool:
    """Return True if the repository is a new clone, in the same place, of the one before."""
    if not known.commit or known.path != str(project.path):
        return False
    return program.ask(project.path, "cat-file", "-e", f"{known.commit}^{{commit}}", ok=(0, 1, 128)).code == 0


def _rename(there: Path, to: Path) -> None:
    if to.is_dir():  # an earlier one was cut off, or its records came twice: neither is lost
        to = to.with_name(f"{to.name}~{secrets.token_hex(4)}")
    there.rename(to)
