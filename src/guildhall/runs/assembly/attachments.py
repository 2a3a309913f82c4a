"""Attachments: read the files of a request once, within the limits of the worker's `attachment_policy`.

A worker can name only files of its own sandboxes (`input/deck.pdf`) and files that it was given. A user can also name
files below the project by a path from the current folder, and files anywhere by an absolute path.

Invariant: no link, name or concurrent replacement leads out of the permitted folder. The policy applies to the given
name before the file is opened, and to the name that a link leads to.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import InvalidFile, ModelUnusable, NotFound, Refused, UsageError
from guildhall.core.text import is_text
from guildhall.runtimes.model import Attachment, is_looked_at
from guildhall.sandbox.files import SandboxFiles, SandboxPath, has_suffix
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import media_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from guildhall.models.model import Source
    from guildhall.workers.definition import AttachmentPolicy
    from guildhall.workers.model import Worker

MAX_TOTAL_BYTES = 50_000_000  # bytes: the record keeps them, and no provider takes more in one question
_PDF = "application/pdf"
_PDF_BEGINS_WITHIN = 1024  # bytes: what readers of PDFs forgive
_ANY_SIZE = 10**12  # a person's own file is bounded by the policy alone
# By name, and the same on every machine. What is not named here is text, if it is text at all.
MEDIA_TYPES = {
    ".pdf": _PDF,
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".html": "text/html",
    ".htm": "text/html",
    ".json": "application/json",
    ".xml": "application/xml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_TEXT = "text/plain"


def read_sandbox_files(
    names: Sequence[str], view: View, policy: AttachmentPolicy, *, where: str | None = None
) -> tuple[Attachment, ...]:
    """Read files that a worker names as `sandbox/path`. `policy` and `where` (for errors) are those of the callee."""
    sandboxes = _sandboxes_of(view)
    return _read_all(names, lambda name: _in_sandbox(name, sandboxes), policy, where)


def forward_attachments(
    names: Sequence[str], own: Iterable[Attachment], view: View, callee: Worker
) -> tuple[Attachment, ...]:
    """The files that a worker hands to another: out of its sandboxes, and of those that it was given itself."""
    _refuse_twice(names)
    named = {folder.name for folder in view.folders}
    had = {file.name: file for file in own if _sandbox_and_path(file.name, named)[0] not in named}
    others = [name for name in names if name not in had]
    read = read_sandbox_files(others, view, callee.definition.attachment_policy, where=callee.place)
    found = {**had, **dict(zip(others, read, strict=True))}
    return tuple(found[name] for name in names)


def read_user_files(
    names: Sequence[str], view: View, policy: AttachmentPolicy, *, root: Path, where: str | None = None
) -> tuple[Attachment, ...]:
    """Read files that the user names: `sandbox/path`, a path below `root` (the project), or an absolute path."""
    sandboxes = _sandboxes_of(view)
    named = {folder.name for folder in sandboxes.view.folders}

    def find(name: str) -> tuple[str, SandboxFiles, SandboxPath]:
        if _sandbox_and_path(name, named)[0] in named:
            return _in_sandbox(name, sandboxes)
        if name.startswith(("/", "~")):
            return _anywhere(name, view)
        return _below(name, view, root)

    return _read_all(names, find, policy, where)


def check_policy(attachments: Iterable[Attachment], policy: AttachmentPolicy, *, where: str | None = None) -> None:
    """Refuses what the policy does not permit, of files that have been read before."""
    files = list(attachments)
    _refuse_many(len(files), policy, where)
    for file in files:
        _refuse_suffix(_last(file.name), file.name, policy, where)
    _refuse_large(sum(len(file.data) for file in files), policy, where)


def check_media_types(attachments: Iterable[Attachment], source: Source) -> None:
    """Refuses a file that the model cannot look at, before anything is asked of it."""
    for file in attachments:
        if not file.is_text and not source.takes(file.media_type):
            kind = "PDFs" if file.media_type == _PDF else "images"
            raise ModelUnusable(
                f"{source.name} takes no {kind}: {file.name} ({file.media_type}) cannot be handed to it",
                hint="Choose a model that does, with --override-model, or attach what is in the file as text.",
            )


def format_size(size: int) -> str:
    """A size as people read it: the one unit that matters."""
    for unit, least in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= least:
            return f"{size / least:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


# Finding


def _sandboxes_of(view: View) -> SandboxFiles:
    """The named folders alone: the folder that a run works in is not a place to attach from."""
    return SandboxFiles(replace(view, folders=tuple(folder for folder in view.folders if folder.name is not None)))


def _sandbox_and_path(name: str, sandboxes: Collection[str | None]) -> tuple[str, str]:
    """The sandbox and the path that a name means: `input/deck.pdf`, or `input:deck.pdf` as others write it."""
    sandbox, colon, path = name.partition(":")
    if colon and sandbox in sandboxes:
        return sandbox, path
    sandbox, _, path = name.partition("/")
    return sandbox, path


def _in_sandbox(name: str, rooted: SandboxFiles) -> tuple[str, SandboxFiles, SandboxPath]:
    named = {folder.name for folder in rooted.view.folders}
    sandbox, path = _sandbox_and_path(name, named)
    if sandbox in ("", ".", "..", "~") or not path.strip("/"):
        hint = "Name it as sandbox/path, such as input/deck.pdf."
        raise UsageError(f"{name!r} is not a file in a sandbox", hint=hint)
    return f"{sandbox}/{path}", rooted, rooted.locate_in(rooted.find_sandbox(sandbox), path)


def _below(name: str, view: View, root: Path) -> tuple[str, SandboxFiles, SandboxPath]:
    project = Folder(path=root.resolve(), max_bytes=_ANY_SIZE)
    rooted = SandboxFiles(View(cwd=view.cwd, folders=(project,), hidden=view.hidden, shown=view.shown))
    try:
        return name, rooted, rooted.locate(name)
    except Refused:
        hint = "A file anywhere else is attached by its whole path."
        raise Refused(f"{name} is not below {project.path}", hint=hint) from None


def _anywhere(name: str, view: View) -> tuple[str, SandboxFiles, SandboxPath]:
    try:
        path = Path(name).expanduser().resolve(strict=True)
    except FileNotFoundError:
        raise NotFound(f"there is no file {name}") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, ~nobody, a name too long
        raise UsageError(f"{name} cannot be attached: {error}") from None
    folder = Folder(path=path.parent, max_bytes=_ANY_SIZE)
    rooted = SandboxFiles(View(cwd=path.parent, folders=(folder,), hidden=view.hidden, shown=view.shown))
    return name, rooted, rooted.locate_in(folder, path.name or ".")


# Reading


def _read_all(
    names: Sequence[str],
    find: Callable[[str], tuple[str, SandboxFiles, SandboxPath]],
    policy: AttachmentPolicy,
    where: str | None,
) -> tuple[Attachment, ...]:
    """Read the files that `find` locates. A file whose name the policy does not permit is not opened."""
    _refuse_many(len(names), policy, where)
    _refuse_twice(names)
    for name in names:
        if not name.strip() or not name.isprintable():
            raise UsageError(f"{name!r} cannot name a file to attach")
        _refuse_suffix(_last(name), name, policy, where)
    read: list[Attachment] = []
    size = 0
    for name in names:
        attached_as, rooted, spot = find(name)
        contents = rooted.read(spot, max_bytes=_most(policy) - size)
        for called in {_last(name), contents.name}:  # through a link a file has two names, and both count
            if not has_suffix(called, contents.folder.attachment_suffixes):
                suffixes = ", ".join(contents.folder.attachment_suffixes)
                raise Refused(f"{name}: the sandbox {contents.folder.name!r} lets only {suffixes} be attached")
            _refuse_suffix(called, name, policy, where)
        size += len(contents.data)
        _refuse_large(size, policy, where)
        read.append(_recognised(attached_as, contents.data))
    return tuple(read)


def _recognised(name: str, data: bytes) -> Attachment:
    """The file as what its name says that it is, if its content is that."""
    kind = MEDIA_TYPES.get(Path(_last(name)).suffix.lower(), _TEXT)
    found = media_type(data)
    if is_looked_at(kind):
        if found is None and b"%PDF-" in data[:_PDF_BEGINS_WITHIN]:
            found = _PDF
        if found != kind:
            raise InvalidFile(
                f"its name says {kind}, and its content is {found or 'something else'}",
                where=name,
                hint="Give the file the suffix that it should have, or make it again.",
            )
    elif not _is_utf8(data):
        hint = f"Its content is {found}: give it that suffix." if found else "Make a PDF, an image or text of it."
        raise InvalidFile("neither text in UTF-8 nor a PDF or an image by its name", where=name, hint=hint)
    return Attachment(name=name, media_type=kind, data=data)


def _is_utf8(data: bytes) -> bool:
    try:
        return is_text(data.decode())
    except UnicodeDecodeError:
        return False


def _last(name: str) -> str:
    return name.replace(":", "/").rstrip("/").rpartition("/")[2]


# The policy


def _most(policy: AttachmentPolicy) -> int:
    return min(policy.max_total_bytes, MAX_TOTAL_BYTES)


def _refuse_twice(names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{twice[0]} is attached twice")


def _refuse_many(count: int, policy: AttachmentPolicy, where: str | None) -> None:
    if count > policy.max_attachments:
        most = f"at most {policy.max_attachments}" if policy.max_attachments else "none"
        raise Refused(
            f"{count} {'file is' if count == 1 else 'files are'} attached, and the worker takes {most}",
            where=where,
            hint="attachment_policy.max_attachments in the worker's file says how many.",
        )


def _refuse_suffix(called: str, name: str, policy: AttachmentPolicy, where: str | None) -> None:
    if not has_suffix(called, policy.allowed_suffixes):
        raise Refused(
            f"{name}: the worker takes only {', '.join(policy.allowed_suffixes)} as attachments",
            where=where,
            hint="attachment_policy.allowed_suffixes in the worker's file says which.",
        )
    if policy.denied_suffixes and has_suffix(called, policy.denied_suffixes):
        raise Refused(
            f"{name}: the worker takes no {', '.join(policy.denied_suffixes)} as attachments",
            where=where,
            hint="attachment_policy.denied_suffixes in the worker's file says which not.",
        )


def _refuse_large(size: int, policy: AttachmentPolicy, where: str | None) -> None:
    if size > _most(policy):
        own = policy.max_total_bytes <= MAX_TOTAL_BYTES
        raise Refused(
            f"the attachments have more than the {_most(policy):,} bytes that {'the worker' if own else 'a run'} takes",
            where=where,
            hint="attachment_policy.max_total_bytes in the worker's file says how many." if own else None,
        )
