"""Memory tools: give workers `memory_read`, `memory_write` and `memory_list`.

The model reads the docstrings of the tools.

Does not check permissions: the gate does, by capability.

Invariant: a tool reaches only the folders of its own run, and the author of a change is never an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import Refused
from guildhall.memory.model import Author, Scope  # noqa: TC001 - the input schemas of the tools are made from it
from guildhall.memory.prompt_block import fits_in_block
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from guildhall.memory.folder import MemoryFolder
    from guildhall.memory.service import Memory
    from guildhall.tools.model import Tool

TOOLS = {"memory_read": {"memory.read"}, "memory_write": {"memory.write"}, "memory_list": {"memory.read"}}
_MAX_LISTED = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryTools:
    """The memory tools of one run. Calls `on_compaction_due` in the event loop if a write made compaction due."""

    memory: Memory
    folders: Mapping[Scope, MemoryFolder]
    author: Author
    limit_tokens: int
    on_compaction_due: Callable[[MemoryFolder], None]

    def tools(self) -> tuple[Tool, ...]:
        return bind_tools(self, TOOLS, runs_in="hall")

    async def memory_read(self, scope: Scope, key: str) -> str:
        """Read a memory entry in full. Use this for entries that the memory block of your prompt only names.

        Args:
            scope: worker (your own notes), project (shared within this project) or global (shared everywhere).
            key: Name of the entry, as memory_list shows it.
        """
        entry = await asyncio.to_thread(self.memory.read, self._folder(scope), key)
        return entry.content

    async def memory_write(self, scope: Scope, key: str, content: str) -> str:
        """Save a note for later runs: a fact, a decision with its reason, a preference of the user.
        Write one subject per entry, so that it makes sense without this conversation. Replaces an existing entry.

        Args:
            scope: worker (your own notes), project (shared within this project) or global (shared everywhere).
            key: Short name such as build-commands. Letters, digits, "_", "-" and "."; no slash, no file suffix.
            content: The whole note, at most 100,000 bytes. No passwords or API keys.
        """
        folder = self._folder(scope)
        await asyncio.to_thread(self.memory.write, folder, key, content, self.author)
        if await asyncio.to_thread(self.memory.is_compaction_due, folder, self.limit_tokens):
            self.on_compaction_due(folder)
        if fits_in_block(key, content, self.limit_tokens):
            return f"Saved {scope}/{key}."
        return (
            f"Saved {scope}/{key}. It is too long for a prompt: later runs see only its name until they call "
            "memory_read. Write a shorter entry if they should see the content."
        )

    async def memory_list(self, scope: Scope) -> str:
        """List the memory entries of a scope, newest first, with time and size.

        Args:
            scope: worker (your own notes), project (shared within this project) or global (shared everywhere).
        """
        listing = await asyncio.to_thread(self.memory.list_entries, [self._folder(scope)])
        if not listing.entries:
            return f"The {scope} memory is empty."
        lines = [f"{entry.key}  {entry.written_at}  {entry.size:,} bytes" for entry in listing.entries[:_MAX_LISTED]]
        if (older := len(listing.entries) - _MAX_LISTED) > 0:
            lines.append(f"... and {older:,} older entries.")
        return "\n".join(lines)

    def _folder(self, scope: Scope) -> MemoryFolder:
        if scope not in self.folders:
            raise Refused(f"this run has no {scope} memory", hint=f"Available scopes: {', '.join(self.folders)}.")
        return self.folders[scope]
