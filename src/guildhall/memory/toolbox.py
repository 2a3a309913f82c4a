"""The memory tools of a worker. They reach its own scopes and no others; who writes is known, not claimed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from guildhall.core.errors import Refused
from guildhall.memory.inject import fits_alone
from guildhall.memory.model import Scope  # noqa: TC001 - the tools' schemas are made from it
from guildhall.tools.define import tool
from guildhall.tools.model import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.memory.memory import Memory
    from guildhall.memory.model import Place, Writer

_LISTED = 200


def memory_toolbox(
    memory: Memory,
    places: Mapping[Scope, Place],
    writer: Writer,
    *,
    limit_tokens: int,
    grown: Callable[[Place], None] | None = None,
) -> Toolbox:
    """The tools of one run. `grown` hears, in the event loop, of a scope that a write made ready for compaction."""
    tools = _Tools(memory, places, writer, limit_tokens, grown)
    reads = tool(capabilities={"memory.read"}, repeatable=True, runs_in="hall")
    writes = tool(capabilities={"memory.write"}, repeatable=True, runs_in="hall")
    return Toolbox("memory", reads(tools.memory_read), writes(tools.memory_write), reads(tools.memory_list))


class _Tools:
    def __init__(
        self,
        memory: Memory,
        places: Mapping[Scope, Place],
        writer: Writer,
        limit_tokens: int,
        grown: Callable[[Place], None] | None,
    ) -> None:
        self._memory = memory
        self._places = places
        self._writer = writer
        self._limit = limit_tokens
        self._grown = grown

    async def memory_read(self, scope: Scope, key: str) -> str:
        """Read one entry of your memory, whole. Use it for entries that the memory block of your prompt leaves out.

        Args:
            scope: "worker" is yours alone, "project" is shared in this project, "global" is shared everywhere.
            key: The entry's name, as memory_list shows it.
        """
        entry = await asyncio.to_thread(self._memory.show, self._place(scope), key)
        return entry.content

    async def memory_write(self, scope: Scope, key: str, content: str) -> str:
        """Remember something beyond this run: a fact, a decision with its reason, a preference of the person's.

        One subject an entry, short, understandable without this conversation. Writing a key again replaces all of its
        content, so read it first if you want to add to it. The newest entries are shown at the start of later runs.

        Args:
            scope: "worker" for yourself alone, "project" for all who work in this project, "global" for everyone.
            key: A short name, such as build-commands: letters, digits, "_", "-" and "."; no path, no suffix.
            content: The text to remember, at most 100,000 bytes. Never passwords or keys.
        """
        place = self._place(scope)
        await asyncio.to_thread(self._memory.write, place, key, content, self._writer)
        if self._grown and await asyncio.to_thread(self._memory.grown, place, self._limit):
            self._grown(place)
        if fits_alone(key, content, self._limit):
            return f"Remembered as {scope}/{key}."
        return (
            f"Remembered as {scope}/{key}. It is too long to be shown in a prompt: later runs see its name only, and "
            "read it with memory_read. Write a shorter entry to have it shown."
        )

    async def memory_list(self, scope: Scope) -> str:
        """List the entries of your memory in one scope, newest first: name, time, size.

        Args:
            scope: "worker" is yours alone, "project" is shared in this project, "global" is shared everywhere.
        """
        listing = await asyncio.to_thread(self._memory.ls, [self._place(scope)])
        if not listing.entries:
            return f"The {scope} memory is empty."
        lines = [f"{entry.key}  {entry.written_at}  {entry.size:,} bytes" for entry in listing.entries[:_LISTED]]
        if (more := len(listing.entries) - _LISTED) > 0:
            lines.append(f"... and {more:,} older ones.")
        return "\n".join(lines)

    def _place(self, scope: Scope) -> Place:
        if scope not in self._places:
            raise Refused(f"this run has no {scope} memory", hint=f"It has: {', '.join(self._places)}.")
        return self._places[scope]
