"""The git command: runs git on the objects and refs of a repository, and reads, writes and merges trees.

Git runs with a separate git directory below the home, which has the hall's own config and attributes.
Does not decide which refs move (`integration_branch.py`) and does not read the files of a checkout (`snapshot.py`).

Invariant: git ignores the settings, hooks and filters of the user's config and of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from guildhall.core.errors import GitFailed, NotFound, TimedOut, ToolUnavailable, UsageError

MIN_VERSION = (2, 38)  # merge-tree --write-tree
_TIMEOUT_S = 300.0  # of one call
_HALL_AUTHOR = ("Guildhall", "hall@guildhall.invalid")
_MAX_STDERR_CHARS = 2000  # in an error
_VERSION = re.compile(r"git version (\d+)\.(\d+)")
_LOCK_ERROR = re.compile(r"Unable to create '([^'\n]+\.lock)': File exists")
_MAX_ATTEMPTS = 5  # to update refs; each removes at most one stale lock
_MIN_STALE_AGE_S = 0.9  # of a lock; git itself waits for 1 s
_MIN_SHARED_STALE_AGE_S = 60.0  # of a lock that the user's git may have created
_OBJECT_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT_REFS = ("refs/heads/", "refs/guildhall/")  # refs that name commits; a tag may name a tag object

# Settings of every call. `-c` takes precedence over config files.
_SETTINGS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false", "core.pager=cat",
    "core.editor=false", "core.askPass=", "credential.helper=", "gc.auto=0", "maintenance.auto=false",
    "submodule.recurse=false", "commit.gpgSign=false", "tag.gpgSign=false", "log.showSignature=false",
    "core.filesRefLockTimeout=1000", "core.packedRefsTimeout=3000", "core.quotePath=false", "advice.detachedHead=false",
    "core.excludesFile=/dev/null", "core.attributesFile=/dev/null", "protocol.allow=never",
)  # fmt: skip
# The environment of git, in addition to PATH.
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
# Git does not convert line ends, and executes no filter or merge driver of the repository.
_ATTRIBUTES = "* -text -eol -crlf -ident -filter -working-tree-encoding !merge !diff\n"


@dataclass(frozen=True, kw_only=True)
class GitResult:
    """The outcome of a call of git."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape").strip()


class Git:
    """Git for one repository.

    Commands run in a git directory of the hall, which uses the objects of the repository but not its config.
    """

    def __init__(self, repo: Path, git_dir: Path) -> None:
        """`git_dir`: the hall's git directory for this repository, which is created on first use."""
        self.repo = repo
        self._git_dir = git_dir

    @cached_property
    def _location(self) -> tuple[Path, str]:
        return _locate(self.repo)

    @property
    def common(self) -> Path:
        """Return the git directory that all checkouts of the repository share."""
        return self._location[0]

    @property
    def null_id(self) -> str:
        """Return the null object id: 64 zeros in a sha256 repository, else 40."""
        return "0" * (64 if self._location[1] == "sha256" else 40)

    def run(
        self,
        *args: str,
        tree: Path | None = None,
        index: Path | None = None,
        input: bytes | int | None = None,
        ok: tuple[int, ...] = (0,),
        author: str | None = None,
    ) -> GitResult:
        """Run git on objects, an index or a checkout. The refs of the repository are not visible.

        `tree`: the checkout, or None for an empty folder. `index`: the index, or None for an empty index. `input`:
        bytes for stdin, or a file descriptor. `ok`: exit codes that do not raise GitFailed.
        """
        env = {
            "GIT_DIR": str(self.git_dir),
            "GIT_OBJECT_DIRECTORY": str(self.common / "objects"),
            "GIT_WORK_TREE": str(tree or self.git_dir / "empty"),
            "GIT_INDEX_FILE": str(index or self.git_dir / "none"),
            "GIT_SHALLOW_FILE": str(self.common / "shallow"),
            "GIT_ATTR_NOSYSTEM": "1",
        }
        return _run(args, cwd=tree or self.git_dir / "empty", env={**env, **_author_env(author)}, input=input, ok=ok)

    def run_in_repository(self, *args: str, input: bytes | None = None, ok: tuple[int, ...] = (0,)) -> GitResult:
        """Run git in the user's repository, to read refs and to move the hall's refs."""
        env = {"GIT_DIR": str(self.common), "GIT_WORK_TREE": str(self.git_dir / "empty"), **_author_env(None)}
        return _run(args, cwd=self.git_dir / "empty", env=env, input=input, ok=ok)

    def resolve(self, ref: str) -> str | None:
        """Return the commit of a branch, a full ref or a commit id, or None."""
        if not is_object_id(ref):
            ref = ref if ref.startswith("refs/") else f"refs/heads/{ref}"
            if (commit := self._read_ref_file(ref)) is not None:
                return commit
        name = f"{ref}^{{commit}}"
        result = self.run_in_repository("rev-parse", "--verify", "--quiet", "--end-of-options", name, ok=(0, 1, 128))
        return result.text if result.code == 0 else None

    def _read_ref_file(self, ref: str) -> str | None:
        """Return the commit of a loose ref without starting git, or None if only git can resolve the ref."""
        if not ref.startswith(_COMMIT_REFS) or ".." in ref:
            return None
        try:
            text = (self.common / ref).read_text("ascii")
        except (OSError, ValueError):
            return None
        return text[:-1] if text.endswith("\n") and is_object_id(text[:-1]) else None

    def update_refs(self, reason: str, *commands: str) -> None:
        """Update the hall's refs in one transaction: `update REF NEW OLD`, `delete REF OLD`. OLD is zeros if new."""
        input = "".join(f"{line}\n" for line in ("start", *commands, "prepare", "commit")).encode()
        message = "".join(char for char in reason if char.isprintable() or char == "\n").strip().partition("\n")[0]
        args = ("update-ref", "--create-reflog", "-m", f"guildhall: {message}", "--stdin")
        for attempts_left in reversed(range(_MAX_ATTEMPTS)):
            try:
                self.run_in_repository(*args, input=input)
                return
            except GitFailed as error:
                if not attempts_left or not self._remove_stale_lock(error.message):
                    raise

    def _remove_stale_lock(self, message: str) -> bool:
        """Remove the ref lock that git reports in an error, if the lock is stale. Return True if it was removed."""
        match = _LOCK_ERROR.search(message)
        lock = Path(match[1]) if match else self.common
        is_own = any(lock.is_relative_to(self.common / folder) for folder in ("refs/heads/claude", "refs/guildhall"))
        is_shared = lock == self.common / "packed-refs.lock"
        try:
            min_age_s = _MIN_STALE_AGE_S if is_own else _MIN_SHARED_STALE_AGE_S
            if not (is_own or is_shared) or time.time() - lock.stat().st_mtime < min_age_s:
                return False
            lock.unlink(missing_ok=True)
        except OSError:
            return False
        return True

    @contextmanager
    def scratch(self) -> Generator[Path]:
        """Yield a folder for a temporary index."""
        with TemporaryDirectory(dir=self.git_dir / "scratch", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @cached_property
    def git_dir(self) -> Path:
        """Return the hall's git directory for this repository. Create it if necessary."""
        marker = self._git_dir / "made"  # names the repository, because the project name may be reassigned
        if not marker.exists() or marker.read_text() != str(self.common):
            self._create_git_dir()
            marker.write_text(str(self.common))
        return self._git_dir

    def _create_git_dir(self) -> None:
        for name in ("empty", "scratch", "info", "objects", "refs"):
            (self._git_dir / name).mkdir(parents=True, exist_ok=True)
        (self._git_dir / "HEAD").write_text("ref: refs/heads/none\n")
        (self._git_dir / "info" / "attributes").write_text(_ATTRIBUTES)
        (self._git_dir / "info" / "sparse-checkout").write_text("/.lore/\n")
        extension = "[extensions]\n\tobjectFormat = sha256\n" if self._location[1] == "sha256" else ""
        config = f"[core]\n\trepositoryFormatVersion = {1 if extension else 0}\n\tbare = false\n{extension}"
        (self._git_dir / "config").write_text(config)


def common_directory(repo: Path) -> Path:
    """Return the git directory of a folder. Raise NotFound if it is not a checkout."""
    return _locate(repo)[0]


def _locate(repo: Path) -> tuple[Path, str]:
    """Return the git directory of a folder, and its object format."""
    result = run_git(repo, "rev-parse", "--show-object-format", "--git-common-dir", ok=(0, 128))
    if result.code:
        if "not a git repository" in result.stderr:
            raise NotFound("not a git repository", where=str(repo), hint="Create one there: `git init`.")
        raise GitFailed(f"cannot use this repository: {_shorten(result.stderr)}", where=str(repo))
    object_format, _, common = result.stdout.rstrip(b"\n").partition(b"\n")
    return Path(os.path.realpath(repo / os.fsdecode(common))), object_format.decode()


def run_git(folder: Path, *args: str, ok: tuple[int, ...] = (0,)) -> GitResult:
    """Run git in a folder, which need not be a repository."""
    return _run(args, cwd=folder, env={}, input=None, ok=ok)


def is_object_id(name: str) -> bool:
    return _OBJECT_ID.fullmatch(name) is not None


def check_version() -> None:
    """Raise ToolUnavailable if git is not installed or too old."""
    version = run_git(Path("/"), "version").text
    match = _VERSION.match(version)
    if match is None or (int(match[1]), int(match[2])) < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        message = f"cannot use {version[:60]!r}: projects need git {minimum} or newer"
        raise ToolUnavailable(message, hint="Update git.")


def list_checkouts(common: Path) -> list[tuple[str, Path]]:
    """Return the ref and the folder of every checkout of the user."""
    checkouts: list[tuple[str, Path]] = [(_read_head(common / "HEAD"), common.parent)]
    try:
        others = sorted((common / "worktrees").iterdir())
    except OSError:
        return checkouts
    for other in others:
        if not (other / "guildhall").exists():
            try:
                where = Path((other / "gitdir").read_text().strip()).parent
            except (OSError, ValueError):
                where = other
            checkouts.append((_read_head(other / "HEAD"), where))
    return checkouts


def _read_head(path: Path) -> str:
    try:
        return path.read_text()[:4096].strip().removeprefix("ref:").strip()
    except (OSError, ValueError):
        return ""


def _author_env(author: str | None) -> dict[str, str]:
    """Return the variables that set the author, a worker or the hall, and the committer, the hall.

    Git rejects an empty name, and names with angle brackets or line breaks.
    """
    plain = "".join(char for char in author or "" if char.isprintable() and char not in "<>")
    plain = plain.strip(" .,:;\"'\\")[:100]
    local = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "-" for char in plain)
    name, email = (plain or "worker", f"{local or 'worker'}@guildhall.invalid") if author is not None else _HALL_AUTHOR
    return {
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": _HALL_AUTHOR[0],
        "GIT_COMMITTER_EMAIL": _HALL_AUTHOR[1],
    }


def _run(
    args: tuple[str, ...], *, cwd: Path, env: Mapping[str, str], input: bytes | int | None, ok: tuple[int, ...] = (0,)
) -> GitResult:
    program = shutil.which("git")
    if program is None:
        raise ToolUnavailable("git is not installed", hint=f"Install git {'.'.join(map(str, MIN_VERSION))} or newer.")
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        completed = subprocess.run(
            [program, *settings, *args],
            cwd=cwd,
            env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **env},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=input if isinstance(input, int) else None,
            input=None if isinstance(input, int) else input or b"",
        )
    except subprocess.TimeoutExpired:
        hint = "Check for another git process and for a slow disk, then try again."
        raise TimedOut(f"git {args[0]} timed out after {_TIMEOUT_S:.0f} s", where=str(cwd), hint=hint) from None
    except OSError as error:
        if not cwd.exists():
            hint = "If you moved the repository, register its new folder: guild project add PATH"
            raise GitFailed("folder not found", where=str(cwd), hint=hint) from None
        raise GitFailed(f"cannot start git: {error.strerror}", where=str(cwd)) from None
    stderr = completed.stderr.decode("utf-8", "replace")
    if completed.returncode not in ok:
        message = f"git {args[0]} failed: {_shorten(stderr) or f'exit code {completed.returncode}'}"
        raise GitFailed(message, where=str(cwd))
    return GitResult(code=completed.returncode, stdout=completed.stdout, stderr=stderr)


def _shorten(stderr: str) -> str:
    return " / ".join(line.strip() for line in stderr.strip().splitlines())[:_MAX_STDERR_CHARS]


_FILE = "100644"
_REGULAR = ("100644", "100755")


@dataclass(frozen=True, kw_only=True)
class TreeEntry:
    """An entry of a tree. In a change of a tree, `object` is None if the path is removed."""

    path: bytes
    mode: str = _FILE
    object: str | None = None

    @property
    def is_file(self) -> bool:
        """Return True for a regular file, not a link, a folder or a submodule."""
        return self.mode in _REGULAR and self.object is not None


@dataclass(frozen=True, kw_only=True)
class MergeResult:
    """The tree of a merge, and its conflicts."""

    tree: str
    conflicts: Mapping[bytes, Mapping[int, TreeEntry]]  # path -> stage (1 base, 2 ours, 3 theirs) -> entry


def encode_path(path: str) -> bytes:
    """Return a path as git stores it. Raise UsageError if git would not accept it."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        hint = "Use a path relative to the project, without '..' and '.git', such as src/app.py."
        raise UsageError(f"invalid path {path[:200]!r}: not a normal path inside the project", hint=hint)
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"invalid path {path[:200]!a}: it contains a lone surrogate") from None


def list_entries(git: Git, commit: str, *paths: bytes, deep: bool = False) -> list[TreeEntry]:
    """Return the entries of a commit or tree at some paths, or with `deep` all entries below them."""
    names = (path.decode("utf-8", "surrogateescape") for path in paths)
    output = git.run("ls-tree", "-z", *(("-r",) if deep else ()), "--full-tree", commit, "--", *names).stdout
    entries: list[TreeEntry] = []
    for line in filter(None, output.split(b"\0")):
        fields, _, path = line.partition(b"\t")
        mode, _, id = fields.decode().split(" ")
        entries.append(TreeEntry(path=path, mode=mode, object=id))
    return entries


def read_contents(git: Git, entries: Iterable[TreeEntry]) -> dict[bytes, bytes]:
    """Return the content of every regular file by its path, with one call of git."""
    files = [entry for entry in entries if entry.is_file]
    output = git.run("cat-file", "--batch", input="".join(f"{entry.object}\n" for entry in files).encode()).stdout
    contents: dict[bytes, bytes] = {}
    start = 0
    for entry in files:
        end = output.index(b"\n", start)
        size = int(output[start:end].rpartition(b" ")[2])
        contents[entry.path] = output[end + 1 : end + 1 + size]
        start = end + size + 2
    return contents


def write_tree(git: Git, tree: str, changes: Iterable[TreeEntry]) -> str:
    """Return a tree, or the tree of a commit, with changes applied."""
    with git.scratch() as folder:
        index = folder / "index"
        git.run("read-tree", tree, index=index)
        update_index(git, index, changes)
        return git.run("write-tree", index=index).text


def update_index(git: Git, index: Path, changes: Iterable[TreeEntry]) -> None:
    """Apply changes to an index. Paths are removed first, so that a file can become a folder."""
    lines = b""
    for entry in sorted(changes, key=lambda entry: entry.object is not None):
        fields = f"0 {git.null_id}" if entry.object is None else f"{entry.mode} {entry.object}"
        lines += fields.encode() + b"\t" + entry.path + b"\0"
    git.run("update-index", "-z", "--index-info", index=index, input=lines)


def merge(git: Git, ours: str, theirs: str) -> MergeResult:
    """Merge two commits into a tree, without moving a ref."""
    output = git.run("merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs, ok=(0, 1)).stdout
    tree, *lines = output.split(b"\0")
    conflicts: dict[bytes, dict[int, TreeEntry]] = {}
    for line in filter(None, lines):
        fields, _, path = line.partition(b"\t")
        mode, id, stage = fields.decode().split(" ")
        conflicts.setdefault(path, {})[int(stage)] = TreeEntry(path=path, mode=mode, object=id)
    return MergeResult(tree=tree.decode(), conflicts=conflicts)


def create_commit(git: Git, tree: str, parents: Iterable[str], message: str, author: str | None = None) -> str:
    """Create a commit without moving a ref, and return its id."""
    options = [word for parent in parents for word in ("-p", parent)]
    text = message.replace("\0", "").encode("utf-8", "replace")
    return git.run("commit-tree", tree, *options, "-F", "-", input=text, author=author).text
