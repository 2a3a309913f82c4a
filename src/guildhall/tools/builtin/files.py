"""File tools: implement Read, Write and Edit on a view, and the sandbox_* tools on its named folders.

Does not search (see `tools.builtin.search`). All access goes through `sandbox.files`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound, Refused, UsageError
from guildhall.sandbox.files import Contents, Rooted, must_suit, suits
from guildhall.sandbox.glob import PathPattern
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob, Handler, Tool, ToolResult

if TYPE_CHECKING:
    from guildhall.sandbox.view import View


_MAX_LINES = 2_000
_MAX_LINE = 2_000
_MAX_SHOWN = 100_000
_MAX_BLOB = 5_000_000
_SNIFFED = 8_192
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def file_tools(view: View) -> tuple[Tool, ...]:
    """Read, Write and Edit on the folders of a view."""
    handlers = file_handlers(view)
    return (
        tool(name="Read", capabilities={"fs.read"}, repeatable=True)(handlers["Read"]),
        tool(name="Write", capabilities={"fs.write"}, repeatable=True)(handlers["Write"]),
        tool(name="Edit", capabilities={"fs.write"})(handlers["Edit"]),
    )


def file_handlers(view: View) -> dict[str, Handler]:
    """What they do, by their names."""
    files = _Files(view)
    return {"Read": files.read, "Write": files.write, "Edit": files.edit}


class _Files:
    def __init__(self, view: View) -> None:
        self._rooted = Rooted(view)

    def read(self, file_path: str, offset: int | None = None, limit: int | None = None) -> ToolResult:
        """Reads a file. Text comes with line numbers; images and PDFs come as they are.

        Args:
            file_path: The file, absolute or from the working folder.
            offset: The first line to show, from 1. For files too long for one answer.
            limit: How many lines to show, at most 2000.
        """
        if (offset is not None and offset < 1) or (limit is not None and limit < 1):
            raise UsageError("offset and limit count lines from 1")
        contents = self._rooted.read(self._rooted.spot(file_path))
        if (kind := media_type(contents.data)) is not None:
            return ToolResult(content=(_blob(contents, kind, file_path),))
        if is_binary(contents.data):
            raise Refused(f"{file_path} is a binary file", hint="Only text, images and PDFs can be read.")
        must_suit(contents.folder, contents.name, file_path, text=True)
        text = contents.data.decode("utf-8", "replace").removeprefix("\ufeff")
        return _number_lines(text, offset or 1, min(limit or _MAX_LINES, _MAX_LINES))

    def write(self, file_path: str, content: str) -> ToolResult:
        """Writes a file: makes it, with the folders it needs, or replaces all that was in it.

        Args:
            file_path: The file, absolute or from the working folder.
            content: All of the new text.
        """
        data = encoded(content)
        is_new = self._rooted.write(self._rooted.spot(file_path), data)
        text = f"{'Made' if is_new else 'Replaced'} {file_path} ({len(data):,} bytes)."
        return ToolResult.of(text, file_before="absent" if is_new else None)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> str:
        """Replaces a piece of text in a file. The piece must occur exactly once, unless replace_all is set.

        Args:
            file_path: The file, absolute or from the working folder.
            old_string: The text to replace, exactly as it stands in the file, without line numbers.
            new_string: The text to put there.
            replace_all: Replace every occurrence.
        """
        if not old_string:
            raise UsageError("old_string is empty", hint="Use Write to make a file or to replace all of it.")
        if old_string == new_string:
            raise UsageError("old_string and new_string are the same: there is nothing to change")
        spot = self._rooted.spot(file_path)
        try:
            text = self._rooted.read(spot, text=True).data.decode()
        except UnicodeDecodeError:
            raise Refused(f"{file_path} is not UTF-8 text and cannot be edited") from None
        old_string, new_string = _with_line_ends_of(text, old_string, new_string)
        count = text.count(old_string)
        if count == 0:
            hint = "Read the file and copy the text exactly, with its spaces, without line numbers."
            raise NotFound(f"old_string does not occur in {file_path}", hint=hint)
        if count > 1 and not replace_all:
            hint = "Give more of the text around it, or set replace_all."
            raise UsageError(f"old_string occurs {count} times in {file_path}", hint=hint)
        self._rooted.write(spot, encoded(text.replace(old_string, new_string)))
        return f"Replaced {count} occurrence{'s' if count > 1 else ''} in {file_path}."


def encoded(content: str) -> bytes:
    """The text as it is written to a file."""
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text cannot be written: character {error.start + 1} is half a character") from None


def is_binary(data: bytes) -> bool:
    """Whether the bytes are not meant to be read as text."""
    return b"\0" in data[:_SNIFFED]


def media_type(data: bytes) -> str | None:
    """What the bytes are, if a model can look at them as they are."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if data.startswith(magic)), None)


def _blob(contents: Contents, kind: str, shown: str) -> Blob:
    suffixes = contents.folder.attachment_suffixes
    if not suits(contents.name, suffixes):
        raise Refused(f"{shown}: only files ending in {', '.join(suffixes)} may be handed over whole")
    if len(contents.data) > _MAX_BLOB:
        size = f"{len(contents.data):,} bytes"
        raise Refused(f"{shown} is too large to look at: {size}, at most {_MAX_BLOB:,}", hint="Use a smaller one.")
    return Blob(contents.data, kind)


def _number_lines(text: str, first: int, count: int) -> ToolResult:
    """Return lines in the format of `cat -n`, and a note with the next offset if lines are left out."""
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        return ToolResult.of("[the file is empty]")
    if first > len(lines):
        return ToolResult.of(f"[the file has {len(lines):,} lines; line {first:,} is beyond its end]")
    shown: list[str] = []
    size, is_whole = 0, first == 1 and not {"\r", "\ufffd"} & set(text)  # neither is shown as it is
    for number, line in enumerate(lines[first - 1 : first - 1 + count], start=first):
        plain = line.removesuffix("\r")
        if len(plain) > _MAX_LINE:
            plain = f"{plain[:_MAX_LINE]} [line cut: it has {len(plain):,} characters]"
            is_whole = False
        size += len(plain)
        if shown and size > _MAX_SHOWN:
            break
        shown.append(f"{number:6d}\t{plain}")
    last = first + len(shown) - 1
    if last < len(lines):
        shown.append(f"[lines {first:,} to {last:,} of {len(lines):,}; go on with offset={last + 1}]")
        is_whole = False
    return ToolResult.of("\n".join(shown), file_before="shown" if is_whole else None)


def _with_line_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """Both pieces with the file's own line ends: Read does not show them, so the model cannot copy them."""
    if "\r\n" not in text or "\r" in old or old in text:
        return old, new
    return old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")


_MAX_LISTED = 1_000
_MAX_CHARS = 200_000


def sandbox_tools(view: View) -> tuple[Tool, ...]:
    """The tools for the named folders of a view; none if it has no named folder."""
    named = [folder for folder in view.folders if folder.name is not None]
    if not named:
        return ()
    handlers = sandbox_handlers(view)
    tools = (
        tool(name="sandbox_list", capabilities={"fs.read"}, repeatable=True)(handlers["sandbox_list"]),
        tool(name="sandbox_read_text", capabilities={"fs.read"}, repeatable=True)(handlers["sandbox_read_text"]),
    )
    if any(folder.writable for folder in named):
        write = tool(name="sandbox_write_text", capabilities={"fs.write"}, repeatable=True)
        tools += (write(handlers["sandbox_write_text"]),)
    return tools


def sandbox_handlers(view: View) -> dict[str, Handler]:
    """What they do, by their names."""
    sandboxes = _Sandboxes(view)
    return {
        "sandbox_list": sandboxes.list_files,
        "sandbox_read_text": sandboxes.read_text,
        "sandbox_write_text": sandboxes.write_text,
    }


class _Sandboxes:
    def __init__(self, view: View) -> None:
        self._rooted = Rooted(view)

    def list_files(self, sandbox: str, pattern: str = "**/*") -> str:
        """Lists the files in a sandbox, one path a line.

        Args:
            sandbox: The sandbox's name.
            pattern: Which files, such as `*.md` or `reports/**/*.txt`.
        """
        folder = self._rooted.sandbox(sandbox)
        wanted = PathPattern(pattern)
        survey = self._rooted.files(self._rooted.within(folder, "."))
        found: list[str] = []
        for path, _ in survey:
            if wanted.matches(path):
                found.append(path)
            if len(found) > _MAX_LISTED:
                break
        cut = survey.cut or len(found) > _MAX_LISTED
        if not found and not cut:
            return f"[no files match {pattern} in the sandbox {sandbox}]"
        note = [f"[the first {min(len(found), _MAX_LISTED):,}; give a narrower pattern]"] if cut else []
        return "\n".join([*found[:_MAX_LISTED], *note])

    def read_text(self, sandbox: str, path: str, max_chars: int = _MAX_CHARS) -> ToolResult:
        """Reads a text file in a sandbox.

        Args:
            sandbox: The sandbox's name.
            path: The file, from the top of the sandbox.
            max_chars: How many characters to read at most.
        """
        if max_chars < 1:
            raise UsageError("max_chars must be at least 1")
        folder = self._rooted.sandbox(sandbox)
        data = self._rooted.read(self._rooted.within(folder, path), text=True).data
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise Refused(f"{path} is not UTF-8 text") from None
        if is_binary(data):
            raise Refused(f"{path} is a binary file, not text")
        if len(text) <= max_chars:
            return ToolResult.of(text, file_before="shown")
        return ToolResult.of(f"{text[:max_chars]}\n[cut: {max_chars:,} of {len(text):,} characters]")

    def write_text(self, sandbox: str, path: str, content: str) -> ToolResult:
        """Writes a text file in a sandbox: makes it, with the folders it needs, or replaces all that was in it.

        Args:
            sandbox: The sandbox's name.
            path: The file, from the top of the sandbox.
            content: All of the new text.
        """
        folder = self._rooted.sandbox(sandbox)
        data = encoded(content)
        is_new = self._rooted.write(self._rooted.within(folder, path), data)
        text = f"{'Made' if is_new else 'Replaced'} {path} in the sandbox {sandbox} ({len(data):,} bytes)."
        return ToolResult.of(text, file_before="absent" if is_new else None)
