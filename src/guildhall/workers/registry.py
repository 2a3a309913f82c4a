"""Worker registry: finds and lists workers, and chooses the model of a run.

It searches the project's `workers/`, the home's `workers/`, the home's packages, and the workers that come with
Guildhall. A name that matches several files is an error. Does not parse worker files (see `workers.loader`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.core.config import Settings, anchored
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NoModel, NotFound
from guildhall.core.text import did_you_mean
from guildhall.workers.loader import WORKER_SUFFIXES, load, load_definition
from guildhall.workers.model import GENERATED, WORKERS, Lock, Scope, Worker, WorkerListing
from guildhall.workers.package import PROJECT_FILE, is_toolbox_only, read_package
from guildhall.workers.package_store import Packages, package_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home


SHIPPED = Path(__file__).parent / "shipped"
FILES = (*WORKER_SUFFIXES, PROJECT_FILE)  # how the name of a worker ends that is a file


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
        """Return the worker of a name, of a scope and a name such as `project/name`, or in a file relative to `cwd`."""
        if name.endswith(FILES):
            return self._in_file(cwd / name)
        scope, _, rest = name.rpartition("/")
        if scope and scope not in self._folders:
            places = ", ".join(f"{place}/{rest}" for place in self._folders)
            endings = ", ".join(WORKER_SUFFIXES)
            hint = f"Write the name alone, one of {places}, or the path of a file that ends in {endings}."
            raise NotFound(f"there is no worker {name!r}", hint=hint)
        everything = [found for found in self._files() if not scope or found.scope == scope]
        matching = [found for found in everything if found.name == rest]
        if not matching and scope in ("", "package") and is_toolbox_only(self._folders["package"] / rest):
            hint = f"A worker has its tools when its file says so: toolboxes: [{rest}]."
            raise NotFound(f"the package {rest!r} is a toolbox and no worker", hint=hint)
        if not matching:
            hint = did_you_mean(rest, {found.name for found in everything}) or "Make one: guild worker new NAME."
            raise NotFound(f"there is no worker {name!r}", hint=hint)
        if len(matching) > 1:
            raise _ambiguous(name, matching)
        return self._load(matching[0].path, matching[0].scope)

    def listings(self) -> list[WorkerListing]:
        """Return every worker, the invalid ones with their error."""
        return [self._listed(found) for found in self._files()]

    def _in_file(self, path: Path) -> Worker:
        if not path.exists():
            neighbours = {other.name for other in path.parent.glob("*") if other.name.endswith(WORKER_SUFFIXES)}
            raise NotFound("there is no such file", where=str(path), hint=did_you_mean(path.name, neighbours))
        path = path.parent.resolve() / path.name
        if path.name == PROJECT_FILE:
            return self._in_package(path)
        for scope in ("home", "shipped"):
            if path.is_relative_to(self._folders[scope].resolve()):
                return self._load(path, scope)
        return self._load(path, "project")

    def _in_package(self, path: Path) -> Worker:
        if path.parent.parent != self._folders["package"].resolve():
            hint = f"Look at it, then: guild package add {path.parent}"
            raise NotFound("this package is not among those of the home", where=str(path), hint=hint)
        return self._load(self._folders["package"] / path.parent.name / path.name, "package")

    def _load(self, path: Path, scope: Scope) -> Worker:
        if scope == "package":
            return package_worker(read_package(path.parent), self._lock(path))
        return load(path, scope=scope, lock=self._lock(path))

    def _lock(self, path: Path) -> Lock | None:
        return self._locks.get(path) or self._locks.get(path.resolve())

    def _listed(self, found: WorkerListing) -> WorkerListing:
        pinned = self._lock(found.path) is not None
        try:
            in_package = found.scope == "package"
            definition = self._load(found.path, found.scope).definition if in_package else load_definition(found.path)
        except GuildError as error:
            return replace(found, locked=pinned, error=str(error))
        locked = pinned or definition.locked
        return replace(found, status=definition.status, locked=locked, description=definition.description)

    def _files(self) -> Iterator[WorkerListing]:
        """Yield every worker file in the order of look-up. A folder that has two roles is listed once."""
        seen: set[Path] = set()
        for scope, top in self._folders.items():
            if scope == "package":
                for folder in self._packages.worker_folders():
                    yield WorkerListing(name=folder.name, scope=scope, path=folder / PROJECT_FILE)
                continue
            for folder in (top, top / GENERATED):
                if not folder.is_dir() or (real := folder.resolve()) in seen:
                    continue
                seen.add(real)
                for path in _entries(real):
                    if path.name.endswith(WORKER_SUFFIXES) and not path.name.startswith(".") and path.is_file():
                        yield WorkerListing(name=path.stem, scope=scope, path=path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InvalidFile(f"the folder cannot be read: {error.strerror}", where=str(folder)) from None


def _ambiguous(name: str, found: list[WorkerListing]) -> GuildError:
    places = "\n".join(f"  {one.scope}/{one.name}  {one.path}" for one in found)
    if len({one.scope for one in found}) == len(found):
        hint = f"Say which one: {' or '.join(f'{one.scope}/{one.name}' for one in found)}."
        return Conflict(f"there are {len(found)} workers named {name!r}:\n{places}", hint=hint)
    hint = "Keep one of the files, or give the path of the one that you mean."
    return InvalidFile(f"there are {len(found)} files for the worker {name!r}:\n{places}", hint=hint)


ModelSource = Literal["override", "worker", "caller", "frame", "settings"]
MODEL_OPTION = "--model provider:model"  # how a person gives a run a model
MODEL_CONFIG = """--config '{"model": "provider:model"}'"""  # and a job
_ANYWHERE = "GUILDHALL_MODEL, `model:` in the worker, or in your settings."
# Neither an option nor a variable of whoever dispatches reaches it.
_FOR_DISPATCHED = f"Dispatch with {MODEL_CONFIG}, or give one with `model:` in the worker, or in your settings."


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A model, and who chose it."""

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
    """Return the model of a run and who chose it. A script is relative to the place that names it.

    `model_option`: how the user can name a model, for the error.
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
            folder = worker.resource_folder(frame) if by == "worker" else frame.cwd
            return ModelChoice(model=anchored(normalize_model(model), folder), by=by)
    raise NoModel(
        f"the worker {worker.name!r} names no model, and neither does anyone else",
        where=worker.place,
        hint=_FOR_DISPATCHED if frame.caller == "member" else f"Give one with {model_option}, {_ANYWHERE}",
    )


def normalize_model(model: str) -> str:
    """Return `provider/model` as `provider:model`. A name with a colon before the first slash is unchanged."""
    provider, slash, rest = model.partition("/")
    return f"{provider}:{rest}" if slash and provider and rest and ":" not in provider else model
