"""Worker registry: finds and lists workers, and chooses the model of a run.

The registry searches `workers/` of the project, `workers/` of the home, the packages of the home, and the shipped
workers. Worker files are parsed by `workers.loader`.

Invariant: a name that matches several files is an error, never a silent choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.core.config import Settings, resolve_script_path
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NoModel, NotFound
from guildhall.core.text_checks import did_you_mean
from guildhall.workers.home_packages import Packages, package_worker, sorted_entries
from guildhall.workers.loader import WORKER_SUFFIXES, load, load_definition
from guildhall.workers.model import GENERATED, WORKERS, Lock, Scope, Worker, WorkerListing
from guildhall.workers.package import PROJECT_FILE, is_toolbox_only, read_package

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame


SHIPPED = Path(__file__).parent / "shipped"
_INTERNAL = "internal"  # folder of workers that only the hall runs; they are found by name and never listed
FILE_SUFFIXES = (*WORKER_SUFFIXES, PROJECT_FILE)


class Registry:
    """The workers that can be reached from a project."""

    def __init__(
        self, root: Path, home: Home, *, locks: Mapping[Path, Lock] | None = None, shipped: Path = SHIPPED
    ) -> None:
        self._folders: dict[Scope, Path] = {
            "project": root / WORKERS,
            "home": home.workers,
            "package": home.packages,
            "shipped": shipped,
        }
        self._packages = Packages(home)
        self._locks = locks or {}

    def find(self, name: str, cwd: Path) -> Worker:
        """Return a worker by name, by scope and name (`project/name`), or by the path of its file from `cwd`."""
        if name.endswith(FILE_SUFFIXES):
            return self._load_file(cwd / name)
        scope, _, rest = name.rpartition("/")
        if scope and scope not in self._folders:
            places = ", ".join(f"{place}/{rest}" for place in self._folders)
            suffixes = ", ".join(WORKER_SUFFIXES)
            hint = f"Use the name alone, one of {places}, or the path of a file that ends in {suffixes}."
            raise NotFound(f"unknown worker {name!r}", hint=hint)
        workers = [found for found in self._files() if not scope or found.scope == scope]
        matching = [found for found in workers if found.name == rest]
        if not matching and scope in ("", "package") and is_toolbox_only(self._folders["package"] / rest):
            hint = f"To use its tools, add them to a worker file: toolboxes: [{rest}]"
            raise NotFound(f"the package {rest!r} is a toolbox, not a worker", hint=hint)
        internal = {path.stem: path for path in (self._folders["shipped"] / _INTERNAL).glob("*.yaml")}
        if not matching and scope in ("", "shipped") and rest in internal:
            return self._load(internal[rest], "shipped")
        if not matching:
            usable = {found.name for found in map(self._complete, workers) if found.error is None}
            hint = did_you_mean(rest, usable) or "Create one: guild worker new NAME"
            if not (folder := self._folders["project"]).is_dir():
                hint += f" There is no folder {folder}. Is this your project? Create one: guild init"
            raise NotFound(f"unknown worker {name!r}", hint=hint)
        if len(matching) > 1:
            raise _ambiguous(name, matching)
        return self._load(matching[0].path, matching[0].scope)

    def listings(self) -> list[WorkerListing]:
        """Return all workers. Invalid workers have an error."""
        return [self._complete(found) for found in self._files()]

    def _load_file(self, path: Path) -> Worker:
        if not path.exists():
            neighbours = {other.name for other in path.parent.glob("*") if other.name.endswith(WORKER_SUFFIXES)}
            raise NotFound("file not found", where=str(path), hint=did_you_mean(path.name, neighbours))
        path = path.parent.resolve() / path.name
        if path.name == PROJECT_FILE:
            return self._load_package(path)
        for scope in ("home", "shipped"):
            if path.is_relative_to(self._folders[scope].resolve()):
                return self._load(path, scope)
        return self._load(path, "project")

    def _load_package(self, path: Path) -> Worker:
        if path.parent.parent != self._folders["package"].resolve():
            hint = f"Review it, then add it: guild package add {path.parent}"
            raise NotFound("this package was not added to your home", where=str(path), hint=hint)
        return self._load(self._folders["package"] / path.parent.name / path.name, "package")

    def _load(self, path: Path, scope: Scope) -> Worker:
        if scope == "package":
            return package_worker(read_package(path.parent), self._lock(path))
        return load(path, scope=scope, lock=self._lock(path))

    def _lock(self, path: Path) -> Lock | None:
        return self._locks.get(path) or self._locks.get(path.resolve())

    def _complete(self, found: WorkerListing) -> WorkerListing:
        """Return the listing with the fields of the worker file, or with the error of an invalid file."""
        is_locked = self._lock(found.path) is not None
        try:
            in_package = found.scope == "package"
            definition = self._load(found.path, found.scope).definition if in_package else load_definition(found.path)
        except GuildError as error:
            return replace(found, locked=is_locked, error=str(error))
        is_locked |= definition.locked
        return replace(found, status=definition.status, locked=is_locked, description=definition.description)

    def _files(self) -> Iterator[WorkerListing]:
        """Yield all worker files in the order of the search. A folder of two scopes is listed once."""
        known: set[Path] = set()
        for scope, top in self._folders.items():
            if scope == "package":
                for folder in self._packages.worker_folders():
                    yield WorkerListing(name=folder.name, scope=scope, path=folder / PROJECT_FILE)
                continue
            for folder in (top, top / GENERATED):
                if not folder.is_dir() or (real := folder.resolve()) in known:
                    continue
                known.add(real)
                for path in sorted_entries(real):
                    if path.name.endswith(WORKER_SUFFIXES) and not path.name.startswith(".") and path.is_file():
                        yield WorkerListing(name=path.stem, scope=scope, path=path)


def _ambiguous(name: str, found: list[WorkerListing]) -> GuildError:
    lines = "\n".join(f"  {worker.scope}/{worker.name}  {worker.path}" for worker in found)
    if len({worker.scope for worker in found}) == len(found):
        hint = f"Use {' or '.join(f'{worker.scope}/{worker.name}' for worker in found)}."
        return Conflict(f"{len(found)} workers have the name {name!r}:\n{lines}", hint=hint)
    hint = "Keep one of the files, or use the path of a file."
    return InvalidFile(f"{len(found)} files define the worker {name!r}:\n{lines}", hint=hint)


ModelSource = Literal["override", "worker", "caller", "frame", "settings"]
MODEL_OPTION = "--model provider:model"
MODEL_CONFIG = """--config '{"model": "provider:model"}'"""
# A member does not receive the options and variables of its caller.
_MEMBER_HINT = f"Dispatch with {MODEL_CONFIG}, or set `model:` in the worker file or in your settings."


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A model and the source that named it."""

    model: str
    by: ModelSource


def choose_model(
    worker: Worker,
    frame: Frame,
    settings: Settings,
    *,
    caller: str | None = None,
    override: str | None = None,
    model_option: str = MODEL_OPTION,
) -> ModelChoice:
    """Return the model of a run. The path of a script is relative to the worker file or the current folder.

    `model_option`: the option of the command, for the error.
    """
    candidates: tuple[tuple[ModelSource, str | None], ...] = (
        ("override", override),
        ("worker", worker.definition.model),
        ("caller", caller),
        ("frame", frame.model),
        ("settings", settings.model),
    )
    for by, model in candidates:
        if model:
            folder = worker.resource_folder if by == "worker" else frame.cwd
            return ModelChoice(model=resolve_script_path(normalize_model(model), folder), by=by)
    hint = f"Add `model:` to the worker file or your settings, set GUILDHALL_MODEL, or use {model_option}"
    hint = _MEMBER_HINT if frame.caller == "member" else hint
    raise NoModel(f"no model set for worker {worker.name!r}", where=worker.place, hint=hint)


def normalize_model(model: str) -> str:
    """Return `provider/model` as `provider:model`. Other names and paths of script files stay unchanged."""
    provider, slash, rest = model.partition("/")
    is_file = model.endswith((".yaml", ".yml", ".json"))
    return f"{provider}:{rest}" if slash and provider and rest and ":" not in provider and not is_file else model
