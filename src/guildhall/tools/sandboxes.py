"""The tools that sandboxes alone give a worker: list, read and, where one is writable, write text in named folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Refused, UsageError
from guildhall.tools.define import tool
from guildhall.tools.files import encoded, is_binary
from guildhall.tools.patterns import PathPattern
from guildhall.tools.rooted import Rooted

if TYPE_CHECKING:
    from guildhall.tools.model import Handler, Tool, View

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

    def read_text(self, sandbox: str, path: str, max_chars: int = _MAX_CHARS) -> str:
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
            return text
        return f"{text[:max_chars]}\n[cut: {max_chars:,} of {len(text):,} characters]"

    def write_text(self, sandbox: str, path: str, content: str) -> str:
        """Writes a text file in a sandbox: makes it, with the folders it needs, or replaces all that was in it.

        Args:
            sandbox: The sandbox's name.
            path: The file, from the top of the sandbox.
            content: All of the new text.
        """
        folder = self._rooted.sandbox(sandbox)
        data = encoded(content)
        new = self._rooted.write(self._rooted.within(folder, path), data)
        return f"{'Made' if new else 'Replaced'} {path} in the sandbox {sandbox} ({len(data):,} bytes)."
