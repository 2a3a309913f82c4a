"""Attachments: reads the files of a request once, within the limits of `attachment_policy` of the worker.

A worker can name only files in its sandboxes (`input/deck.pdf`) and attachments that it received. A user can also name
files in the project by a path relative to the current folder, and other files by an absolute path.

Invariant: no link, name or concurrent replacement leads out of the permitted folder. The policy applies to the name
before the file is opened, and to the target of a link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import InvalidFile, ModelUnusable, NotFound, Refused, UsageError
from guildhall.core.text_checks import is_text
from guildhall.runtimes.model import Attachment, is_media
from guildhall.sandbox.files import SandboxFiles, SandboxPath, has_suffix
from guildhall.sandbox.view import Folder, View
from guildhall.tools.builtin.files import media_type

if TYPE_CHECKING:
    from guildhall.models.model import Source
    from guildhall.workers.definition import AttachmentPolicy
    from guildhall.workers.model import Worker

MAX_TOTAL_BYTES = 50_000_000  # the journal keeps them, and no provider accepts more in one request
_PDF = "application/pdf"
_PDF_HEADER_BYTES = 1024  # PDF readers accept a header within the first kilobyte
_UNLIMITED_BYTES = 10**12  # only the policy limits files of the user
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
    files = _sandbox_files(view)
    return _read_all(names, lambda name: _locate_in_sandbox(name, files), policy, where)


def forward_attachments(
    names: Sequence[str], received: Iterable[Attachment], view: View, callee: Worker
) -> tuple[Attachment, ...]:
    """Return the files that a worker passes to a callee, from its sandboxes and from the attachments it received."""
    _check_unique(names)
    sandboxes = {folder.name for folder in view.folders}
    files = {file.name: file for file in received if _split_name(file.name, sandboxes)[0] not in sandboxes}
    sandbox_names = [name for name in names if name not in files]
    attachments = read_sandbox_files(sandbox_names, view, callee.definition.attachment_policy, where=callee.place)
    files |= dict(zip(sandbox_names, attachments, strict=True))
    return tuple(files[name] for name in names)


def read_user_files(
    names: Sequence[str], view: View, policy: AttachmentPolicy, *, root: Path, where: str | None = None
) -> tuple[Attachment, ...]:
    """Read files that the user names: `sandbox/path`, a path below `root` (the project), or an absolute path."""
    files = _sandbox_files(view)
    sandboxes = {folder.name for folder in files.view.folders}

    def locate(name: str) -> tuple[str, SandboxFiles, SandboxPath]:
        if _split_name(name, sandboxes)[0] in sandboxes:
            return _locate_in_sandbox(name, files)
        if name.startswith(("/", "~")):
            return _locate_in_file_system(name, view)
        return _locate_in_project(name, view, root)

    return _read_all(names, locate, policy, where)


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
                hint="Choose another model, or attach the content as text.",
            )


def format_size(size_bytes: int) -> str:
    for unit, unit_bytes in (("MB", 1_000_000), ("kB", 1_000)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} bytes"


def _sandbox_files(view: View) -> SandboxFiles:
    """Return the files of the sandboxes, without the working folder of the run."""
    return SandboxFiles(replace(view, folders=tuple(folder for folder in view.folders if folder.name is not None)))


def _split_name(name: str, sandboxes: Collection[str | None]) -> tuple[str, str]:
    """Return the sandbox and the path in a name such as `input/deck.pdf` or `input:deck.pdf`."""
    sandbox, colon, path = name.partition(":")
    if colon and sandbox in sandboxes:
        return sandbox, path
    sandbox, _, path = name.partition("/")
    return sandbox, path


def _locate_in_sandbox(name: str, files: SandboxFiles) -> tuple[str, SandboxFiles, SandboxPath]:
    sandbox, path = _split_name(name, {folder.name for folder in files.view.folders})
    if sandbox in ("", ".", "..", "~") or not path.strip("/"):
        raise UsageError(f"cannot attach {name!r}: not in a sandbox", hint="Use SANDBOX/PATH, such as input/deck.pdf.")
    return f"{sandbox}/{path}", files, files.locate_in(files.find_sandbox(sandbox), path)


def _locate_in_project(name: str, view: View, root: Path) -> tuple[str, SandboxFiles, SandboxPath]:
    project = Folder(path=root.resolve(), max_bytes=_UNLIMITED_BYTES)
    files = SandboxFiles(View(cwd=view.cwd, folders=(project,), hidden=view.hidden, shown=view.shown))
    try:
        return name, files, files.locate(name)
    except Refused:
        hint = "Use an absolute path for a file outside of the project."
        raise Refused(f"cannot attach {name}: outside of the project {project.path}", hint=hint) from None


def _locate_in_file_system(name: str, view: View) -> tuple[str, SandboxFiles, SandboxPath]:
    try:
        path = Path(name).expanduser().resolve(strict=True)
    except FileNotFoundError:
        raise NotFound(f"cannot attach {name}: file not found", hint="Correct the path.") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an unknown user, a name too long
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot attach {name}: {reason}", hint="Correct the path.") from None
    folder = Folder(path=path.parent, max_bytes=_UNLIMITED_BYTES)
    files = SandboxFiles(View(cwd=path.parent, folders=(folder,), hidden=view.hidden, shown=view.shown))
    return name, files, files.locate_in(folder, path.name or ".")


def _read_all(
    names: Sequence[str],
    locate: Callable[[str], tuple[str, SandboxFiles, SandboxPath]],
    policy: AttachmentPolicy,
    where: str | None,
) -> tuple[Attachment, ...]:
    """Read the files that `locate` returns. Do not open a file whose name the policy does not permit."""
    _check_count(len(names), policy, where)
    _check_unique(names)
    for name in names:
        if not name.strip() or not name.isprintable():
            raise UsageError(f"cannot attach {name!r}: the path is empty or has invisible characters")
        _check_suffix(_base_name(name), name, policy, where)
    attachments: list[Attachment] = []
    size = 0
    for name in names:
        display_name, files, path = locate(name)
        contents = files.read(path, max_bytes=min(policy.max_total_bytes, MAX_TOTAL_BYTES) - size)
        for base_name in {_base_name(name), contents.name}:  # the policy applies to a link and to its target
            if not has_suffix(base_name, contents.folder.attachment_suffixes):
                sandbox, suffixes = contents.folder.name, ", ".join(contents.folder.attachment_suffixes)
                hint = f"Attach another file, or change sandboxes.{sandbox}.attachment_suffixes in the worker file."
                raise Refused(f"cannot attach {name}: the sandbox {sandbox!r} permits only {suffixes}", hint=hint)
            _check_suffix(base_name, name, policy, where)
        size += len(contents.data)
        _check_size(size, policy, where)
        attachments.append(_make_attachment(display_name, contents.data))
    return tuple(attachments)


def _make_attachment(name: str, data: bytes) -> Attachment:
    """Return an attachment with the media type of its name. Raise InvalidFile if the content has another type."""
    expected_type = MEDIA_TYPES.get(Path(_base_name(name)).suffix.lower(), _TEXT)
    actual_type = media_type(data)
    if is_media(expected_type):
        if actual_type is None and b"%PDF-" in data[:_PDF_HEADER_BYTES]:
            actual_type = _PDF
        if actual_type != expected_type:
            content = f"expected the content to be {expected_type}, got {actual_type or 'another type'}"
            raise InvalidFile(
                f"cannot attach the file: {content}",
                where=name,
                hint="Rename the file to match its content, or export it again.",
            )
    elif not _is_utf8(data):
        hint = "Convert the file to text, PDF or an image."
        if actual_type:
            hint = f"Rename the file: its content is {actual_type}."
        raise InvalidFile("cannot attach the file: not UTF-8 text, a PDF or an image", where=name, hint=hint)
    return Attachment(name=name, media_type=expected_type, data=data)


def _is_utf8(data: bytes) -> bool:
    try:
        return is_text(data.decode())
    except UnicodeDecodeError:
        return False


def _base_name(name: str) -> str:
    return name.replace(":", "/").rstrip("/").rpartition("/")[2]


def _check_unique(names: Sequence[str]) -> None:
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"duplicate attachment: {duplicates[0]}", hint="Attach each file once.")


def _check_count(count: int, policy: AttachmentPolicy, where: str | None) -> None:
    if count > policy.max_attachments:
        message = f"too many attachments: {count} (the worker accepts at most {policy.max_attachments})"
        raise Refused(message, where=where, hint=_policy_hint("fewer", "max_attachments"))


def _check_suffix(base_name: str, name: str, policy: AttachmentPolicy, where: str | None) -> None:
    if not has_suffix(base_name, policy.allowed_suffixes):
        message = f"cannot attach {name}: the worker accepts only {', '.join(policy.allowed_suffixes)}"
        raise Refused(message, where=where, hint=_policy_hint("other", "allowed_suffixes"))
    if policy.denied_suffixes and has_suffix(base_name, policy.denied_suffixes):
        message = f"cannot attach {name}: the worker does not accept {', '.join(policy.denied_suffixes)}"
        raise Refused(message, where=where, hint=_policy_hint("other", "denied_suffixes"))


def _check_size(size: int, policy: AttachmentPolicy, where: str | None) -> None:
    if size > policy.max_total_bytes:
        message = f"attachments too large: the worker accepts at most {policy.max_total_bytes:,} bytes in total"
        raise Refused(message, where=where, hint=_policy_hint("smaller", "max_total_bytes"))
    if size > MAX_TOTAL_BYTES:
        message = f"attachments too large: a run accepts at most {MAX_TOTAL_BYTES:,} bytes in total"
        raise Refused(message, where=where, hint="Attach smaller files.")


def _policy_hint(adjective: str, field: str) -> str:
    return f"Attach {adjective} files, or change attachment_policy.{field} in the worker file."
