"""The artifact tools, which the base toolbox gives to every run in a registered project."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.tools.define import bind_tools
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.projects.artifacts import Artifacts, Line

TOOLS = {
    "artifact_read": {"artifact.read"},
    "artifact_write": {"artifact.write"},
    "artifact_list": {"artifact.read"},
}
_MAX_LISTED = 500


def artifact_toolbox(artifacts: Artifacts, today: Callable[[], str]) -> Toolbox:
    """Return the artifact tools of one run."""
    return Toolbox("artifacts", *bind_tools(ArtifactTools(artifacts, today), TOOLS, runs_in="hall"))


class ArtifactTools:
    """The artifact tools of one run. The model reads the docstrings."""

    def __init__(self, artifacts: Artifacts, today: Callable[[], str]) -> None:
        self._artifacts = artifacts
        self._today = today

    async def artifact_read(self, path: str) -> str:
        """Read an artifact of the project, whole: a markdown file with front matter, below `.lore/`.

        Args:
            path: Its path from `.lore/` on, such as plans/launch.md.
        """
        return await asyncio.to_thread(self._artifacts.read, path)

    async def artifact_write(
        self,
        path: str,
        content: str,
        title: str | None = None,
        status: str | None = None,
        tags: list[str] | None = None,
    ) -> str:
        """Write an artifact of the project: a plan, a report, notes. Others read it, and refer to it by its path.

        It replaces all of the text that is there. What its front matter says (title, date, status, tags and whatever
        else) stays, unless you give something else here or in front matter of your own.

        Args:
            path: Its path from `.lore/` on, such as plans/launch.md. It ends in .md.
            content: All of the text, in markdown, at most 1,000,000 bytes.
            title: What it is called.
            status: How it stands, such as draft or done.
            tags: Words by which it is found.
        """
        write = self._artifacts.write
        today = self._today()
        made = await asyncio.to_thread(write, path, content, date=today, title=title, status=status, tags=tags)
        return f"Written: {made.title!r}, {len(made.body):,} characters."

    async def artifact_list(self, under: str | None = None) -> str:
        """List the artifacts of the project: path, status, title.

        Args:
            under: A folder of them, such as plans; none: all.
        """
        lines = await asyncio.to_thread(self._artifacts.list, under)
        if not lines:
            return "There are no artifacts" + (f" below {under}." if under else " yet.")
        told = [_told(one) for one in lines[:_MAX_LISTED]]
        if (more := len(lines) - _MAX_LISTED) > 0:
            told.append(f"... and {more:,} more; name a folder to see them.")
        return "\n".join(told)


def _told(line: Line) -> str:
    status = f"[{line.status}] " if line.status else ""
    return " ".join(f"{line.path}  {status}{line.title}".splitlines()).rstrip()
