"""The git command: runs git on the objects and refs of a repository, and reads, writes and merges trees.

Git runs with a separate git directory below the home, which has the hall's own config, attributes and hooks.
Does not decide which refs move (`integration.py`) and does not read the files of a checkout (`snapshot.py`).

Invariant: git never obeys or executes settings from the user's config, from `.gitattributes` or from a worker's
checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from guildhall.core.errors import GitFailed, NotFound, TimedOut, ToolUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

LEAST_VERSION = (2, 38)  # merge-tree --write-tree
_PATIENCE = 300.0  # seconds for one call
_HALL = ("Guildhall", "hall@guildhall.invalid")
_SAID = 2000  # characters of git's own words in an error
_VERSION = re.compile(r"git version (\d+)\.(\d+)")
_LOCKED = re.compile(r"Unable to create '([^'\n]+\.lock)': File exists")
_LOCKS = 5  # that one move may meet
_STALE = 0.9  # seconds; git itself has waited for longer
_STALE_SHARED = 60.0  # of a lock that may be the user's
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMITS = ("refs/heads/", "refs/guildhall/")  # there is nothing else there; a tag is something of its own

# What is off in every call, whatever config says. `-c` counts more than any file.
_OFF = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "core.pager=cat",
    "core.editor=false", "core.askPass=", "credential.helper=", "gc.auto=0", "maintenance.auto=false",
    "submodule.recurse=false", "commit.gpgSign=false", "tag.gpgSign=false", "log.showSignature=false",
    "core.filesRefLockTimeout=1000", "core.packedRefsTimeout=3000", "core.quotePath=false", "advice.detachedHead=false",
    "core.excludesFile=/dev/null", "core.attributesFile=/dev/null", "protocol.allow=never",
)  # fmt: skip
# The only variables of git, beside PATH: nothing else of the hall's environment, and no config of anybody.
_ENVIRONMENT = {
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
# At the desk: files are bytes. No line ends are changed, no filter is asked, no driver of anybody's merges.
_ATTRIBUTES = "* -text -eol -crlf -ident -filter -working-tree-encoding !merge !diff\n"


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The outcome of a call of git."""

    code: int
    out: bytes
    said: str  # on stderr

    @property
    def line(self) -> str:
        return self.out.decode("utf-8", "surrogateescape").strip()


class Git:
    """Git for one repository."""

    def __init__(self, repo: Path, desk: Path) -> None:
        """`desk`: a folder of the hall's own for this repository; it is made when it is first needed."""
        self.repo = repo
        self._desk = desk

    @cached_property
    def _found(self) -> tuple[Path, str]:
        return _find(self.repo)

    @property
    def common(self) -> Path:
        """Return the git directory that all checkouts of the repository share."""
        return self._found[0]

    @property
    def nothing(self) -> str:
        """Return the null id: as many zeros as the repository's ids have digits."""
        return "0" * (64 if self._found[1] == "sha256" else 40)

    def run(
        self,
        *args: str,
        tree: Path | None = None,
        index: Path | None = None,
        input: bytes | int | None = None,
        ok: tuple[int, ...] = (0,),
        author: str | None = None,
    ) -> Completed:
        """Git on objects, an index or a checkout, at the desk. Refs of the user's are not seen: give commits by id.

        `tree`: the checkout; none: an empty one. `index`: its index; none: an empty one. `input`: or a descriptor.
        """
        env = {
            "GIT_DIR": str(self.desk),
            "GIT_OBJECT_DIRECTORY": str(self.common / "objects"),
            "GIT_WORK_TREE": str(tree or self.desk / "empty"),
            "GIT_INDEX_FILE": str(index or self.desk / "none"),
            "GIT_SHALLOW_FILE": str(self.common / "shallow"),
            "GIT_ATTR_NOSYSTEM": "1",
        }
        return _call(args, cwd=tree or self.desk / "empty", env={**env, **_people(author)}, input=input, ok=ok)

    def theirs(self, *args: str, input: bytes | None = None, ok: tuple[int, ...] = (0,)) -> Completed:
        """Git in the user's repository itself: to ask for refs and to move those of the hall."""
        env = {"GIT_DIR": str(self.common), "GIT_WORK_TREE": str(self.desk / "empty"), **_people(None)}
        return _call(args, cwd=self.desk / "empty", env=env, input=input, ok=ok)

    def resolve(self, ref: str) -> str | None:
        """Return the commit of a branch, a full ref or a commit id, or None."""
        if not is_object(ref):
            ref = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
            if (found := self._in_its_file(ref)) is not None:
                return found
        found = self.theirs("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}", ok=(0, 1, 128))
        return found.line if found.code == 0 else None

    def _in_its_file(self, ref: str) -> str | None:
        """Return the commit in the file of a branch, as git would read it, but without a process."""
        if not ref.startswith(_COMMITS) or ".." in ref:
            return None
        try:
            told = (self.common / ref).read_text("ascii")
        except (OSError, ValueError):
            return None
        return told[:-1] if told.endswith("\n") and is_object(told[:-1]) else None

    def move(self, why: str, *lines: str) -> None:
        """Move refs of the hall, all or none: `update REF NEW OLD`, `delete REF OLD`. OLD is zeros for a new ref."""
        told = "".join(f"{line}\n" for line in ("start", *lines, "prepare", "commit")).encode()
        reason = "".join(one for one in why if one.isprintable() or one == "\n").strip().partition("\n")[0]
        words = ("update-ref", "--create-reflog", "-m", f"guildhall: {reason}", "--stdin")
        for left in reversed(range(_LOCKS)):
            try:
                self.theirs(*words, input=told)
                return
            except GitFailed as error:
                if not left or not self._unlocked(error.message):
                    raise

    def _unlocked(self, said: str) -> bool:
        """Takes away the lock of a ref of ours that a git has left which was killed: a live one has it for a moment."""
        found = _LOCKED.search(said)
        lock = Path(found[1]) if found else self.common
        own = any(lock.is_relative_to(self.common / place) for place in ("refs/heads/claude", "refs/guildhall"))
        shared = lock == self.common / "packed-refs.lock"
        try:
            if not (own or shared) or time.time() - lock.stat().st_mtime < (_STALE if own else _STALE_SHARED):
                return False
            lock.unlink(missing_ok=True)
        except OSError:
            return False
        return True

    @contextmanager
    def scratch(self) -> Generator[Path]:
        """Yield a folder for a temporary index."""
        with TemporaryDirectory(dir=self.desk / "scratch", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @cached_property
    def desk(self) -> Path:
        """Return the hall's own git directory for this repository. Create or complete it if necessary."""
        made = self._desk / "made"  # for which repository: another one may have got the name since
        if not made.exists() or made.read_text() != str(self.common):
            self._make_desk()
            made.write_text(str(self.common))
        return self._desk

    def _make_desk(self) -> None:
        for name in ("empty", "scratch", "info", "objects", "refs"):
            (self._desk / name).mkdir(parents=True, exist_ok=True)
        (self._desk / "HEAD").write_text("ref: refs/heads/none\n")
        (self._desk / "info" / "attributes").write_text(_ATTRIBUTES)
        (self._desk / "info" / "sparse-checkout").write_text("/.lore/\n")
        extension = "[extensions]\n\tobjectFormat = sha256\n" if self._found[1] == "sha256" else ""
        version = 1 if extension else 0
        (self._desk / "config").write_text(
            f"[core]\n\trepositoryFormatVersion = {version}\n\tbare = false\n{extension}"
        )


def common_directory(repo: Path) -> Path:
    """Return the git directory of a folder. Raise NotFound if it is not a checkout."""
    return _find(repo)[0]


def _find(repo: Path) -> tuple[Path, str]:
    """Return the git directory of a folder, and its object format."""
    told = _call(("rev-parse", "--show-object-format", "--git-common-dir"), cwd=repo, env={}, input=None, ok=(0, 128))
    if told.code:
        if "not a git repository" in told.said:
            raise NotFound("this is no git repository", where=str(repo), hint="`git init` there makes it one.")
        raise GitFailed(f"git cannot use this repository: {_short(told.said)}", where=str(repo))
    kind, _, common = told.out.rstrip(b"\n").partition(b"\n")
    return Path(os.path.realpath(repo / os.fsdecode(common))), kind.decode()


def ask(repo: Path, *args: str, ok: tuple[int, ...] = (0,)) -> Completed:
    """Run git in a folder of the user that may not be a repository."""
    return _call(args, cwd=repo, env={}, input=None, ok=ok)


def is_object(name: str) -> bool:
    """Return True if a name is an object id."""
    return _OBJECT.fullmatch(name) is not None


def demand_version() -> None:
    """Raise ToolUnavailable if git is not installed or too old."""
    told = _call(("version",), cwd=Path("/"), env={}, input=None, ok=(0,)).line
    found = _VERSION.match(told)
    if found is None or (int(found[1]), int(found[2])) < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ToolUnavailable(f"projects need git {least} or newer; this is {told[:60]!r}", hint="Update git.")


def checkouts(common: Path) -> list[tuple[str, Path]]:
    """Return the ref and the folder of every checkout, except those of the hall."""
    found: list[tuple[str, Path]] = [(_head(common / "HEAD"), common.parent)]
    try:
        others = sorted((common / "worktrees").iterdir())
    except OSError:
        return found
    for other in others:
        if not (other / "guildhall").exists():
            try:
                where = Path((other / "gitdir").read_text().strip()).parent
            except (OSError, ValueError):
                where = other
            found.append((_head(other / "HEAD"), where))
    return found


def _head(path: Path) -> str:
    try:
        return path.read_text()[:4096].strip().removeprefix("ref:").strip()
    except (OSError, ValueError):
        return ""


def _people(author: str | None) -> dict[str, str]:
    """Return the author, a worker, and the committer, the hall. Git accepts no brackets, lines or empty names."""
    plain = "".join(one for one in author or "" if one.isprintable() and one not in "<>").strip(" .,:;\"'\\")[:100]
    local = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in plain)
    own = (plain or "worker", f"{local or 'worker'}@guildhall.invalid")
    name, email = _HALL if author is None else own
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": _HALL[0],
        "GIT_COMMITTER_EMAIL": _HALL[1],
    }


def _call(
    args: tuple[str, ...], *, cwd: Path, env: Mapping[str, str], input: bytes | int | None, ok: tuple[int, ...] = (0,)
) -> Completed:
    program = shutil.which("git")
    if program is None:
        raise ToolUnavailable("git is not installed", hint="Projects need it: install git 2.38 or newer.")
    off = [word for setting in _OFF for word in ("-c", setting)]
    try:
        done = subprocess.run(
            [program, *off, *args],
            cwd=cwd,
            env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **env},
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
            stdin=input if isinstance(input, int) else None,
            input=None if isinstance(input, int) else input or b"",
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(f"git {args[0]} did not end within {_PATIENCE:.0f} s", where=str(cwd)) from None
    except OSError as error:
        if not cwd.exists():
            hint = "`guild project check` says what to do where a repository was moved."
            raise GitFailed("there is no such folder any more", where=str(cwd), hint=hint) from None
        raise GitFailed(f"git cannot be started: {error.strerror}", where=str(cwd)) from None
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode not in ok:
        raise GitFailed(f"git {args[0]} failed: {_short(said) or f'exit {done.returncode}'}", where=str(cwd))
    return Completed(code=done.returncode, out=done.stdout, said=said)


def _short(said: str) -> str:
    return " / ".join(line.strip() for line in said.strip().splitlines())[:_SAID]


_FILE = "100644"
_REGULAR = ("100644", "100755")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What stands at a path of a tree: a file by its object, or nothing (`object` is None)."""

    path: bytes
    mode: str = _FILE
    object: str | None = None

    @property
    def is_file(self) -> bool:
        """Return True for a regular file, not a link, a folder or a submodule."""
        return self.mode in _REGULAR and self.object is not None


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Two commits merged: the tree, and what could not be merged with both sides' versions of it."""

    tree: str
    conflicts: Mapping[bytes, Mapping[int, Entry]]  # path -> stage (1 before, 2 ours, 3 theirs) -> entry


def path_in(path: str) -> bytes:
    """Return a path as git stores it. Raise UsageError if git would not accept it."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise UsageError(f"{path[:200]!r} is no path in a project", hint="Give it relative to the project's folder.")
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{path[:200]!a} is no path in a project: half a character") from None


def entries(git: Git, commit: str, *under: bytes, deep: bool = False) -> list[Entry]:
    """Return the entries of a commit or tree at some paths, or all entries below them."""
    where = (path.decode("utf-8", "surrogateescape") for path in under)
    told = git.run("ls-tree", "-z", *(("-r",) if deep else ()), "--full-tree", commit, "--", *where).out
    found: list[Entry] = []
    for line in told.split(b"\0"):
        if line:
            head, _, name = line.partition(b"\t")
            mode, _, id = head.decode().split(" ")
            found.append(Entry(path=name, mode=mode, object=id))
    return found


def contents(git: Git, files: Iterable[Entry]) -> dict[bytes, bytes]:
    """Return the content of every regular file by its path, with one call of git."""
    wanted = [entry for entry in files if entry.is_file]
    told = git.run("cat-file", "--batch", input="".join(f"{entry.object}\n" for entry in wanted).encode()).out
    found: dict[bytes, bytes] = {}
    at = 0
    for entry in wanted:
        end = told.index(b"\n", at)
        size = int(told[at:end].rpartition(b" ")[2])
        found[entry.path] = told[end + 1 : end + 1 + size]
        at = end + size + 2
    return found


def with_entries(git: Git, tree: str, changes: Iterable[Entry]) -> str:
    """Return a tree, or the tree of a commit, with some files added and removed."""
    with git.scratch() as folder:
        index = folder / "index"
        git.run("read-tree", tree, index=index)
        put_in_index(git, index, changes)
        return git.run("write-tree", index=index).line


def put_in_index(git: Git, index: Path, changes: Iterable[Entry]) -> None:
    """Files put into an index, and taken out first, so that a file may become a folder."""
    lines = b""
    for entry in sorted(changes, key=lambda entry: entry.object is not None):
        head = f"0 {git.nothing}" if entry.object is None else f"{entry.mode} {entry.object}"
        lines += head.encode() + b"\t" + entry.path + b"\0"
    git.run("update-index", "-z", "--index-info", index=index, input=lines)


def merge(git: Git, ours: str, theirs: str) -> Merged:
    """Merge two commits into a tree, without moving a ref."""
    told = git.run("merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs, ok=(0, 1))
    tree, *lines = told.out.split(b"\0")
    conflicts: dict[bytes, dict[int, Entry]] = {}
    for line in lines:
        if line:
            head, _, name = line.partition(b"\t")
            mode, id, stage = head.decode().split(" ")
            conflicts.setdefault(name, {})[int(stage)] = Entry(path=name, mode=mode, object=id)
    return Merged(tree=tree.decode(), conflicts=conflicts)


def commit(git: Git, tree: str, parents: Iterable[str], message: str, author: str | None = None) -> str:
    """Create a commit that is not on a branch yet."""
    named = [word for parent in parents for word in ("-p", parent)]
    text = message.replace("\0", "").encode("utf-8", "replace")
    return git.run("commit-tree", tree, *named, "-F", "-", input=text, author=author).line
