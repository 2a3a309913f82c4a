"""Mount plan: computes the ordered list of paths that a confined program can read, write or not see.

The innermost path decides. The plan is computed for every start, because the content of folders changes between
starts. `held` keeps protected paths in place while programs run. Does not mount anything (see `sandbox.jail`).

Invariant: a program cannot change Guildhall itself, a path that the view keeps, or a git directory. Git directories are
searched down to three levels of a folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from guildhall.core.errors import ToolUnavailable
from guildhall.core.paths import stands_in

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping

    from guildhall.sandbox.view import View


Access = Literal["read", "write", "hidden"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/run/current-system/sw")
# What programs look up about the machine. No keys: /etc/ssl/private, /etc/pki/tls/private and the like stay out.
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
_NESTED_ENTRIES = 20_000
_WITHOUT_REPOSITORIES = frozenset({"node_modules", ".venv", "venv", "__pycache__", ".tox", ".nox", "target"})


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """The paths and resources of a confined program. It sees nothing else."""

    view: View
    network: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    read_only: tuple[Path, ...] = ()  # seen beside the view's folders, never changed
    home: Path | None = None  # its HOME, one of the view's folders; None: an empty place that goes with it
    memory_bytes: int = 4 * 1024**3  # for each process
    file_bytes: int = 2 * 1024**3  # the largest file that it may write
    processes: int = 1024  # beside those that run already; the kernel limits ordinary users only, not root
    scratch_bytes: int = 1024**3  # its own /tmp, where that is a separate place


@dataclass(frozen=True, kw_only=True)
class Place:
    """A path that the program sees. `path` is where; `source` what is there, without symbolic links in it."""

    path: Path
    source: Path
    access: Access
    is_pin: bool = False  # there only so that the folder cannot be moved away with what is hidden or kept below it

    @property
    def depth(self) -> int:
        return len(self.path.parts)

    def holds(self, path: Path) -> bool:
        """Return True if the path is the place or below it."""
        return self.path == path or self.path in path.parents


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All places, outer ones first: each counts for what is below it, up to the next."""

    places: tuple[Place, ...]
    links: tuple[tuple[Path, str], ...]  # /bin -> usr/bin and the like
    cwd: Path
    missing: tuple[Path, ...] = ()  # sources of places that are to stay empty: they are not there, or hold a name only

    def without(self, sources: Collection[Path]) -> Plan:
        """Return the plan without the places of these sources."""
        return replace(self, places=tuple(place for place in self.places if place.source not in sources))


def planned(confinement: Confinement) -> Plan:
    """Return the plan for a confinement, as the disk is now."""
    links, system = _system()
    view = confinement.view
    covers = _Covers(hidden=tuple(map(_real, view.hidden)), shown=tuple(map(_real, view.shown)))
    folders = _folders(view, covers)
    kept = [_seen(path) for path in (*program_paths(), *confinement.read_only) if _readable(path)]
    repositories = [place for folder in folders for place in _repositories(folder, folders, covers)]
    deciding = _kept(folders, view.kept)
    chosen: dict[Path, Place] = {}
    for place in (*system, *deciding, *folders, *repositories, *kept):
        twice = place in folders and any(other.path == place.path and other.access == "write" for other in folders)
        chosen[place.path] = replace(place, access="write") if twice else place  # writable if either says so
    visible = [place for place in chosen.values() if not covers.hides(place.source) or place.source in covers.shared]
    masks = [mask for place in visible for mask in _masks(place, covers.hidden)]
    pins = _pins(visible, [*masks, *(place for place in visible if place not in repositories)])
    places = sorted((*visible, *pins, *dict.fromkeys(masks)), key=lambda place: place.depth)
    missing = dict.fromkeys(
        place.source
        for place in visible
        if place in deciding and (not place.source.exists() or stands_in(place.source))
    )
    return Plan(places=tuple(places), links=tuple(links), cwd=_cwd(view.cwd, folders), missing=tuple(missing))


def program_paths() -> tuple[Path, ...]:
    """Return the folders of Python, its packages and Guildhall, which no run may change."""
    named = (Path(sys.base_prefix), Path(sys.prefix), *map(Path, import_paths()))
    return tuple(dict.fromkeys((*named, *map(_real, named))))


def import_paths() -> list[str]:
    """Return the path on which a Python without its site module can import Guildhall and the packages."""
    names = {"site-packages", "dist-packages"}
    packages = [path for path in map(Path, sys.path) if path.name in names and path.is_dir()]
    return [str(path) for path in (Path(__file__).parents[2], *packages)]


def _system() -> tuple[list[tuple[Path, str]], list[Place]]:
    links: list[tuple[Path, str]] = []
    places: list[Place] = []
    for path in map(Path, _SYSTEM):
        if path.is_symlink() and len(path.parts) == 2:
            links.append((path, str(path.readlink())))
        elif path.exists():
            places.append(_seen(path))
    places += [_seen(path) for name in _ETC if _readable(path := Path("/etc") / name)]
    return links, places


def _seen(path: Path) -> Place:
    return Place(path=path.absolute(), source=_real(path), access="read")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _readable(path: Path) -> bool:
    return os.access(path, os.R_OK)


def _below(path: Path, roots: tuple[Path, ...]) -> bool:
    return any(path == root or root in path.parents for root in roots)


@dataclass(frozen=True, kw_only=True)
class _Covers:
    """The hidden paths, and the shown paths below them."""

    hidden: tuple[Path, ...]
    shown: tuple[Path, ...]
    shared: set[Path] = field(default_factory=set[Path])  # git directories of what is shown

    def hides(self, path: Path) -> bool:
        around = [one for one in (*self.hidden, *self.shown) if _below(path, (one,))]
        return max(around, key=lambda one: (len(one.parts), one in self.hidden), default=None) in self.hidden


def _folders(view: View, covers: _Covers) -> list[Place]:
    writable = [folder.path.absolute() for folder in view.folders if folder.writable]
    places: list[Place] = []
    for folder in view.folders:
        path, source = folder.path.absolute(), _real(folder.path)
        if source in _NEVER_FOLDERS or _below(source, _NEVER_FOLDERS[1:4]):
            hint = "Name the folder that holds the work, not a folder of the operating system."
            raise ToolUnavailable(f"{source} cannot be given to a confined program", hint=hint)
        # A folder inside a writable one may have been replaced by a link to somewhere else: then it is not given.
        moved = any(outer in path.parents and _real(outer) / path.relative_to(outer) != source for outer in writable)
        if not moved and source.exists() and not covers.hides(source):
            places.append(Place(path=path, source=source, access="write" if folder.writable else "read"))
    return places


def _kept(folders: list[Place], kept: tuple[Path, ...]) -> list[Place]:
    """Return the kept paths below writable folders as read-only places, whether they exist or not."""
    found: list[Place] = []
    open_first = sorted(folders, key=lambda folder: folder.access != "write")  # of two at one place it counts
    for source in sorted(kept, key=lambda path: len(path.parts)):
        for folder in folders:
            path = folder.path / source.relative_to(folder.source) if folder.source in source.parents else None
            if path is None or _access_of(path, [*open_first, *found]) != "write" or not source.parent.is_dir():
                continue
            if source.is_symlink():
                hint = "Make it what the link leads to, or give the worker a folder beside it, not one above it."
                raise ToolUnavailable(f"{source} is a link, which a program could replace", hint=hint)
            found.append(Place(path=path, source=source, access="read"))
    return found


def _masks(place: Place, hidden: tuple[Path, ...]) -> list[Place]:
    """Return the hidden paths below a place, where the program would see them."""
    return [
        Place(path=place.path / path.relative_to(place.source), source=path, access="hidden")
        for path in hidden
        if place.source in path.parents and path.exists()
    ]


def _pins(visible: list[Place], kept: list[Place]) -> list[Place]:
    """Return the folders between a writable place and a kept or hidden path below it.

    Otherwise a program could rename such a folder, and the next program would see the hidden path under the new name.
    """
    pins: dict[Path, Place] = {}
    taken = {place.path for place in (*visible, *kept)}
    for inner in kept:
        outer = [place for place in visible if place.access == "write" and place.path in inner.path.parents]
        for place in outer:
            for parent in inner.path.parents:
                if parent == place.path:
                    break
                if parent not in taken:
                    access = _access_of(parent, visible)
                    source = place.source / parent.relative_to(place.path)
                    pins[parent] = Place(path=parent, source=source, access=access, is_pin=True)
    return list(pins.values())


def _access_of(path: Path, places: list[Place]) -> Access:
    return max((place for place in places if place.holds(path)), key=lambda place: place.depth).access


def _cwd(wanted: Path, folders: list[Place]) -> Path:
    wanted = wanted.absolute()
    return wanted if wanted.is_dir() and any(place.holds(wanted) for place in folders) else Path("/tmp")


# Git: what a repository keeps about itself can make git run programs, so no confined program changes it.


def _repositories(folder: Place, folders: list[Place], covers: _Covers) -> list[Place]:
    """Return the git directories of a folder, read-only, and the shared one of a linked worktree."""
    found: list[Place] = []
    for marker in _git_markers(folder):
        if marker.is_symlink():
            continue
        path = folder.path / marker.relative_to(folder.source)
        found.append(Place(path=path, source=marker, access="read"))
        if marker.is_file() and marker.parent == folder.source:
            shared = _shared_git_directory(marker, folders)
            found += [Place(path=shared, source=shared, access="read")] if shared else []
            if shared and _below(folder.source, covers.shown):  # it lies in the user's folder, which is hidden
                covers.shared.add(shared)
    return found if folder.access == "write" else [place for place in found if folder.path not in place.path.parents]


def _git_markers(folder: Place) -> list[Path]:
    """Return every `.git` of a folder, down to a few levels."""
    if folder.access != "write":
        return [marker] if (marker := folder.source / ".git").exists() else []
    markers: list[Path] = []
    seen = 0
    for parent, names, files in os.walk(folder.source):
        seen += len(names) + len(files)
        if ".git" in names or ".git" in files:
            markers.append(Path(parent) / ".git")
        depth = len(Path(parent).relative_to(folder.source).parts)
        deeper = depth < _NESTED_DEPTH and seen < _NESTED_ENTRIES
        names[:] = [name for name in names if name not in _WITHOUT_REPOSITORIES and name != ".git"] if deeper else []
    return markers


def _shared_git_directory(marker: Path, folders: list[Place]) -> Path | None:
    """Return the common git directory that a linked worktree's `.git` file names, or None if it cannot be trusted.

    The run may write the file. So the directory must name the file too, be where git puts such directories, and be out
    of the run's reach.
    """
    try:
        named = marker.read_text("utf-8")[:4096].strip().removeprefix("gitdir:").strip()
        own = _real(marker.parent / named)
        back = _real(Path((own / "gitdir").read_text("utf-8")[:4096].strip()))
    except (OSError, ValueError):
        return None
    common = own.parent.parent
    writable = tuple(place.source for place in folders if place.access == "write")
    if back != marker or own.parent.name != "worktrees" or _below(own, writable):
        return None
    return common if (common / "objects").is_dir() and (common / "HEAD").is_file() else None


_TRIES = 100
# Where we may not make it, a program of ours may not either.
_OUT_OF_REACH = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def held(paths: Iterable[Path]) -> Generator[frozenset[Path]]:
    """Create and lock placeholders at missing paths within the block. Yield the paths that cannot be created."""
    opened: dict[Path, int] = {}
    lost: set[Path] = set()
    try:
        for path in paths:
            try:
                opened[path] = _hold(path)
            except OSError as error:
                if error.errno not in _OUT_OF_REACH:
                    why = f"{path} cannot be kept from the program: {error.strerror}"
                    raise ToolUnavailable(why, hint="Make it yourself, empty, and try again.") from None
                if not path.exists():
                    lost.add(path)
        yield frozenset(lost)
    finally:
        for path, fd in opened.items():
            _release(path, fd)


def _hold(path: Path) -> int:
    """Open the file or folder at the path, create it if necessary, and lock it against removal."""
    for _ in range(_TRIES):
        with suppress(FileExistsError):
            _make(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if _is_at(path, fd):
            return fd
        os.close(fd)  # it was taken away before we had the lock
    raise OSError(errno.EBUSY, "it comes and goes")


def _make(path: Path) -> None:
    """Create a placeholder with the sticky bit in a single step, so that it never exists without."""
    if path.suffix:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_ISVTX | 0o644))
    else:
        path.mkdir(stat.S_ISVTX | 0o755)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except OSError:
        return False


def _release(path: Path, fd: int) -> None:
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while another program relies on it
            mode = os.fstat(fd).st_mode
            if not _is_at(path, fd) or not mode & stat.S_ISVTX:
                return
            if not stands_in(path):  # somebody has put something there: it is theirs now
                os.fchmod(fd, stat.S_IMODE(mode) & ~stat.S_ISVTX)
            elif stat.S_ISDIR(mode):
                path.rmdir()
            else:
                path.unlink()
    finally:
        os.close(fd)
