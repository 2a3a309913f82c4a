"""Repository identity: maps project names to repositories, and archives the records of reassigned names.

The file `guildhall-id` in the git directory identifies a repository. It moves with the repository, and a clone has
none. A copy of a repository gets a new id while the original exists.
Does not read config.yaml (`registry.py`).

Invariant: records and checkouts of a repository are restored when the repository is registered again.
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
from guildhall.projects.activity_records import archive_key, archive_project, restore_project
from guildhall.projects.git import repository

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.projects.model import Project
    from guildhall.store.engine import Store

_ID_FILE = "guildhall-id"  # in the git directory
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class _Binding:
    """The repository that a project name was last bound to."""

    id: str
    path: str
    commit: str  # of the user's branch, or empty if the branch had no commit


class Identities:
    """Binds project names to repositories."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store
        self._lock = threading.Lock()

    def claim(self, project: Project) -> None:
        """Bind a project's name to its repository. Archive the records of another repository with this name."""
        with self._lock:
            common = repository.common_directory(project.path)
            binding = self._read_binding(project.name)
            id = self._identify(project, common, binding)
            if binding is not None and binding.id == id:
                if binding.path != str(project.path):  # the repository was moved
                    self._write_binding(project, id)
                return
            if binding is not None:
                self._archive(project.name, binding.id)
            self._restore(project.name, id)
            self._write_binding(project, id)

    def release(self, name: str, project: Project | None) -> None:
        """Unbind a name, and archive its records. `project` is None if its entry is invalid."""
        with suppress(GuildError, OSError):  # the folder of the project may be missing
            if project is not None:
                self.claim(project)
        with self._lock:
            binding = self._read_binding(name)
            self._archive(name, binding.id if binding else secrets.token_hex(8))

    def is_bound(self, name: str, path: Path) -> bool:
        """Return True if a name is bound to the repository in a folder."""
        binding = self._read_binding(name)
        return binding is not None and binding.id == _read_id(repository.common_directory(path))

    def _identify(self, project: Project, common: Path, binding: _Binding | None) -> str:
        """Return the id of a repository. Write a new id if the repository has no id or is a copy."""
        id = _read_id(common)
        if not id or self._is_copy(id, project.path, common):
            is_clone = not id and binding is not None and _is_new_clone(project, binding)
            id = binding.id if binding is not None and is_clone else secrets.token_hex(8)
            replace_user_file(common / _ID_FILE, f"{id}\n")
        return id

    def _is_copy(self, id: str, path: Path, common: Path) -> bool:
        """Return True if the original with this id still exists in another folder."""
        bindings = (self._read_binding(file.parent.name) for file in self._records.glob("*/repository.json"))
        paths = [Path(binding.path) for binding in bindings if binding is not None and binding.id == id]
        if path in paths:
            return False
        originals: set[Path] = set()
        for other in paths:
            with suppress(GuildError, OSError):
                originals.add(repository.common_directory(other))
        return common not in originals and id in map(_read_id, originals)

    def _archive(self, name: str, id: str) -> None:
        self._store.submit(lambda connection: archive_project(connection, name, id)).result()
        shutil.rmtree(self._home.git_dirs / name, ignore_errors=True)
        for folder in (self._home.worktrees, self._records):  # the binding last, for a repeat after a crash
            if (folder / name).is_dir():
                _rename(folder / name, folder / archive_key(name, id))

    def _restore(self, name: str, id: str) -> None:
        self._store.submit(lambda connection: restore_project(connection, name, id)).result()
        for folder in (self._home.worktrees, self._records):
            for archived in sorted(folder.glob(archive_key("*", id))):
                if not (folder / name).exists():
                    _rename(archived, folder / name)

    @property
    def _records(self) -> Path:
        return self._home.path / "projects"

    def _read_binding(self, name: str) -> _Binding | None:
        try:
            fields: dict[str, Any] = json.loads((self._records / name / "repository.json").read_text())
            binding = _Binding(**{key: str(fields[key]) for key in ("id", "path", "commit")})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return binding if _ID.fullmatch(binding.id) else None

    def _write_binding(self, project: Project, id: str) -> None:
        result = repository.run_git(project.path, "rev-parse", "--verify", "--quiet", project.ref, ok=(0, 1, 128))
        binding = _Binding(id=id, path=str(project.path), commit=result.text)
        folder = self._records / project.name
        folder.mkdir(parents=True, exist_ok=True)
        replace_user_file(folder / "repository.json", json.dumps(vars(binding), indent=1) + "\n")


def _read_id(common: Path) -> str:
    """Return the id in a git directory, or an empty string."""
    file = common / _ID_FILE
    text = file.read_text(errors="replace").strip() if file.is_file() else ""
    return text if _ID.fullmatch(text) else ""


def _is_new_clone(project: Project, binding: _Binding) -> bool:
    """Return True if a repository is a new clone, in the same folder, of the bound repository."""
    if not binding.commit or binding.path != str(project.path):
        return False
    commit = f"{binding.commit}^{{commit}}"
    return repository.run_git(project.path, "cat-file", "-e", commit, ok=(0, 1, 128)).code == 0


def _rename(folder: Path, target: Path) -> None:
    if target.is_dir():  # an earlier rename was interrupted: keep both
        target = target.with_name(f"{target.name}~{secrets.token_hex(4)}")
    folder.rename(target)
