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
from guildhall.runtimes.model import Attachment, is_media
from guildhall.sandbox.files import SandboxFiles, SandboxPath, has_suffix
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import media_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from guildhall.models.model import Source
    from guildhall.workers.definition import AttachmentPolicy
    from guildhall.workers.model import Worker

MAX_TOTAL_BYTES = 50_000_000  # the journal keeps them, and no provider accepts more in one request
_PDF = "application/pdf"
_PDF_HEADER_BYTES = 1024  # PDF readers accept a header within the first kilobyte
_ANY_SIZE = 10**12  # only the policy limits files of the user
# A fixed table, because the tables of operating systems differ. All other files must be text.
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
    """Read files that a worker names as `sandbox/path`. `policy` and `where` (for errors) belong to the callee."""
    sandboxes = _sandboxes_of(view)
    return _read_all(names, lambda name: _in_sandbox(name, sandboxes), policy, where)


def forward_attachments(
    names: Sequence[str], own: Iterable[Attachment], view: View, callee: Worker
) -> tuple[Attachment, ...]:
    """Return the files that a worker passes to another: from its sandboxes, and from its own attachments."""
    _check_unique(names)
    named = {folder.name for folder in view.folders}
    known = {file.name: file for file in own if _sandbox_and_path(file.name, named)[0] not in named}
    others = [name for name in names if name not in known]
    read = read_sandbox_files(others, view, callee.definition.attachment_policy, where=callee.place)
    found = {**known, **dict(zip(others, read, strict=True))}
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
            return _in_file_system(name, view)
        return _in_project(name, view, root)

    return _read_all(names, find, policy, where)


def check_policy(attachments: Iterable[Attachment], policy: AttachmentPolicy, *, where: str | None = None) -> None:
    """Raise Refused if the policy does not permit these files."""
    files = list(attachments)
    _check_count(len(files), policy, where)
    for file in files:
        _check_suffix(_base_name(file.name), file.name, policy, where)
    _check_size(sum(len(file.data) for file in files), policy, where)


def check_media_types(attachments: Iterable[Attachment], source: Source) -> None:
    """Raise ModelUnusable if the model does not accept the type of a file."""
    for file in attachments:
        if not file.is_text and not source.accepts(file.media_type):
            kind = "PDFs" if file.media_type == _PDF else "images"
            raise ModelUnusable(
                f"{source.name} does not accept {kind}: {file.name} ({file.media_type})",
                hint="Choose another model with --override-model, or attach the content as text.",
            )


def format_size(size: int) -> str:
    for unit, least in (("MB", 1_000_000), ("kB", 1_000)):
        if size >= least:
            return f"{size / least:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


def _sandboxes_of(view: View) -> SandboxFiles:
    """Return the named folders, without the working folder of the run."""
    return SandboxFiles(replace(view, folders=tuple(folder for folder in view.folders if folder.name is not None)))


def _sandbox_and_path(name: str, sandboxes: Collection[str | None]) -> tuple[str, str]:
    """Split a name such as `input/deck.pdf` or `input:deck.pdf`."""
    sandbox, colon, path = name.partition(":")
    if colon and sandbox in sandboxes:
        return sandbox, path
    sandbox, _, path = name.partition("/")
    return sandbox, path


def _in_sandbox(name: str, rooted: SandboxFiles) -> tuple[str, SandboxFiles, SandboxPath]:
    named = {folder.name for folder in rooted.view.folders}
    sandbox, path = _sandbox_and_path(name, named)
    if sandbox in ("", ".", "..", "~") or not path.strip("/"):
        raise UsageError(f"{name!r} is not a file in a sandbox", hint="Use sandbox/path, such as input/deck.pdf.")
    return f"{sandbox}/{path}", rooted, rooted.locate_in(rooted.find_sandbox(sandbox), path)


def _in_project(name: str, view: View, root: Path) -> tuple[str, SandboxFiles, SandboxPath]:
    project = Folder(path=root.resolve(), max_bytes=_ANY_SIZE)
    rooted = SandboxFiles(View(cwd=view.cwd, folders=(project,), hidden=view.hidden, shown=view.shown))
    try:
        return name, rooted, rooted.locate(name)
    except Refused:
        hint = "Use an absolute path for files elsewhere."
        raise Refused(f"{name} is not below {project.path}", hint=hint) from None


def _in_file_system(name: str, view: View) -> tuple[str, SandboxFiles, SandboxPath]:
    try:
        path = Path(name).expanduser().resolve(strict=True)
    except FileNotFoundError:
        raise NotFound(f"file not found: {name}") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user, a name too long
        raise UsageError(f"cannot attach {name}: {error}") from None
    folder = Folder(path=path.parent, max_bytes=_ANY_SIZE)
    rooted = SandboxFiles(View(cwd=path.parent, folders=(folder,), hidden=view.hidden, shown=view.shown))
    return name, rooted, rooted.locate_in(folder, path.name or ".")


def _read_all(
    names: Sequence[str],
    find: Callable[[str], tuple[str, SandboxFiles, SandboxPath]],
    policy: AttachmentPolicy,
    where: str | None,
) -> tuple[Attachment, ...]:
    """Read the files that `find` locates. A file whose name the policy does not permit is not opened."""
    _check_count(len(names), policy, where)
    _check_unique(names)
    for name in names:
        if not name.strip() or not name.isprintable():
            raise UsageError(f"invalid file name: {name!r}")
        _check_suffix(_base_name(name), name, policy, where)
    read: list[Attachment] = []
    size = 0
    for name in names:
        attached_as, rooted, spot = find(name)
        contents = rooted.read(spot, max_bytes=min(policy.max_total_bytes, MAX_TOTAL_BYTES) - size)
        for base_name in {_base_name(name), contents.name}:  # the policy applies to a link and to its target
            if not has_suffix(base_name, contents.folder.attachment_suffixes):
                suffixes = ", ".join(contents.folder.attachment_suffixes)
                raise Refused(f"{name}: the sandbox {contents.folder.name!r} permits only {suffixes} as attachments")
            _check_suffix(base_name, name, policy, where)
        size += len(contents.data)
        _check_size(size, policy, where)
        read.append(_attachment(attached_as, contents.data))
    return tuple(read)


def _attachment(name: str, data: bytes) -> Attachment:
    """Return a file with the media type of its name. Raise InvalidFile if the content has another type."""
    kind = MEDIA_TYPES.get(Path(_base_name(name)).suffix.lower(), _TEXT)
    found = media_type(data)
    if is_media(kind):
        if found is None and b"%PDF-" in data[:_PDF_HEADER_BYTES]:
            found = _PDF
        if found != kind:
            raise InvalidFile(
                f"the suffix means {kind}, but the content is {found or 'something else'}",
                where=name,
                hint="Correct the suffix, or create the file again.",
            )
    elif not _is_utf8(data):
        hint = f"The content is {found}: correct the suffix." if found else "Convert it to a PDF, an image or text."
        raise InvalidFile("neither UTF-8 text nor a file with the suffix of a PDF or an image", where=name, hint=hint)
    return Attachment(name=name, media_type=kind, data=data)


def _is_utf8(data: bytes) -> bool:
    try:
        return is_text(data.decode())
    except UnicodeDecodeError:
        return False


def _base_name(name: str) -> str:
    return name.replace(":", "/").rstrip("/").rpartition("/")[2]


def _check_unique(names: Sequence[str]) -> None:
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{duplicates[0]} is attached twice")


def _check_count(count: int, policy: AttachmentPolicy, where: str | None) -> None:
    if count > policy.max_attachments:
        message = f"too many attachments: {count} (the worker accepts {policy.max_attachments})"
        raise Refused(message, where=where, hint=_hint("max_attachments"))


def _check_suffix(base_name: str, name: str, policy: AttachmentPolicy, where: str | None) -> None:
    if not has_suffix(base_name, policy.allowed_suffixes):
        message = f"{name}: the worker accepts only {', '.join(policy.allowed_suffixes)} as attachments"
        raise Refused(message, where=where, hint=_hint("allowed_suffixes"))
    if policy.denied_suffixes and has_suffix(base_name, policy.denied_suffixes):
        message = f"{name}: the worker does not accept {', '.join(policy.denied_suffixes)} as attachments"
        raise Refused(message, where=where, hint=_hint("denied_suffixes"))


def _check_size(size: int, policy: AttachmentPolicy, where: str | None) -> None:
    if size > policy.max_total_bytes:
        message = f"the attachments have more than the {policy.max_total_bytes:,} bytes that the worker accepts"
        raise Refused(message, where=where, hint=_hint("max_total_bytes"))
    if size > MAX_TOTAL_BYTES:
        raise Refused(f"the attachments have more than the {MAX_TOTAL_BYTES:,} bytes that a run accepts", where=where)


def _hint(field: str) -> str:
    return f"Change attachment_policy.{field} in the worker file."
