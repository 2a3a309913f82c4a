"""The built-in tools by name, and what they need to know of where they work."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.tools.files import file_tools
from guildhall.tools.search import search_tools
from guildhall.tools.shell import shell_tools

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guildhall.tools.model import Tool, View

# What each of them can do: known from its name alone, before anything is made.
BUILT_IN: Mapping[str, frozenset[str]] = {
    "Read": frozenset({"fs.read"}),
    "Grep": frozenset({"fs.read"}),
    "Glob": frozenset({"fs.read"}),
    "Write": frozenset({"fs.write"}),
    "Edit": frozenset({"fs.write"}),
    "Bash": frozenset({"proc.exec", "fs.read", "fs.write"}),
    "WebFetch": frozenset({"net"}),
    "WebSearch": frozenset({"net"}),
}


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a run's tools work: its view of the disk, its variables, and what only the hall may know."""

    view: View
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    web_search: Mapping[str, Any] | None = None
    environ: Mapping[str, str] = field(default_factory=dict[str, str])  # the hall's own: keys of search providers
    forbidden: frozenset[str] = frozenset()  # capabilities that the worker's rules take away


def built_in_tools(names: Iterable[str], surroundings: Surroundings) -> list[Tool]:
    """The named built-in tools, in the order of their names."""
    wanted = list(names)
    view = surroundings.view
    tools: list[Tool] = []
    if {"Read", "Write", "Edit"} & set(wanted):
        tools += file_tools(view)
    if {"Grep", "Glob"} & set(wanted):
        tools += search_tools(view)
    if "Bash" in wanted:
        tools += shell_tools(_reduced(view, surroundings.forbidden), surroundings.env)
    if "WebFetch" in wanted:
        from guildhall.tools.web import web_tools

        tools += web_tools()
    if "WebSearch" in wanted:
        from guildhall.tools.websearch import search_tool

        tools.append(search_tool(surroundings.web_search, surroundings.environ))
    by_name = {tool.name: tool for tool in tools}
    return [by_name[name] for name in wanted]


def _reduced(view: View, forbidden: frozenset[str]) -> View:
    """What a shell sees of a view where rules forbid to read or to write: a rule holds for programs too."""
    if "fs.read" in forbidden:
        return replace(view, folders=())
    if "fs.write" in forbidden:
        return replace(view, folders=tuple(replace(folder, writable=False) for folder in view.folders))
    return view
