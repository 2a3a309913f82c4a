"""Code of workers: finds and reads the code that a worker names, and decides if it may run.

The code is in toolbox files, packages, MCP servers and the module of an output schema. A file is trusted by its path
and its SHA-256. Code in the user's own home is trusted. Does not store pins (see `workers.records`) or ask the user
(see `cli.prompt`).

Invariant: the code is read here, never run, and code of a project runs only in the form that the user has trusted.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core.errors import GuildError, InvalidFile, NotFound, NotTrusted, ToolUnavailable
from guildhall.core.ids import canonical, is_name
from guildhall.core.text import did_you_mean
from guildhall.core.yaml import shown
from guildhall.tools.host.protocol import pin_of, read_source
from guildhall.tools.mcp.model import installation
from guildhall.workers.model import GENERATED, WORKERS, FileTrust, Pin, TrustState, Worker
from guildhall.workers.package import MODULE, PROJECT_FILE, Package, read_package

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home

TOOLBOXES = "toolboxes"
SERVERS = "mcp_servers"

_REFERENCE = re.compile(rf"{MODULE.pattern}(?:\.{MODULE.pattern}){{0,20}}:{MODULE.pattern}")
# Of a server's command: what is a program to whatever program comes first.
_SCRIPTS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua"})
MAX_FILES = 500  # of a toolbox, a package or a member
MAX_BYTES = 5_000_000
_FIELDS = {"toolbox": "toolboxes", "server": "mcp_servers", "member": "members"}
_HOW = "Write schemas/NAME.json, or package.module:Model for a model in a module of the project."


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """A file and its content."""

    path: Path  # absolute, no link in it
    display_path: str  # from the project
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        return pin_of(self.content)


@dataclass(frozen=True, kw_only=True)
class Code:
    """Files that are executed together, such as a toolbox, a server or a member."""

    kind: Literal["toolbox", "server", "module", "test", "workflow", "member", "activation"]
    name: str  # mail; docs; package.module:Model; tests/mail.yaml
    root: Path  # the project that it lies in
    files: tuple[CodeFile, ...]
    is_own: bool = False  # in the home: the user put it there
    folder: Path | None = None  # of the package, where it is one
    entry: str | None = None  # of a package of the home: the module with the tools, or the function that is called

    def sources(self) -> dict[str, str]:
        """Return the text of each file, by its path from the project."""
        texts: dict[str, str] = {}
        for file in self.files:
            try:
                texts[file.display_path] = file.content.decode()
            except UnicodeDecodeError:
                raise ToolUnavailable("the file is not UTF-8 text", where=str(file.path)) from None
        return texts


def worker_code(
    worker: Worker, frame: Frame, home: Home, given: Collection[str] = ()
) -> tuple[list[Code], list[GuildError]]:
    """Return all code that the worker names, and the errors of code that cannot be read."""
    named = [name for name in worker.definition.toolboxes if name not in given]
    finders: list[Callable[[], Code]] = [
        *(partial(toolbox_code, worker, name, frame, home, given) for name in named),
        *(partial(server_code, worker, name, frame) for name in worker.definition.mcp_servers),
        *([partial(module_code, worker, frame, home)] if has_python_schema(worker) else []),
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
    """Return the part of the worker file that declares a server, and the project files that its command names.

    Other files that the program loads are not known in advance. The sandbox confines the program instead.
    """
    root, server = worker.resource_folder(frame), worker.definition.mcp_servers[name]
    path = worker.path or root / worker.name
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    said = CodeFile(
        path=path.resolve() / SERVERS / name,  # there is no such file: it stands for this part of one
        display_path=f"{shown} ({SERVERS}.{name})",
        content=canonical(server.model_dump(mode="json")).encode(),
    )
    own = worker.scope in ("home", "package", "shipped", "given")
    programs = [] if own else [root / word for place, word in enumerate(server.command or ()) if _runs(place, word)]
    files = (said, *(code_file(one, root) for one in programs if one.is_relative_to(root) and _is_file(one)))
    return Code(kind="server", name=name, root=root, files=files, is_own=own)


def _runs(place: int, word: str) -> bool:
    """Return True if a word of a command may name a program of the project."""
    return "/" in word if place == 0 else Path(word).suffix in _SCRIPTS


def toolbox_code(worker: Worker, name: str, frame: Frame, home: Home, given: Collection[str] = ()) -> Code:
    """Return the code of a toolbox in the worker's project, the home or a package. `given`: other known names."""
    root = worker.resource_folder(frame)
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
        return package_code(read_package(path.parent), "toolbox")
    own = path.parent.resolve() == home.toolboxes.resolve()
    files = (code_file(path, path.parent if own else root, anywhere=own),)
    return Code(kind="toolbox", name=name, root=root, files=files, is_own=own or worker.scope == "package")


def toolbox_files(worker: Worker, name: str, frame: Frame, home: Home) -> list[Path]:
    """Return the files that can define a toolbox of this name: modules, and the file of a package."""
    folders = {folder.resolve(): folder for folder in (worker.resource_folder(frame) / TOOLBOXES, home.toolboxes)}
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


def activation_code(worker: Worker) -> Code:
    """Return the modules of a worker package that has its own activation."""
    assert worker.path is not None
    return package_code(read_package(worker.path.parent), "activation")


def package_code(package: Package, kind: Literal["toolbox", "activation"]) -> Code:
    """Return all modules of a package, as its toolbox or its activation."""
    field = "export" if kind == "toolbox" else "activate"
    reference = (package.table.export if kind == "toolbox" else package.table.activate) or ""
    folder = package.folder
    top = source_root(folder)
    files = tuple(code_file(path, folder, top) for path in module_files(top))
    _check_size(package.name, files, folder)
    module = reference.partition(":")[0]
    path = module.replace(".", "/")
    if not {f"{path}.py", f"{path}/__init__.py"} & {file.display_path for file in files}:
        known = {file.display_path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files}
        hint = did_you_mean(module, known) or f"Its file is {top / path}.py."
        raise package.error(f"there is no module {module} in the package", field, hint)
    return Code(kind=kind, name=package.name, root=top, files=files, is_own=True, folder=folder, entry=reference)


def _check_size(name: str, files: tuple[CodeFile, ...], folder: Path | None) -> None:
    if sum(len(file.content) for file in files) > MAX_BYTES:
        raise ToolUnavailable(f"the package {name} is too large: over {MAX_BYTES:,} bytes", where=str(folder))


def has_python_schema(worker: Worker) -> bool:
    """Return True if the worker's output schema is a model in Python."""
    reference = worker.definition.output_schema_ref
    return reference is not None and not reference.endswith(".json")


def module_code(worker: Worker, frame: Frame, home: Home) -> Code:
    """Return the module, or the whole package, of `output_schema_ref: package.module:Model`."""
    reference = worker.definition.output_schema_ref or ""
    if not _REFERENCE.fullmatch(reference):
        message = f"output_schema_ref: {reference!r} is neither a .json file nor package.module:Model"
        raise InvalidFile(message, where=worker.place, hint=_HOW)
    module = reference.partition(":")[0]
    top, *inner = module.split(".")
    if top in sys.stdlib_module_names or top == "guildhall":
        message = f"output_schema_ref: {top} is the name of a module that does not belong to the project"
        raise InvalidFile(message, where=worker.place, hint=_HOW)
    root = source_root(worker.resource_folder(frame)) if worker.scope == "package" else worker.resource_folder(frame)
    folder = _package(root, top)
    paths = [root / f"{top}.py"] if folder is None else list(module_files(folder))
    wanted = root.joinpath(top, *inner)
    if not {wanted.with_name(f"{wanted.name}.py"), wanted / "__init__.py"} & set(paths) or not _is_file(paths[0]):
        message = f"output_schema_ref: there is no module {module} in {root}"
        raise InvalidFile(message, where=worker.place, hint="Its file lies in the worker's project: package/module.py.")
    files = tuple(code_file(path, root) for path in paths)
    _check_size(top, files, folder)
    own = root.resolve() == home.path.resolve() or worker.scope == "package"
    return Code(kind="module", name=reference, root=root, files=files, is_own=own, folder=folder)


def source_root(folder: Path) -> Path:
    """Return the folder where the modules of a package start: its `src/` if it has one, else its folder."""
    return folder / "src" if os.path.isdir(folder / "src") else folder  # noqa: PTH112 - what cannot be seen is not there


def project_toolboxes(root: Path) -> tuple[list[Code], list[GuildError]]:
    """Return every toolbox of a project, used or not, and the errors of files that cannot be read."""
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
    """Return the folder of a package as Python finds it, or None if it is a single file."""
    if _is_file(root / top / "__init__.py"):
        return root / top
    return root / top if (root / top).is_dir() and not _is_file(root / f"{top}.py") else None


def module_files(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder that Python could import. Links to folders are not followed."""
    count = 0
    for place, folders, files in os.walk(folder, onerror=raise_unreadable):
        folders[:] = sorted(name for name in folders if MODULE.fullmatch(name) and name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py") and MODULE.fullmatch(name.removesuffix(".py")):
                count += 1
                if count > MAX_FILES:
                    hint = "Put what is needed into a package of its own."
                    raise ToolUnavailable(f"there are more than {MAX_FILES} modules", where=str(folder), hint=hint)
                yield Path(place) / name


def raise_unreadable(error: OSError) -> None:
    """Raise ToolUnavailable for a folder that `os.walk` cannot read."""
    raise ToolUnavailable(f"the folder cannot be read: {error.strerror or error}", where=error.filename)


def code_file(path: Path, root: Path, start: Path | None = None, *, anywhere: bool = False) -> CodeFile:
    """Return a file of a project. Raise ToolUnavailable for a link out of it, unless it may be `anywhere`.

    `start`: the folder from which its path is shown, if not the project.
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
    return CodeFile(path=real, display_path=path.relative_to(start or root).as_posix(), content=read_source(real))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # there is something; reading it says what is wrong


def server_program(worker: Worker, name: str, frame: Frame) -> Path:
    """Return the program of a server: a path in the project if it has a slash, else found on the caller's PATH."""
    word = (worker.definition.mcp_servers[name].command or ("",))[0]
    if "/" in word:
        found = worker.project_root(frame) / Path(word).expanduser()
        path = found if found.is_file() else None
    else:
        which = shutil.which(word, path=frame.env.get("PATH"))
        path = Path(which) if which else None
    if path is None:
        message = f"{SERVERS}.{name}.command: there is no program {word!r}"
        raise ToolUnavailable(message, where=worker.place, hint="Install it, or correct the command.")
    return path.absolute()


def server_variables(worker: Worker, name: str, frame: Frame) -> dict[str, str]:
    """Return the caller's variables that the worker file names and the settings allow."""
    found: dict[str, str] = {}
    for variable in worker.definition.mcp_servers[name].env:
        if variable not in frame.env:
            message = f"{SERVERS}.{name}.env: the variable {variable} is not set, or not allowed"
            hint = f"Set it, and allow it in your settings: `env: [{variable}]`."
            raise ToolUnavailable(message, where=worker.place, hint=hint)
        found[variable] = frame.env[variable]
    return found


def readable_folders(worker: Worker, name: str, program: Path, frame: Frame) -> tuple[Path, ...]:
    """Return the folders that a server may read besides those of the run.

    These are the installation of its program, and the folders of the files that its command names, because the files
    that it loads are there. The user's whole home is never among them.
    """
    person = Path.home()
    found = [*installation(program)]
    for word in (worker.definition.mcp_servers[name].command or ())[1:]:
        path = Path(word).expanduser()
        if path.is_absolute() and path.exists():
            found.append(path if path.is_dir() else path.parent)
    return tuple(path for path in dict.fromkeys(found) if path not in (*person.parents, person))


def check_output_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """Return the schema. Raise InvalidFile unless it describes an object and refers only to itself."""
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


@dataclass(frozen=True)
class Trust:
    """The files that the user of a home trusts."""

    pins: Mapping[Path, Pin]
    program_folder: Path | None = None  # the folder of the program itself: whoever runs it has trusted it

    def files(self, code: Code) -> tuple[FileTrust, ...]:
        """Return each file of the code, and the trusted files of a package that do not exist any more."""
        seen = [self._seen(file.path, file.display_path, len(file.content), file.digest) for file in code.files]
        if code.folder is not None:
            real, root, there = code.folder.resolve(), code.root.resolve(), {file.path for file in code.files}
            gone = [path for path in sorted(self.pins) if path.is_relative_to(real) and path not in there]
            seen += [self._seen(path, path.relative_to(root).as_posix(), 0, None) for path in gone]
        return tuple(seen)

    def _seen(self, path: Path, shown: str, size: int, digest: str | None) -> FileTrust:
        """Compare a file with its pin. `digest`: None if the file does not exist any more."""
        pin = self.pins.get(path)
        if pin is None:
            return FileTrust(path=path, display_path=shown, size=size, digest=digest or "", state="new")
        standing: TrustState = "gone" if digest is None else "trusted" if digest == pin.digest else "changed"
        trusted_at, digest = pin.trusted_at, digest or pin.digest
        return FileTrust(path=path, display_path=shown, size=size, digest=digest, state=standing, trusted_at=trusted_at)

    def is_trusted(self, code: Code) -> bool:
        """Return True if the code may run: it is in the user's own home, or every file is trusted as it is."""
        if self.program_folder is not None and code.root.resolve() == self.program_folder:
            return True
        return code.is_own or all(seen.state == "trusted" for seen in self.files(code))

    def check(self, code: Code, worker: Worker, frame: Frame) -> None:
        """Raise NotTrusted unless the code may run."""
        if self.is_trusted(code):
            return
        field = _FIELDS.get(code.kind, "output_schema_ref")
        raise NotTrusted(
            f"{field}: {code.name} is {self.describe_untrusted(code)}",
            where=worker.place,
            hint=f"Look at it, then: {trust_command(worker, frame)}",
        )

    def describe_untrusted(self, code: Code) -> str:
        """Return the files that the user has not trusted as they are."""
        open_ones = [f"{seen.display_path} ({seen.state_text})" for seen in self.files(code) if seen.state != "trusted"]
        more = f", and {len(open_ones) - 5} more" if len(open_ones) > 5 else ""
        return f"code that is not trusted as it is: {', '.join(open_ones[:5])}{more}"


def trust_command(worker: Worker, frame: Frame) -> str:
    """Return the command that shows the code of a worker and asks the user to trust it."""
    if worker.path is None or worker.path.parent in (frame.root / WORKERS, frame.root / WORKERS / GENERATED):
        return "guild trust"
    return f"guild trust {shlex.quote(str(worker.path))}"
