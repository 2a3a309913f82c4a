"""File tools: implement Read, Write and Edit on a view, and the sandbox_* tools on its named folders.

Does not search (see `tools.builtin.search`). All file access goes through `sandbox.files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from guildhall.core.errors import NotFound, Refused, UsageError
from guildhall.sandbox.files import Contents, SandboxFiles, check_suffix, has_suffix
from guildhall.sandbox.glob import PathPattern
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob, Handler, Tool, ToolResult

if TYPE_CHECKING:
    from guildhall.sandbox.view import Folder, View


_MAX_LINES = 2_000
_MAX_LINE_CHARS = 2_000
_MAX_OUTPUT_CHARS = 100_000
_MAX_BLOB_BYTES = 5_000_000
_SNIFFED_BYTES = 8_192
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def file_tools(view: View) -> tuple[Tool, ...]:
    """Return Read, Write and Edit for the folders of a view."""
    handlers = file_handlers(view)
    return (
        tool(name="Read", capabilities={"fs.read"}, repeatable=True)(handlers["Read"]),
        tool(name="Write", capabilities={"fs.write"}, repeatable=True)(handlers["Write"]),
        tool(name="Edit", capabilities={"fs.write"})(handlers["Edit"]),
    )


def file_handlers(view: View) -> dict[str, Handler]:
    files = _Files(view)
    return {"Read": files.read, "Write": files.write, "Edit": files.edit}


class _Files:
    def __init__(self, view: View) -> None:
        self._files = SandboxFiles(view)

    def read(
        self,
        file_path: str,
        offset: Annotated[int, Field(ge=1)] | None = None,
        limit: Annotated[int, Field(ge=1)] | None = None,
    ) -> ToolResult:
        """Read a text file, an image or a PDF.

        Args:
            file_path: Absolute, or relative to the working folder.
            offset: The first line to return, from 1. Leave it out to read the whole file.
            limit: The number of lines, at most 2000. Leave it out to read the whole file.
        """
        contents = self._files.read(self._files.locate(file_path))
        if (found := media_type(contents.data)) is not None:
            return ToolResult(content=(_create_blob(contents, found, file_path),))
        if is_binary(contents.data):
            raise Refused(f"{file_path} is a binary file", hint="Only text, images and PDFs can be read.")
        check_suffix(contents.folder, contents.name, file_path, is_text=True)
        text = contents.data.decode("utf-8", "replace").removeprefix("\ufeff")
        return _select_lines(text, offset or 1, min(limit or _MAX_LINES, _MAX_LINES))

    def write(self, file_path: str, content: str) -> ToolResult:
        """Create a file and its parent folders, or replace the whole content of an existing file.

        Args:
            file_path: Absolute, or relative to the working folder.
            content: The complete new text.
        """
        data = encode_text(content)
        is_new = self._files.write(self._files.locate(file_path), data)
        text = f"{'Created' if is_new else 'Replaced'} {file_path} ({len(data):,} bytes)."
        return ToolResult.of(text, file_before="absent" if is_new else None)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> str:
        """Replace a text in a file. The text must occur exactly once unless replace_all is set.

        Args:
            file_path: Absolute, or relative to the working folder.
            old_string: The text to replace, exactly as in the file.
            new_string: The replacement.
            replace_all: Replace every occurrence.
        """
        if not old_string:
            raise UsageError("old_string is empty", hint="Use Write to create a file or to replace its whole content.")
        if old_string == new_string:
            raise UsageError("old_string and new_string are equal")
        count = 0

        def replace(data: bytes) -> bytes:
            nonlocal count
            try:
                text = data.decode()
            except UnicodeDecodeError:
                raise Refused(f"{file_path} is not UTF-8 text and cannot be edited") from None
            old, new = _match_line_endings(text, old_string, new_string)
            count = text.count(old)
            if count == 0:
                hint = "Read the file and copy the text exactly, with its spaces."
                raise NotFound(f"old_string does not occur in {file_path}", hint=hint)
            if count > 1 and not replace_all:
                hint = "Include more of the surrounding text, or set replace_all."
                raise UsageError(f"old_string occurs {count} times in {file_path}", hint=hint)
            return encode_text(text.replace(old, new))

        self._files.edit(self._files.locate(file_path), replace)
        return f"Replaced {count} occurrence{'s' if count > 1 else ''} in {file_path}."


def encode_text(content: str) -> bytes:
    """Return the UTF-8 bytes of a text. Raise UsageError if it has lone surrogates."""
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"invalid text: character {error.start + 1} is a lone surrogate") from None


def is_binary(data: bytes) -> bool:
    """Return True if the beginning of the data contains a NUL byte."""
    return b"\0" in data[:_SNIFFED_BYTES]


def media_type(data: bytes) -> str | None:
    """Return the media type of an image or PDF, or None."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((found for magic, found in _MAGIC if data.startswith(magic)), None)


def _create_blob(contents: Contents, media_type: str, path: str) -> Blob:
    suffixes = contents.folder.attachment_suffixes
    if not has_suffix(contents.name, suffixes):
        raise Refused(f"cannot read {path}: only files ending in {', '.join(suffixes)} may be attached")
    if len(contents.data) > _MAX_BLOB_BYTES:
        sizes = f"{len(contents.data):,} bytes, at most {_MAX_BLOB_BYTES:,} are allowed"
        raise Refused(f"{path} is too large: {sizes}", hint="Use a smaller file.")
    return Blob(contents.data, media_type)


def _select_lines(text: str, first: int, count: int) -> ToolResult:
    """Return the lines without numbers, which a model takes for content. A note says how to read the other lines."""
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        return ToolResult.of("[the file is empty]")
    if first > len(lines):
        return ToolResult.of(f"[the file has {len(lines):,} lines; line {first:,} is beyond its end]")
    shown: list[str] = []
    size, is_whole = 0, first == 1 and not {"\r", "\ufffd"} & set(text)  # these characters are not shown unchanged
    for line in lines[first - 1 : first - 1 + count]:
        plain = line.removesuffix("\r")
        if len(plain) > _MAX_LINE_CHARS:
            plain = f"{plain[:_MAX_LINE_CHARS]} [line cut: it has {len(plain):,} characters]"
            is_whole = False
        size += len(plain)
        if shown and size > _MAX_OUTPUT_CHARS:
            break
        shown.append(plain)
    last = first + len(shown) - 1
    if last < len(lines):
        shown.append(f"[lines {first:,} to {last:,} of {len(lines):,}; continue with offset={last + 1}]")
        is_whole = False
    return ToolResult.of(text, file_before="shown") if is_whole else ToolResult.of("\n".join(shown))


def _match_line_endings(text: str, old: str, new: str) -> tuple[str, str]:
    """Return both texts with the line endings of the file, which Read does not show to the model."""
    if "\r\n" not in text or "\r" in old or old in text:
        return old, new
    return old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")


_MAX_LISTED = 1_000
_MAX_CHARS = 200_000


def sandbox_tools(view: View) -> tuple[Tool, ...]:
    """Return the tools for the named folders of a view."""
    named = [folder for folder in view.folders if folder.name is not None]
    if not named:
        return ()
    handlers = sandbox_handlers(view)
    tools: list[Tool] = []
    for name in handlers:
        is_writer = name == "sandbox_write_text"
        folders = [folder for folder in named if folder.is_writable or not is_writer]
        if folders:
            make = tool(name=name, capabilities={"fs.write" if is_writer else "fs.read"}, repeatable=True)
            tools.append(_with_sandbox_names(make(handlers[name]), folders, view))
    return tuple(tools)


def _with_sandbox_names(made: Tool, folders: Sequence[Folder], view: View) -> Tool:
    """Return the tool with the sandboxes as the values of `sandbox`, which is required if there are several."""
    schema = dict(made.input_schema)
    sandbox: dict[str, Any] = {
        "type": "string",
        "enum": [folder.name for folder in folders],
        "description": f"One of: {', '.join(_describe_sandbox(folder, view) for folder in folders)}.",
    }
    if len(folders) == 1:
        sandbox["default"] = folders[0].name
    else:
        schema["required"] = ["sandbox", *schema.get("required", ())]
    schema["properties"] = {**schema["properties"], "sandbox": sandbox}
    return replace(made, input_schema=schema)


def _describe_sandbox(folder: Folder, view: View) -> str:
    path = [f"./{folder.path.relative_to(view.cwd)}"] if folder.path.is_relative_to(view.cwd) else []
    return f"{folder.name} ({', '.join([*path, 'writable' if folder.is_writable else 'read-only'])})"


def sandbox_handlers(view: View) -> dict[str, Handler]:
    sandboxes = _Sandboxes(view)
    return {
        "sandbox_list": sandboxes.list_files,
        "sandbox_read_text": sandboxes.read_text,
        "sandbox_write_text": sandboxes.write_text,
    }


class _Sandboxes:
    def __init__(self, view: View) -> None:
        self._files = SandboxFiles(view)

    def _folder(self, name: str, *, is_writer: bool = False) -> Folder:
        """Return the sandbox with this name. An empty name stands for the only sandbox that the tool can use."""
        named = [folder for folder in self._files.view.folders if folder.name]
        folders = [folder for folder in named if folder.is_writable or not is_writer]
        return folders[0] if not name and len(folders) == 1 else self._files.find_sandbox(name)

    def list_files(self, sandbox: str = "", pattern: str = "**/*") -> str:
        """List the files in a sandbox, one path per line.

        Args:
            pattern: A glob pattern, such as `*.md` or `reports/**/*.txt`.
        """
        folder = self._folder(sandbox)
        wanted = PathPattern(pattern)
        survey = self._files.list_files(self._files.locate_in(folder, "."))
        found: list[str] = []
        for path, _ in survey:
            if wanted.matches(path):
                found.append(path)
            if len(found) > _MAX_LISTED:
                break
        cut = survey.is_truncated or len(found) > _MAX_LISTED
        if not found and not cut:
            return f"[no files match {pattern} in the sandbox {folder.name}]"
        note = [f"[the first {min(len(found), _MAX_LISTED):,}; use a narrower pattern]"] if cut else []
        return "\n".join([*found[:_MAX_LISTED], *note])

    def read_text(self, path: str, sandbox: str = "", max_chars: int = _MAX_CHARS) -> ToolResult:
        """Read a text file in a sandbox.

        Args:
            path: The file, relative to the sandbox.
            max_chars: The maximum number of characters.
        """
        if max_chars < 1:
            raise UsageError("max_chars: expected at least 1")
        folder = self._folder(sandbox)
        data = self._files.read(self._files.locate_in(folder, path), is_text=True).data
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(f"{path} is not UTF-8 text") from None
        if is_binary(data):
            raise Refused(f"{path} is a binary file, not text")
        if len(text) <= max_chars:
            return ToolResult.of(text, file_before="shown")
        return ToolResult.of(f"{text[:max_chars]}\n[cut: {max_chars:,} of {len(text):,} characters]")

    def write_text(self, path: str, content: str, sandbox: str = "") -> ToolResult:
        """Create a text file and its parent folders in a sandbox, or replace the whole content of an existing file.

        Args:
            path: The file, relative to the sandbox.
            content: The complete new text.
        """
        folder = self._folder(sandbox, is_writer=True)
        data = encode_text(content)
        is_new = self._files.write(self._files.locate_in(folder, path), data)
        text = f"{'Created' if is_new else 'Replaced'} {path} in the sandbox {folder.name} ({len(data):,} bytes)."
        return ToolResult.of(text, file_before="absent" if is_new else None)
