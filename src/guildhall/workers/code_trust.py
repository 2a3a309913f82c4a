"""Code of workers: finds and reads the code that a worker uses, and decides whether it may be executed.

The code is in toolbox files, packages, MCP servers and modules of output schemas. The user trusts a file by its path
and its digest. Code in the home is trusted. Pins are stored by `workers.records`, and `cli.prompt` asks the user.

Invariant: this module never executes the code. Code of a project is executed only if the user trusts its digest.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core.errors import GuildError, InvalidFile, NotFound, NotTrusted, ToolUnavailable
from guildhall.core.ids import canonical, is_name
from guildhall.core.text_checks import did_you_mean
from guildhall.core.yaml import format_value
from guildhall.sandbox.mounts import installation_folders, is_system_path, package_roots
from guildhall.tools.host.protocol import read_source, source_digest
from guildhall.workers.model import GENERATED, WORKERS, FileTrust, Pin, TrustState, Worker
from guildhall.workers.package import MODULE, PROJECT_FILE, Package, read_package

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame

TOOLBOXES = "toolboxes"
SERVERS = "mcp_servers"

_REFERENCE = re.compile(rf"{MODULE.pattern}(?:\.{MODULE.pattern}){{0,20}}:{MODULE.pattern}")
# Suffixes of scripts among the arguments of a server's command.
_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".bash", ".rb", ".pl", ".php", ".lua")
MAX_FILES = 500  # files of a toolbox, a package or a member
MAX_BYTES = 5_000_000
_FIELDS = {"toolbox": "toolboxes", "server": "mcp_servers", "member": "members"}
_SCHEMA_FIELD = ("output_schema_ref",)
_SCHEMA_HINT = "Use schemas/NAME.json, or package.module:Model for a model in a module of the project."


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """A file and its content."""

    path: Path  # absolute, without links
    display_path: str  # relative to the project
    content: bytes = field(repr=False)

    @property
    def digest(self) -> str:
        return source_digest(self.content)


@dataclass(frozen=True, kw_only=True)
class Code:
    """Files that are executed together, such as a toolbox, a server or a member."""

    kind: Literal["toolbox", "server", "module", "test", "workflow", "member", "activation"]
    name: str  # such as mail, package.module:Model or tests/mail.yaml
    root: Path  # folder of the project
    files: tuple[CodeFile, ...]
    is_own: bool = False  # True if the code is in the home of the user
    folder: Path | None = None  # folder of a package
    entry: str | None = None  # module with the tools of a package, or its activation function

    def sources(self) -> dict[str, str]:
        """Return the text of each file, by its path in the project."""
        texts: dict[str, str] = {}
        for file in self.files:
            try:
                texts[file.display_path] = file.content.decode()
            except UnicodeDecodeError:
                hint = "Convert it to UTF-8."
                raise ToolUnavailable("the file is not UTF-8 text", where=str(file.path), hint=hint) from None
        return texts


def worker_code(worker: Worker, home: Home, provided: Collection[str] = ()) -> tuple[list[Code], list[GuildError]]:
    """Return all code of a worker, and the errors of code that cannot be read.

    `provided`: names of toolboxes without code of their own.
    """
    toolboxes = [name for name in worker.definition.toolboxes if name not in provided]
    finders: list[Callable[[], Code]] = [
        *(partial(toolbox_code, worker, name, home, provided) for name in toolboxes),
        *(partial(server_code, worker, name) for name in worker.definition.mcp_servers),
        *([partial(module_code, worker, home)] if has_python_schema(worker) else []),
        *([partial(activation_code, worker)] if worker.activate else []),
    ]
    return _collect(finders)


def _collect(finders: Iterable[Callable[[], Code]]) -> tuple[list[Code], list[GuildError]]:
    """Return the code that the functions find, and the errors that they raise."""
    found: list[Code] = []
    errors: list[GuildError] = []
    for find in finders:
        try:
            found.append(find())
        except GuildError as error:
            errors.append(error)
    return found, errors


def server_code(worker: Worker, name: str) -> Code:
    """Return the part of the worker file that declares a server, and the project files that its command names.

    The other files that the program loads are not known in advance. Confinement limits them.
    """
    root, server, path = worker.resource_folder, worker.definition.mcp_servers[name], worker.path
    declaration = CodeFile(
        path=path.resolve() / SERVERS / name,  # not a file: an id for this part of the worker file
        display_path=f"{path.relative_to(root).as_posix()} ({SERVERS}.{name})",
        content=canonical(server.model_dump(mode="json")).encode(),
    )
    is_own = worker.scope in ("home", "package", "shipped")
    command = () if is_own else server.command or ()
    programs = [root / word for word in command[:1] if "/" in word]
    programs += [root / word for word in command[1:] if Path(word).suffix in _SCRIPT_SUFFIXES]
    files = [
        _interpreter_link(path, root) or code_file(path, root)
        for path in programs
        if path.is_relative_to(root) and _is_file(path)
    ]
    return Code(kind="server", name=name, root=root, files=(declaration, *files), is_own=is_own)


def toolbox_code(worker: Worker, name: str, home: Home, provided: Collection[str] = ()) -> Code:
    """Return the code of a toolbox in the worker's project, the home or a package. `provided`: other known names."""
    root = worker.resource_folder
    paths = toolbox_files(worker, name, home)
    if not paths:
        folders = (root / TOOLBOXES, home.toolboxes)
        known = {*provided, *(path.stem for folder in folders for path in folder.glob("*.py"))}
        known |= {path.parent.name for path in home.packages.glob(f"[!.]*/{PROJECT_FILE}") if _is_toolbox(path.parent)}
        hint = did_you_mean(name, known) or f"Create {root / TOOLBOXES / name}.py or {home.toolboxes / name}.py."
        raise ToolUnavailable(f"toolboxes: unknown toolbox {name!r}", where=worker.place, hint=hint)
    if len(paths) > 1:
        message = f"toolboxes: {name!r} is ambiguous: {paths[0]} and {paths[1]}"
        raise ToolUnavailable(message, where=worker.place, hint="Rename one of them.")
    path = paths[0]
    if path.name == PROJECT_FILE:
        return package_code(read_package(path.parent), "toolbox")
    is_own = path.parent.resolve() == home.toolboxes.resolve()
    files = (code_file(path, path.parent if is_own else root, allow_links=is_own),)
    return Code(kind="toolbox", name=name, root=root, files=files, is_own=is_own or worker.scope == "package")


def toolbox_files(worker: Worker, name: str, home: Home) -> list[Path]:
    """Return the files that define a toolbox of this name: modules, and the pyproject.toml of a package."""
    folders = {folder.resolve(): folder for folder in (worker.resource_folder / TOOLBOXES, home.toolboxes)}
    found = [folder / f"{name}.py" for folder in folders.values() if _is_file(folder / f"{name}.py")]
    package = home.packages / name
    return [*found, package / PROJECT_FILE] if is_name(name) and _may_be_toolbox(package) else found


def _may_be_toolbox(folder: Path) -> bool:
    try:
        return "toolbox" in read_package(folder).types
    except NotFound:
        return False
    except GuildError:
        return True  # reading it later reports the error


def _is_toolbox(folder: Path) -> bool:
    """Return True if a folder is a valid package with a toolbox that can be read."""
    try:
        package = read_package(folder)
        return "toolbox" in package.types and bool(package_code(package, "toolbox"))
    except GuildError:
        return False


def activation_code(worker: Worker) -> Code:
    """Return the activation code of the package of a worker."""
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
        hint = did_you_mean(module, known) or f"Create {top / path}.py."
        raise package.error(f"unknown module {module}", field, hint)
    return Code(kind=kind, name=package.name, root=top, files=files, is_own=True, folder=folder, entry=reference)


def _check_size(name: str, files: tuple[CodeFile, ...], folder: Path | None) -> None:
    if sum(len(file.content) for file in files) > MAX_BYTES:
        raise ToolUnavailable(f"cannot load {name}: its files are larger than {MAX_BYTES:,} bytes", where=str(folder))


def has_python_schema(worker: Worker) -> bool:
    """Return True if the output schema of a worker is a Python model."""
    reference = worker.definition.output_schema_ref
    return reference is not None and not reference.endswith(".json")


def module_code(worker: Worker, home: Home) -> Code:
    """Return the module, or the whole package, of `output_schema_ref: package.module:Model`."""
    reference = worker.definition.output_schema_ref or ""
    if not _REFERENCE.fullmatch(reference):
        raise worker.field_error(f"invalid reference {reference!r}", _SCHEMA_FIELD, _SCHEMA_HINT)
    module = reference.partition(":")[0]
    top, *inner = module.split(".")
    if top in sys.stdlib_module_names or top == "guildhall":
        raise worker.field_error(f"{top} is not a module of the project", _SCHEMA_FIELD, _SCHEMA_HINT)
    root = source_root(worker.resource_folder) if worker.scope == "package" else worker.resource_folder
    folder = _package_folder(root, top)
    paths = [root / f"{top}.py"] if folder is None else list(module_files(folder))
    path = root.joinpath(top, *inner)
    if not {path.with_name(f"{path.name}.py"), path / "__init__.py"} & set(paths) or not _is_file(paths[0]):
        hint = "Create it in the worker's project: package/module.py."
        raise worker.field_error(f"unknown module {module} in {root}", _SCHEMA_FIELD, hint)
    files = tuple(code_file(path, root) for path in paths)
    _check_size(top, files, folder)
    is_own = root.resolve() == home.path.resolve() or worker.scope == "package"
    return Code(kind="module", name=reference, root=root, files=files, is_own=is_own, folder=folder)


def source_root(folder: Path) -> Path:
    """Return the folder of the modules of a package: its `src/` if there is one, else its folder."""
    return folder / "src" if os.path.isdir(folder / "src") else folder  # noqa: PTH112 - False if it cannot be read


def project_toolboxes(root: Path) -> tuple[list[Code], list[GuildError]]:
    """Return all toolboxes of a project, used or not, and the errors of files that cannot be read."""
    try:
        paths = sorted(path for path in (root / TOOLBOXES).glob("*.py") if is_name(path.stem))
    except OSError as error:
        return [], [ToolUnavailable(f"cannot read the folder: {error.strerror}", where=str(root / TOOLBOXES))]
    return _collect(
        lambda path=path: Code(kind="toolbox", name=path.stem, root=root, files=(code_file(path, root),))
        for path in paths
    )


def _package_folder(root: Path, top: str) -> Path | None:
    """Return the folder of a Python package, or None if the module is a single file."""
    if _is_file(root / top / "__init__.py"):
        return root / top
    return root / top if (root / top).is_dir() and not _is_file(root / f"{top}.py") else None


def module_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that Python could import. Does not follow links to folders."""
    count = 0
    for parent, folders, files in os.walk(folder, onerror=raise_unreadable):
        folders[:] = sorted(name for name in folders if MODULE.fullmatch(name) and name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py") and MODULE.fullmatch(name.removesuffix(".py")):
                count += 1
                if count > MAX_FILES:
                    hint = "Move the modules that the worker needs to a smaller package."
                    raise ToolUnavailable(f"the folder has more than {MAX_FILES} modules", where=str(folder), hint=hint)
                yield Path(parent) / name


def raise_unreadable(error: OSError) -> None:
    """Raise InvalidFile for a folder that `os.walk` cannot read."""
    raise InvalidFile(f"cannot read the folder: {error.strerror or error}", where=error.filename)


def code_file(path: Path, root: Path, start: Path | None = None, *, allow_links: bool = False) -> CodeFile:
    """Read a file of a project. Raise ToolUnavailable for a link out of the project, unless `allow_links`.

    `start`: the folder that the displayed path is relative to, if not the project.
    """
    try:
        real, top = path.resolve(strict=True), root.resolve()
    except (OSError, RuntimeError) as error:  # missing, no permission, a loop of links
        reason = getattr(error, "strerror", None) or error
        raise ToolUnavailable(f"cannot read the file: {reason}", where=str(path)) from None
    if not allow_links and not real.is_relative_to(top):
        message = f"the file is a link to {real}, outside of the project"
        raise ToolUnavailable(message, where=str(path), hint="Replace it by a copy.")
    return CodeFile(path=real, display_path=path.relative_to(start or root).as_posix(), content=read_source(real))


def _interpreter_link(path: Path, root: Path) -> CodeFile | None:
    """Return a link to an interpreter outside of the project, such as `bin/python` of a virtual environment, or None.

    Trust covers the target of the link, but not the content of the interpreter.
    """
    real = path.resolve()
    is_in_environment = _is_file(path.parent.parent / "pyvenv.cfg")
    if real.is_relative_to(root.resolve()) or not (is_in_environment or is_system_path(real)):
        return None
    shown = f"{path.relative_to(root).as_posix()} -> {real}"
    return CodeFile(path=path.parent.resolve() / path.name, display_path=shown, content=str(real).encode())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return True  # reading it later reports the error


def server_program(worker: Worker, name: str, frame: Frame) -> Path:
    """Return the program of a server: a path in the project if it has a slash, else from the caller's PATH."""
    word = (worker.definition.mcp_servers[name].command or ("",))[0]
    if "/" in word:
        found = worker.project_root(frame) / Path(word).expanduser()
        path = found if found.is_file() else None
    else:
        which = shutil.which(word, path=frame.env.get("PATH"))
        path = Path(which) if which else None
    if path is None:
        message = f"{SERVERS}.{name}.command: program not found: {word!r}"
        raise ToolUnavailable(message, where=worker.place, hint="Install it, or correct the command.")
    return path.absolute()


def server_variables(worker: Worker, name: str, frame: Frame) -> dict[str, str]:
    """Return the caller's variables that the worker file names. Raise ToolUnavailable if one is not allowed."""
    variables = worker.definition.mcp_servers[name].env
    if missing := next((variable for variable in variables if variable not in frame.env), None):
        message = f"{SERVERS}.{name}.env: the variable {missing} is not set or not allowed"
        hint = f"Set it, and allow it in your settings: env: [{missing}]"
        raise ToolUnavailable(message, where=worker.place, hint=hint)
    return {variable: frame.env[variable] for variable in variables}


def readable_folders(worker: Worker, name: str, program: Path, frame: Frame) -> tuple[Path, ...]:
    """Return the folders that a server may read besides the folders of the run.

    These are the installation of its program, the folders of the files in its command, which contain the files that it
    loads, and the packages of both. The home directory of the user is never among them.
    """
    user_home = Path.home()
    found, programs = [*installation_folders(program)], [program]
    for word in (worker.definition.mcp_servers[name].command or ())[1:]:
        path = Path(word).expanduser()
        if path.is_absolute() and path.exists():
            found.append(path if path.is_dir() else path.parent)
            programs += [] if path.is_dir() else [path]
    project = worker.project_root(frame).resolve()  # a rule may hide it
    found += [root for path in programs for root in package_roots(path) if not project.is_relative_to(root)]
    return tuple(path for path in dict.fromkeys(found) if path not in (*user_home.parents, user_home))


def check_output_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """Return the schema. Raise InvalidFile unless it describes an object and all references are to its own parts."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        path = ".".join(map(str, error.absolute_path)) or "the schema"
        raise InvalidFile(
            f"invalid JSON Schema: {path}: invalid value {format_value(error.instance)}", where=where
        ) from None
    except RecursionError:
        raise InvalidFile("invalid JSON Schema: nested too deeply", where=where) from None
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        raise InvalidFile("invalid output schema: must have `type: object`", where=where)
    for reference in _references(schema):
        if not _is_resolvable(reference, cast("dict[str, Any]", schema)):
            hint = "Refer to a part of the same schema, such as #/$defs/part."
            raise InvalidFile(
                f"invalid JSON Schema: unresolvable reference {format_value(reference)}", where=where, hint=hint
            )
    return cast("dict[str, Any]", schema)


def _references(schema: Any) -> Iterator[str]:
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            fields = cast("dict[str, Any]", part)
            yield from (fields[name] for name in ("$ref", "$dynamicRef") if isinstance(fields.get(name), str))
            pending += fields.values()
        elif isinstance(part, list):
            pending += cast("list[Any]", part)


def _is_resolvable(reference: str, schema: Mapping[str, Any]) -> bool:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

    if not reference.startswith("#"):
        return False
    registry = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(schema))
    try:
        return isinstance(registry.resolver().lookup(reference).contents, dict | bool)
    except (Unresolvable, ValueError, TypeError):
        return False


@dataclass(frozen=True)
class Trust:
    """The files that the user of a home trusts."""

    pins: Mapping[Path, Pin]
    program_folder: Path | None = None  # folder of the running program, which the user trusts

    def files(self, code: Code) -> tuple[FileTrust, ...]:
        """Return the trust in each file of the code, and in the deleted files of a package."""
        found = [self._compare(file.path, file.display_path, len(file.content), file.digest) for file in code.files]
        if code.folder is not None:
            real, root, existing = code.folder.resolve(), code.root.resolve(), {file.path for file in code.files}
            deleted = [path for path in sorted(self.pins) if path.is_relative_to(real) and path not in existing]
            found += [self._compare(path, path.relative_to(root).as_posix(), 0, None) for path in deleted]
        return tuple(found)

    def _compare(self, path: Path, display_path: str, size: int, digest: str | None) -> FileTrust:
        """Compare a file with its pin. `digest`: None if the file was deleted."""
        pin = self.pins.get(path)
        if pin is None:
            return FileTrust(path=path, display_path=display_path, size=size, digest=digest or "", state="new")
        state: TrustState = "gone" if digest is None else "trusted" if digest == pin.digest else "changed"
        trusted_at, digest = pin.trusted_at, digest or pin.digest
        return FileTrust(
            path=path, display_path=display_path, size=size, digest=digest, state=state, trusted_at=trusted_at
        )

    def is_trusted(self, code: Code) -> bool:
        """Return True if the code may be executed: it is in the home, or every file is trusted and unchanged."""
        if self.program_folder is not None and code.root.resolve() == self.program_folder:
            return True
        return code.is_own or all(file.state == "trusted" for file in self.files(code))

    def check(self, code: Code, worker: Worker, frame: Frame) -> None:
        """Raise NotTrusted unless the code may be executed."""
        if self.is_trusted(code):
            return
        message = f"{_FIELDS.get(code.kind, 'output_schema_ref')}: {code.name} is {self.describe_untrusted(code)}"
        hint = f"Review and trust it: {trust_command(worker, frame)}"
        raise NotTrusted(message, where=worker.place, hint=hint)

    def describe_untrusted(self, code: Code) -> str:
        """Return the part of an error message that names the files that are not trusted."""
        files = [f"{file.display_path} ({file.state_text})" for file in self.files(code) if file.state != "trusted"]
        more = f", and {len(files) - 5} more" if len(files) > 5 else ""
        return f"untrusted code: {', '.join(files[:5])}{more}"


def trust_command(worker: Worker, frame: Frame) -> str:
    """Return the command that the user runs to review and trust the code of a worker."""
    if worker.path.parent in (frame.root / WORKERS, frame.root / WORKERS / GENERATED):
        return "guild trust"
    return f"guild trust {shlex.quote(str(worker.path))}"
