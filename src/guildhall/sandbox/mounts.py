"""Mount plan: computes the paths that a confined program can read, can write or cannot see.

The innermost path decides. The plan is computed for every start, because the content of folders changes.
`hold_placeholders` prevents the creation of missing protected paths.
Does not mount anything (see `sandbox.jail`).

Invariant: a program cannot change Guildhall itself, a protected path of the view, or a git directory. Git directories
are searched down to three levels of a folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.core.errors import ToolUnavailable
from guildhall.core.paths import is_placeholder

if TYPE_CHECKING:
    from guildhall.sandbox.view import View


Access = Literal["read", "write", "hidden"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/run/current-system/sw")
# Configuration that programs need. No keys: /etc/ssl/private, /etc/pki/tls/private and the like are excluded.
_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "gai.conf", "group", "host.conf", "hosts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "locale.alias", "locale.conf", "localtime", "machine-id", "magic", "mime.types", "nsswitch.conf",
    "os-release", "passwd", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "profile",
    "protocols", "resolv.conf", "services", "shells", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo",
    "timezone",
)  # fmt: skip
_NEVER_FOLDERS = tuple(map(Path, ("/", "/proc", "/sys", "/dev", "/run", "/etc")))
_NESTED_DEPTH = 3
_MAX_NESTED_FOLDERS = 20_000  # in a writable folder, down to that depth
_WITHOUT_REPOSITORIES = frozenset({"node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", "target"})


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The paths and resources of a confined program."""

    view: View
    network: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    read_only: tuple[Path, ...] = ()  # visible besides the view's folders
    home: Path | None = None  # HOME of the program, a folder of the view; None is an empty temporary folder
    memory_bytes: int = 4 * 1024**3  # for each process
    file_bytes: int = 2 * 1024**3  # for each written file
    processes: int = 1024  # besides the running processes; the kernel does not limit root
    scratch_bytes: int = 1024**3  # size of /tmp, if it is a separate file system


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A path of the program's file system with its access."""

    path: Path
    source: Path  # the real path outside, without symbolic links
    access: Access
    is_pin: bool = False  # only prevents renaming of a folder above a hidden or protected path

    @property
    def depth(self) -> int:
        return len(self.path.parts)

    def contains(self, path: Path) -> bool:
        return self.path == path or self.path in path.parents


@dataclass(frozen=True, kw_only=True)
class MountPlan:
    """The mounts of a program, outer mounts first. A mount applies to the paths below it, up to the next mount."""

    mounts: tuple[Mount, ...]
    links: tuple[tuple[Path, str], ...]  # /bin -> usr/bin and the like
    cwd: Path
    placeholders: tuple[Path, ...] = ()  # protected sources that are missing or are placeholders

    def exclude(self, sources: Collection[Path]) -> MountPlan:
        return replace(self, mounts=tuple(mount for mount in self.mounts if mount.source not in sources))


def plan_mounts(confinement: Confinement) -> MountPlan:
    """Return the plan for a confinement and the current content of its folders."""
    links, system = _system_mounts()
    view = confinement.view
    hiding = _Hiding(hidden=tuple(map(_real, view.hidden)), shown=tuple(map(_real, view.shown)))
    folders = _folder_mounts(view, hiding)
    programs = [_read_only(path) for path in (*program_paths(), *confinement.read_only) if _is_readable(path)]
    repositories = [mount for folder in folders for mount in _git_mounts(folder, folders, hiding)]
    protected = _protected_mounts(folders, view.protected)
    chosen: dict[Path, Mount] = {}
    for mount in (*system, *protected, *folders, *repositories, *programs):
        # Of two folders with one path, the writable folder counts.
        is_writable = mount in folders and any(o.path == mount.path and o.access == "write" for o in folders)
        chosen[mount.path] = replace(mount, access="write") if is_writable else mount
    visible = [mount for mount in chosen.values() if not hiding.hides(mount.source) or mount.source in hiding.shared]
    masks = [mask for mount in visible for mask in _masks(mount, hiding.hidden)]
    pins = _pins(visible, [*masks, *(mount for mount in visible if mount not in repositories)])
    mounts = sorted((*visible, *pins, *dict.fromkeys(masks)), key=lambda mount: mount.depth)
    missing = dict.fromkeys(
        mount.source
        for mount in visible
        if mount in protected and (not mount.source.exists() or is_placeholder(mount.source))
    )
    cwd = view.cwd.absolute()
    if not (cwd.is_dir() and any(folder.contains(cwd) for folder in folders)):
        cwd = Path("/tmp")
    return MountPlan(mounts=tuple(mounts), links=tuple(links), cwd=cwd, placeholders=tuple(missing))


def program_paths() -> tuple[Path, ...]:
    """Return the folders of Python, its packages and Guildhall, which no run may change."""
    named = (Path(sys.base_prefix), Path(sys.prefix), *map(Path, import_paths()))
    return tuple(dict.fromkeys((*named, *map(_real, named))))


def installation_folders(program: Path) -> tuple[Path, ...]:
    """Return the folders of an installed program and of its link target: the parent of `bin`, or the folder itself.

    If that folder is at the top of the file system, only the program is returned.
    """
    installed: list[Path] = []
    for path in dict.fromkeys((program, program.resolve())):
        folder = path.parent.parent if path.parent.name == "bin" else path.parent
        installed.append(folder if len(folder.parts) > 2 else path)
    return tuple(dict.fromkeys(installed))


def package_roots(program: Path) -> tuple[Path, ...]:
    """Return the folders of the packages that a program and its link target can import.

    These are the outermost node_modules, the folder of package.json, or a virtual environment.
    """
    return tuple(dict.fromkeys(root for path in (program, program.resolve()) if (root := _package_root(path))))


def _package_root(path: Path) -> Path | None:
    if modules := [folder for folder in path.parents if folder.name == "node_modules"]:
        return modules[-1]  # packages import the packages beside them
    folders = (folder for folder in path.parents if len(folder.parts) > 2)
    return next((f for f in folders if (f / "package.json").is_file() or (f / "pyvenv.cfg").is_file()), None)


def is_system_path(path: Path) -> bool:
    """Return True for a path in a folder of the operating system."""
    return any(path.is_relative_to(folder) for folder in _SYSTEM)


def import_paths() -> list[str]:
    """Return the `sys.path` with which Python without its site module can import Guildhall and its packages."""
    names = {"site-packages", "dist-packages"}
    packages = [path for path in map(Path, sys.path) if path.name in names and path.is_dir()]
    return [str(path) for path in (Path(__file__).parents[2], *packages)]


def _system_mounts() -> tuple[list[tuple[Path, str]], list[Mount]]:
    """Return the links of the root directory, such as /bin, and the mounts of the operating system."""
    links: list[tuple[Path, str]] = []
    mounts: list[Mount] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink() and len(path.parts) == 2:
            links.append((path, str(path.readlink())))
        elif path.exists():
            mounts.append(_read_only(path))
    mounts += [_read_only(path) for name in _ETC if _is_readable(path := Path("/etc") / name)]
    return links, mounts


def _read_only(path: Path) -> Mount:
    return Mount(path=path.absolute(), source=_real(path), access="read")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK)


def _is_below(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(path == root or root in path.parents for root in roots)


@dataclass(frozen=True, kw_only=True)
class _Hiding:
    """The hidden paths, and the shown paths below them."""

    hidden: tuple[Path, ...]
    shown: tuple[Path, ...]
    shared: set[Path] = field(default_factory=set[Path])  # git directories of shown worktrees

    def hides(self, path: Path) -> bool:
        enclosing = [root for root in (*self.hidden, *self.shown) if _is_below(path, (root,))]
        return max(enclosing, key=lambda root: (len(root.parts), root in self.hidden), default=None) in self.hidden


def _folder_mounts(view: View, hiding: _Hiding) -> list[Mount]:
    writable = [folder.path.absolute() for folder in view.folders if folder.is_writable]
    mounts: list[Mount] = []
    for folder in view.folders:
        path, source = folder.path.absolute(), _real(folder.path)
        if source in _NEVER_FOLDERS or _is_below(source, _NEVER_FOLDERS[1:4]):
            hint = "Use another folder as the sandbox or the working folder."
            raise ToolUnavailable(f"cannot confine a program to {source}: a folder of the system", hint=hint)
        # Skip a folder inside a writable folder that was replaced by a link.
        is_replaced = any(
            outer in path.parents and _real(outer) / path.relative_to(outer) != source for outer in writable
        )
        if not is_replaced and source.exists() and not hiding.hides(source):
            mounts.append(Mount(path=path, source=source, access="write" if folder.is_writable else "read"))
    return mounts


def _protected_mounts(folders: list[Mount], protected: tuple[Path, ...]) -> list[Mount]:
    """Return read-only mounts for the protected paths below writable folders, even for missing paths."""
    found: list[Mount] = []
    writable_first = sorted(folders, key=lambda folder: folder.access != "write")  # the first of a path counts
    for source in sorted(protected, key=lambda path: len(path.parts)):
        for folder in folders:
            path = folder.path / source.relative_to(folder.source) if folder.source in source.parents else None
            if path is None or _access_of(path, [*writable_first, *found]) != "write" or not source.parent.is_dir():
                continue
            if source.is_symlink():
                hint = "Replace the link by its target, or use a folder for the worker that does not contain the link."
                raise ToolUnavailable(f"cannot protect {source}: it is a link", hint=hint)
            found.append(Mount(path=path, source=source, access="read"))
    return found


def _masks(mount: Mount, hidden: tuple[Path, ...]) -> list[Mount]:
    """Return mounts that cover the hidden paths below a mount."""
    return [
        Mount(path=mount.path / path.relative_to(mount.source), source=path, access="hidden")
        for path in hidden
        if mount.source in path.parents and path.exists()
    ]


def _pins(visible: list[Mount], fixed: list[Mount]) -> list[Mount]:
    """Return mounts for the folders between a writable mount and a protected or hidden path below it.

    Otherwise a program could rename such a folder, and the next program would see the hidden path under the new name.
    """
    pins: dict[Path, Mount] = {}
    taken = {mount.path for mount in (*visible, *fixed)}
    for inner in fixed:
        outer = [mount for mount in visible if mount.access == "write" and mount.path in inner.path.parents]
        for mount in outer:
            for parent in inner.path.parents:
                if parent == mount.path:
                    break
                if parent not in taken:
                    access = _access_of(parent, visible)
                    source = mount.source / parent.relative_to(mount.path)
                    pins[parent] = Mount(path=parent, source=source, access=access, is_pin=True)
    return list(pins.values())


def _access_of(path: Path, mounts: list[Mount]) -> Access:
    return max((mount for mount in mounts if mount.contains(path)), key=lambda mount: mount.depth).access


# Files in a git directory can make git execute programs, so no confined program may change them.


def _git_mounts(folder: Mount, folders: list[Mount], hiding: _Hiding) -> list[Mount]:
    """Return read-only mounts for the git directories of a folder and the shared one of a linked worktree."""
    found: list[Mount] = []
    for marker in _git_markers(folder):
        if marker.is_symlink():
            continue
        path = folder.path / marker.relative_to(folder.source)
        found.append(Mount(path=path, source=marker, access="read"))
        if marker.is_file() and marker.parent == folder.source:
            shared = _shared_git_directory(marker, folders)
            found += [Mount(path=shared, source=shared, access="read")] if shared else []
            if shared and _is_below(folder.source, hiding.shown):  # the shared directory is in the hidden checkout
                hiding.shared.add(shared)
    return found if folder.access == "write" else [mount for mount in found if folder.path not in mount.path.parents]


def _git_markers(folder: Mount) -> list[Path]:
    """Return the `.git` entries of a folder, and those of its subfolders if it is writable."""
    if folder.access != "write":
        return [marker] if (marker := folder.source / ".git").exists() else []
    markers: list[Path] = []
    folder_count = 0
    for parent, names, files in os.walk(folder.source):
        if ".git" in names or ".git" in files:
            markers.append(Path(parent) / ".git")
        depth = len(Path(parent).relative_to(folder.source).parts)
        deeper = depth < _NESTED_DEPTH
        names[:] = [name for name in names if name not in _WITHOUT_REPOSITORIES and name != ".git"] if deeper else []
        folder_count += len(names)
        if folder_count > _MAX_NESTED_FOLDERS:
            message = (
                f"cannot protect the git repositories in {folder.source}: more than {_MAX_NESTED_FOLDERS:,} folders"
            )
            raise ToolUnavailable(message, hint="Use a writable sandbox with fewer folders.")
    return markers


def _shared_git_directory(marker: Path, folders: list[Mount]) -> Path | None:
    """Return the common git directory that a linked worktree's `.git` file names, or None if it cannot be trusted.

    The run may write the file. Therefore the directory must refer back to the file, have the layout of git, and not be
    writable for the run.
    """
    try:
        named = marker.read_text("utf-8")[:4096].strip().removeprefix("gitdir:").strip()
        git_dir = _real(marker.parent / named)
        back_reference = _real(Path((git_dir / "gitdir").read_text("utf-8")[:4096].strip()))
    except (OSError, ValueError):
        return None
    common = git_dir.parent.parent
    writable = tuple(mount.source for mount in folders if mount.access == "write")
    if back_reference != marker or git_dir.parent.name != "worktrees" or _is_below(git_dir, writable):
        return None
    return common if (common / "objects").is_dir() and (common / "HEAD").is_file() else None


_MAX_HOLD_ATTEMPTS = 100
# Errors that a confined program gets too.
_NOT_CREATABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def hold_placeholders(paths: Iterable[Path]) -> Generator[frozenset[Path]]:
    """Create and lock placeholders at missing paths within the block. Yield the paths that cannot be created."""
    opened: dict[Path, int] = {}
    skipped: set[Path] = set()
    try:
        for path in paths:
            try:
                opened[path] = _hold(path)
            except OSError as error:
                if error.errno not in _NOT_CREATABLE:
                    message = f"cannot protect {path}: {error.strerror}"
                    raise ToolUnavailable(message, hint="Create an empty file or folder there.") from None
                if not path.exists():
                    skipped.add(path)
        yield frozenset(skipped)
    finally:
        for path, fd in opened.items():
            _release(path, fd)


def _hold(path: Path) -> int:
    """Open the file or folder at the path, create it if necessary, and lock it against removal."""
    for _ in range(_MAX_HOLD_ATTEMPTS):
        with suppress(FileExistsError):  # created with the sticky bit in one step, so that it never exists without
            if path.suffix:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_ISVTX | 0o644))
            else:
                path.mkdir(stat.S_ISVTX | 0o755)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_at(path, fd):
            return fd
        os.close(fd)  # removed before it was locked
    raise OSError(errno.EBUSY, "another process removes it repeatedly")


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _release(path: Path, fd: int) -> None:
    """Remove a placeholder, unless another program holds it or it has content."""
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while another program holds it
            mode = os.fstat(fd).st_mode
            if not _is_at(path, fd) or not mode & stat.S_ISVTX:
                return
            if not is_placeholder(path):
                os.fchmod(fd, stat.S_IMODE(mode) & ~stat.S_ISVTX)
            elif stat.S_ISDIR(mode):
                path.rmdir()
            else:
                path.unlink()
    finally:
        os.close(fd)
