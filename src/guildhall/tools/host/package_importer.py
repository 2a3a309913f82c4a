"""Package importer: imports a package inside a tool host from source texts that the hall has read and verified.

The module also calls the activation function of a package and creates the JSON Schema of a model. Does not load toolbox
files (see `tools.host.main`).

Invariant: no file of the package can be imported from disk.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from typing import TYPE_CHECKING, Any, cast, is_typeddict

from guildhall.core.errors import ToolUnavailable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


_MAX_ACTIVATION_CHARS = 2_000_000
_MAX_SCHEMA_CHARS = 1_000_000
_MODEL_HINT = "Name a pydantic model, a dataclass or a TypedDict."
_IMPORT_HINT = "A package can import the standard library, packages that are installed with Guildhall, and itself."


def load(reference: str, sources: Mapping[str, str]) -> Any:
    """Return the object `package.module:name`, or the module if there is no name.

    `sources` maps the path of each file to its text. An exception of the module is not caught.
    """
    module, _, name = reference.partition(":")
    PackageImporter(sources).install()
    found = import_module(module)
    return vars(found).get(name) if name else found


def load_error(
    reference: str, error: BaseException, sources: Mapping[str, str], problem: str = "cannot load"
) -> ToolUnavailable:
    """Return an error that names the last line of the package in the traceback."""
    if isinstance(error, ToolUnavailable):
        return error
    where = None
    if isinstance(error, SyntaxError) and error.filename in sources:
        where = f"{error.filename}:{error.lineno}"
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in sources:
            where = f"{frame.filename}:{frame.lineno}"
    reason = error.msg if isinstance(error, SyntaxError) else error
    return ToolUnavailable(
        f"{problem} {reference}: {type(error).__name__}: {reason}",
        where=where,
        hint=_IMPORT_HINT if isinstance(error, ImportError | OSError) else None,
    )


class PackageImporter(MetaPathFinder, Loader):
    """Imports the modules of a package from their source texts."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._files: dict[str, tuple[str, str]] = {}
        self._packages: set[str] = set()
        for path, text in sources.items():
            *folders, file = path.split("/")
            names = folders if file == "__init__.py" else [*folders, file.removesuffix(".py")]
            self._files[".".join(names)] = (path, text)
            self._packages.update(".".join(folders[:depth]) for depth in range(1, len(folders) + 1))

    def install(self) -> None:
        """Insert this finder first. Raise ToolUnavailable if the package has the name of a loaded module."""
        if taken := sorted({*self._files, *self._packages} & sys.modules.keys()):
            problem = f"cannot load the package: the module name {taken[0]!r} is in use"
            raise ToolUnavailable(problem, hint="Rename the module.")
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._files and fullname not in self._packages:
            return None
        origin = self._files[fullname][0] if fullname in self._files else None
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=fullname in self._packages)

    def exec_module(self, module: ModuleType) -> None:
        path, text = self._files.get(module.__name__, ("", ""))
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        exec(compile(text, path, "exec", dont_inherit=True), module.__dict__)


def describe_type(found: object) -> str:
    """Return a text for errors about a loaded object. None means that the module does not define the name."""
    return "unknown name" if found is None else f"its type is {type(found).__name__}"


def activation(reference: str, sources: Mapping[str, str], context: Mapping[str, Any] | None) -> Any:
    """Call the activation function and return its result, which the hall validates.

    If `context` is None, the function is only imported.
    """
    problem = "cannot load"
    try:
        function = load(reference, sources)
        problem = "cannot call"
        if not callable(function):
            raise ToolUnavailable(f"{reference} is not a function: {describe_type(function)}")
        if context is None:
            return None
        text = json.dumps(function(dict(context)), allow_nan=False)
    except BaseException as error:  # noqa: BLE001 - the function can raise anything
        raise load_error(reference, error, sources, problem) from None
    if len(text) > _MAX_ACTIVATION_CHARS:
        limit = f"at most {_MAX_ACTIVATION_CHARS:,} are allowed"
        raise ToolUnavailable(f"{reference}: the result has {len(text):,} characters; {limit}")
    return json.loads(text)


def json_schema(reference: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON Schema of a model. `sources` maps the path of each file of its package to its text."""
    import_module("pydantic")  # first, so that no module of the package can take its name
    try:
        schema = _schema(load(reference, sources), reference)
        text = json.dumps(schema)
    except BaseException as error:  # noqa: BLE001 - the module can raise anything
        raise load_error(reference, error, sources) from None
    if len(text) > _MAX_SCHEMA_CHARS:
        limit = f"at most {_MAX_SCHEMA_CHARS:,} are allowed"
        raise ToolUnavailable(f"{reference}: the JSON Schema has {len(text):,} characters; {limit}")
    return json.loads(text)


def _schema(found: Any, reference: str) -> Any:
    from pydantic import BaseModel, TypeAdapter
    from typing_extensions import is_typeddict as is_other_typeddict

    if not isinstance(found, type):
        raise ToolUnavailable(f"{reference} is not a model: {describe_type(found)}", hint=_MODEL_HINT)
    model = cast("type[Any]", found)
    if issubclass(model, BaseModel):
        return model.model_json_schema()
    if is_dataclass(model) or is_typeddict(model) or is_other_typeddict(model):
        return TypeAdapter[Any](model).json_schema()
    raise ToolUnavailable(f"{reference} is not a model: another kind of class", hint=_MODEL_HINT)
