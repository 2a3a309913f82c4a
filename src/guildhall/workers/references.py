"""Code references: find and read the code that a worker names, and the environment of its MCP servers.

The code is in toolbox files, packages, MCP servers and the module of an output schema. Does not decide about trust (see
`workers.trust`).

Invariant: the code is read here, never run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core.errors import GuildError, InvalidFile, NotFound, ToolUnavailable
from guildhall.core.ids import canonical, is_name
from guildhall.core.text import did_you_mean
from guildhall.core.yaml import shown
from guildhall.tools.host.protocol import pin_of, read_source
from guildhall.tools.mcp.model import installation
from guildhall.workers.package import MODULE, PROJECT_FILE, Package, read_package

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.workers.model import Worker


TOOLBOXES = "toolboxes"
SERVERS = "mcp_servers"

_REFERENCE = re.compile(rf"{MODULE.pattern}(?:\.{MODULE.pattern}){{0,20}}:{MODULE.pattern}")
# Of a server's command: what is a program to whatever program comes first.
_SCRIPTS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua"})
_MOST_FILES = 500
_MOST_BYTES = 5_000_000
_HOW = "Write schemas/NAME.json, or package.module:Model for a model in a module of the project."


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """One file, as it was read."""

    path: Path  # absolute, no link in it
    shown: str  # from the project
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        return pin_of(self.content)


@dataclass(frozen=True, kw_only=True)
class Code:
    """What is executed together: a toolbox, a server, a model's package, a test's programs, a setup, a member."""

    kind: Literal["toolbox", "server", "module", "test", "workflow", "member", "activation"]
    name: str  # mail; docs; package.module:Model; tests/mail.yaml
    root: Path  # the project that it lies in
    files: tuple[CodeFile, ...]
    own: bool = False  # in the home: the person put it there
    folder: Path | None = None  # of the package, where it is one
    entry: str | None = None  # of a package of the home: the module with the tools, or the function that is called

    def sources(self) -> dict[str, str]:
        """The text of each file, by its path from the project."""
        texts: dict[str, str] = {}
        for file in self.files:
            try:
                texts[file.shown] = file.content.decode()
            except UnicodeDecodeError:
                raise ToolUnavailable("the file is not UTF-8 text", where=str(file.path)) from None
        return texts


def code_of(
    worker: Worker, frame: Frame, home: Home, given: Collection[str] = ()
) -> tuple[list[Code], list[GuildError]]:
    """All code that the worker names, and what of it cannot be had."""
    named = [name for name in worker.definition.toolboxes if name not in given]
    finders: list[Callable[[], Code]] = [
        *(partial(toolbox_code, worker, name, frame, home, given) for name in named),
        *(partial(server_code, worker, name, frame) for name in worker.definition.mcp_servers),
        *([partial(module_code, worker, frame, home)] if names_module(worker) else []),
        *([partial(activation_code, worker)] if worker.activate else []),
    ]
    found: list[Code] = []
    wrong: list[GuildError] = []
    for find in finders:
        try:
            found.append(find())
        except GuildError as error:
            wrong.append(error)
    return found, wrong


def server_code(worker: Worker, name: str, frame: Frame) -> Code:
    """What a person trusts who trusts a server: what the file says of it, and the files of the project that it runs.

    What the program loads beside these is not known beforehand: it is confined instead.
    """
    root, server = worker.beside(frame), worker.definition.mcp_servers[name]
    path = worker.path or root / worker.name
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    said = CodeFile(
        path=path.resolve() / SERVERS / name,  # there is no such file: it stands for this part of one
        shown=f"{shown} ({SERVERS}.{name})",
        content=canonical(server.model_dump(mode="json")).encode(),
    )
    own = worker.scope in ("home", "package", "shipped", "given")
    programs = [] if own else [root / word for place, word in enumerate(server.command or ()) if _runs(place, word)]
    files = (said, *(code_file(one, root) for one in programs if one.is_relative_to(root) and _is_file(one)))
    return Code(kind="server", name=name, root=root, files=files, own=own)


def _runs(place: int, word: str) -> bool:
    """Whether a word of a command may name a program of the project."""
    return "/" in word if place == 0 else Path(word).suffix in _SCRIPTS


def toolbox_code(worker: Worker, name: str, frame: Frame, home: Home, given: Collection[str] = ()) -> Code:
    """The file of a toolbox: of the worker's project, or of the home. `given` are names that others bring."""
    root = worker.beside(frame)
    paths = toolbox_files(worker, name, frame, home)
    if not paths:
        folders = (root / TOOLBOXES, home.toolboxes)
        known = {*given, *(path.stem for folder in folders for path in folder.glob("*.py"))}
        known |= {path.parent.name for path in home.packages.glob(f"[!.]*/{PROJECT_FILE}")} - {name}
        raise ToolUnavailable(
            f"toolboxes: there is no toolbox {name!r}",
            where=worker.place,
            hint=did_you_mean(name, known) or f"Put it at {home.toolboxes / name}.py, or add a package that is one.",
        )
    if len(paths) > 1:
        raise ToolUnavailable(
            f"toolboxes: there are two toolboxes {name!r}: {paths[0]} and {paths[1]}",
            where=worker.place,
            hint="Rename one of them.",
        )
    path = paths[0]
    if path.name == PROJECT_FILE:
        return exported(read_package(path.parent))
    own = path.parent.resolve() == home.toolboxes.resolve()
    files = (code_file(path, path.parent if own else root, anywhere=own),)
    return Code(kind="toolbox", name=name, root=root, files=files, own=own or worker.scope == "package")


def toolbox_files(worker: Worker, name: str, frame: Frame, home: Home) -> list[Path]:
    """Where there is a file for a toolbox of this name: of its own, or that of a package which is one."""
    folders = {folder.resolve(): folder for folder in (worker.beside(frame) / TOOLBOXES, home.toolboxes)}
    found = [folder / f"{name}.py" for folder in folders.values() if _is_file(folder / f"{name}.py")]
    package = home.packages / name
    return [*found, package / PROJECT_FILE] if is_name(name) and _may_be_toolbox(package) else found


def _may_be_toolbox(folder: Path) -> bool:
    try:
        return "toolbox" in read_package(folder).types
    except NotFound:
        return False
    except GuildError:
        return True  # there is something; reading it again says what is wrong


def exported(package: Package) -> Code:
    """The modules of a toolbox package."""
    return package_code(package, "toolbox", package.name, "export", package.table.export or "")


def activation_code(worker: Worker) -> Code:
    """The modules of a worker package that says by itself how its runs begin."""
    assert worker.path is not None
    return activation_of(read_package(worker.path.parent))


def activation_of(package: Package) -> Code:
    return package_code(package, "activation", package.name, "activate", package.table.activate or "")


def package_code(
    package: Package, kind: Literal["toolbox", "activation"], name: str, field: str, reference: str
) -> Code:
    """The modules of a package, all of them."""
    folder = package.folder
    top = source_root(folder)
    files = tuple(code_file(path, folder, top) for path in modules_in(top))
    if sum(len(file.content) for file in files) > _MOST_BYTES:
        raise ToolUnavailable(f"the package {name} is too large: over {_MOST_BYTES:,} bytes", where=str(folder))
    module = reference.partition(":")[0]
    path = module.replace(".", "/")
    if not {f"{path}.py", f"{path}/__init__.py"} & {file.shown for file in files}:
        known = {file.shown.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files}
        hint = did_you_mean(module, known) or f"Its file is {top / path}.py."
        raise package.error(f"there is no module {module} in the package", field, hint)
    return Code(kind=kind, name=name, root=top, files=files, own=True, folder=folder, entry=reference)


def names_module(worker: Worker) -> bool:
    """Whether the worker's output schema is a model in Python."""
    reference = worker.definition.output_schema_ref
    return reference is not None and not reference.endswith(".json")


def module_code(worker: Worker, frame: Frame, home: Home) -> Code:
    """The module, or the whole package, of `output_schema_ref: package.module:Model`."""
    reference = worker.definition.output_schema_ref or ""
    if not _REFERENCE.fullmatch(reference):
        message = f"output_schema_ref: {reference!r} is neither a .json file nor package.module:Model"
        raise InvalidFile(message, where=worker.place, hint=_HOW)
    module = reference.partition(":")[0]
    top, *inner = module.split(".")
    if top in sys.stdlib_module_names or top == "guildhall":
        message = f"output_schema_ref: {top} is the name of a module that does not belong to the project"
        raise InvalidFile(message, where=worker.place, hint=_HOW)
    root = source_root(worker.beside(frame)) if worker.scope == "package" else worker.beside(frame)
    folder = _package(root, top)
    paths = [root / f"{top}.py"] if folder is None else list(modules_in(folder))
    wanted = root.joinpath(top, *inner)
    if not {wanted.with_name(f"{wanted.name}.py"), wanted / "__init__.py"} & set(paths) or not _is_file(paths[0]):
        message = f"output_schema_ref: there is no module {module} in {root}"
        raise InvalidFile(message, where=worker.place, hint="Its file lies in the worker's project: package/module.py.")
    files = tuple(code_file(path, root) for path in paths)
    if sum(len(file.content) for file in files) > _MOST_BYTES:
        raise ToolUnavailable(f"the package {top} is too large: over {_MOST_BYTES:,} bytes", where=str(folder))
    own = root.resolve() == home.path.resolve() or worker.scope == "package"
    return Code(kind="module", name=reference, root=root, files=files, own=own, folder=folder)


def source_root(folder: Path) -> Path:
    """Where the modules of a package start: in its `src/` if it has one, else in its folder."""
    return folder / "src" if os.path.isdir(folder / "src") else folder  # noqa: PTH112 - what cannot be seen is not there


def toolboxes_in(root: Path) -> tuple[list[Code], list[GuildError]]:
    """Every toolbox of a project that a worker could name, used or not, and what cannot be read."""
    found: list[Code] = []
    wrong: list[GuildError] = []
    try:
        paths = sorted(path for path in (root / TOOLBOXES).glob("*.py") if is_name(path.stem))
    except OSError as error:
        return [], [ToolUnavailable(f"the folder cannot be read: {error.strerror}", where=str(root / TOOLBOXES))]
    for path in paths:
        try:
            found.append(Code(kind="toolbox", name=path.stem, root=root, files=(code_file(path, root),)))
        except GuildError as error:
            wrong.append(error)
    return found, wrong


def _package(root: Path, top: str) -> Path | None:
    """The folder of a package; None: it is a single file. As Python looks for it."""
    if _is_file(root / top / "__init__.py"):
        return root / top
    return root / top if (root / top).is_dir() and not _is_file(root / f"{top}.py") else None


def modules_in(folder: Path) -> Iterator[Path]:
    """Every file below a folder that Python could import. Folders behind links are not looked into."""
    count = 0
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if MODULE.fullmatch(name) and name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py") and MODULE.fullmatch(name.removesuffix(".py")):
                count += 1
                if count > _MOST_FILES:
                    hint = "Put what is needed into a package of its own."
                    raise ToolUnavailable(f"there are more than {_MOST_FILES} modules", where=str(folder), hint=hint)
                yield Path(place) / name


def _unreadable(error: OSError) -> None:
    raise ToolUnavailable(f"the folder cannot be read: {error.strerror or error}", where=error.filename)


def code_file(path: Path, root: Path, start: Path | None = None, *, anywhere: bool = False) -> CodeFile:
    """A file of a project. One that really lies elsewhere is none, unless it may be `anywhere`.

    It is shown from `start`, where that is another folder than the project.
    """
    try:
        real, top = path.resolve(strict=True), root.resolve()
    except (OSError, RuntimeError) as error:  # gone, no permission, a loop of links
        reason = getattr(error, "strerror", None) or error
        raise ToolUnavailable(f"the file cannot be read: {reason}", where=str(path)) from None
    if not anywhere and not real.is_relative_to(top):
        raise ToolUnavailable(
            f"this is a link out of the project, to {real}", where=str(path), hint="Put a copy into the project."
        )
    return CodeFile(path=real, shown=path.relative_to(start or root).as_posix(), content=read_source(real))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # there is something; reading it says what is wrong


def program_of(worker: Worker, name: str, frame: Frame) -> Path:
    """The program of a server, as the caller's PATH finds it; one with a slash in its name lies in the project."""
    word = (worker.definition.mcp_servers[name].command or ("",))[0]
    if "/" in word:
        found = worker.folder(frame) / Path(word).expanduser()
        path = found if found.is_file() else None
    else:
        which = shutil.which(word, path=frame.env.get("PATH"))
        path = Path(which) if which else None
    if path is None:
        message = f"{SERVERS}.{name}.command: there is no program {word!r}"
        raise ToolUnavailable(message, where=worker.place, hint="Install it, or correct the command.")
    return path.absolute()


def variables_of(worker: Worker, name: str, frame: Frame) -> dict[str, str]:
    """The variables that a server is given: those of the caller's that the file names and the settings allow."""
    found: dict[str, str] = {}
    for variable in worker.definition.mcp_servers[name].env:
        if variable not in frame.env:
            message = f"{SERVERS}.{name}.env: the variable {variable} is not set, or not allowed"
            hint = f"Set it, and allow it in your settings: `env: [{variable}]`."
            raise ToolUnavailable(message, where=worker.place, hint=hint)
        found[variable] = frame.env[variable]
    return found


def seen_by(worker: Worker, name: str, program: Path, frame: Frame) -> tuple[Path, ...]:
    """What a server sees beside the run's folders, to read: where its program is installed, and what its command names.

    Of a file that is named the folder is seen, because what it loads lies beside it; but never the person's whole home.
    """
    person = Path.home()
    found = [*installation(program)]
    for word in (worker.definition.mcp_servers[name].command or ())[1:]:
        path = Path(word).expanduser()
        if path.is_absolute() and path.exists():
            found.append(path if path.is_dir() else path.parent)
    return tuple(path for path in dict.fromkeys(found) if path not in (*person.parents, person))


def checked_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """The schema, if it is one of an object and stands alone; `where` is its place, for errors."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise InvalidFile(f"not a JSON Schema: {error.message}", where=where) from None
    except RecursionError:
        raise InvalidFile("not a JSON Schema: it is nested too deeply", where=where) from None
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise InvalidFile("an output schema must have `type: object`", where=where)
    for reference in _references(schema):
        if not _leads_somewhere(reference, cast("dict[str, Any]", schema)):
            hint = "An output schema stands alone: its references lead to parts of itself, such as #/$defs/part."
            raise InvalidFile(f"the reference {shown(reference)} leads nowhere", where=where, hint=hint)
    return cast("dict[str, Any]", schema)


def _references(schema: Any) -> Iterator[str]:
    rest = [schema]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            inside = cast("dict[str, Any]", part)
            yield from (inside[name] for name in ("$ref", "$dynamicRef") if isinstance(inside.get(name), str))
            rest += inside.values()
        elif isinstance(part, list):
            rest += cast("list[Any]", part)


def _leads_somewhere(reference: str, schema: Mapping[str, Any]) -> bool:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    if not reference.startswith("#"):
        return False
    here = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(schema))
    try:
        return isinstance(here.resolver().lookup(reference).contents, dict | bool)
    except (Unresolvable, ValueError, TypeError):  # no such part
        return False
