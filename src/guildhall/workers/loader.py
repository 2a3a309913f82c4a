"""Worker loader: reads and validates a worker file, and finds and renders its instructions.

Workers are found by `workers.registry`. Templates are rendered in another process by `workers.template`.

Invariant: errors name the file, the line, the field and the nearest valid name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core import ids, yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.text_checks import did_you_mean
from guildhall.workers import template
from guildhall.workers.definition import Definition
from guildhall.workers.model import BUILT_IN_TOOLS, Lock, Scope, Worker, project_folder, rule_names

if TYPE_CHECKING:
    from guildhall.core.yaml import Location, Source

    Kind = TypeVar("Kind", bound=Definition)

WORKER_SUFFIXES = (".yaml", ".yml", ".json")
_PROMPT_SUFFIXES = (".md", ".txt", ".j2", ".jinja2")
_TEMPLATE_SUFFIXES = (".j2", ".jinja2")
_MAX_CPU_S = 2  # includes the start of Python
_TIMEOUT_S = 20.0


def find_prompt(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the prompt file of a worker in the first folder that has one. Raise InvalidFile for several."""
    for folder in folders:
        paths = [folder / f"{name}{suffix}" for suffix in _PROMPT_SUFFIXES]
        found = [path for path in paths if path.exists() or path.is_symlink()]
        if len(found) > 1:
            both = " and ".join(path.name for path in found)
            raise InvalidFile(
                f"several prompt files for one worker: {both}", where=str(folder), hint="Delete all but one."
            )
        if found:
            return found[0]
    return None


def prompt_text(prompt: Path, values: Mapping[str, Any], *, max_cpu_s: int = _MAX_CPU_S) -> str:
    """Return the text of a prompt file. Render it if it is a template."""
    if prompt.suffix in _TEMPLATE_SUFFIXES:
        return _render(prompt, values, max_cpu_s)
    try:
        return template.read_inside(str(prompt.parent), prompt.name)
    except template.UnreadableFile as error:
        raise InvalidFile(str(error), where=str(prompt)) from None


def _render(prompt: Path, values: Mapping[str, Any], max_cpu_s: int) -> str:
    location = {"path": sys.path, "folder": str(prompt.parent), "name": prompt.name}
    request = {**location, "values": dict(values), "max_cpu_s": max_cpu_s}
    too_long = InvalidFile(
        f"cannot render the template: it takes more than {max_cpu_s} s of CPU time",
        where=str(prompt),
        hint="Look for endless loops.",
    )
    try:
        child = subprocess.run(
            [sys.executable, "-I", str(Path(template.__file__))],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_long from None
    if child.returncode < 0:
        raise too_long
    try:
        response: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        raise InvalidFile("cannot render the template: the renderer crashed", where=str(prompt)) from None
    if "text" in response:
        return response["text"]
    where = f"{prompt.parent / response['file']}:{response['line']}" if response.get("file") else str(prompt)
    raise InvalidFile(f"cannot render the template: {response['error']}", where=where)


def load(path: Path, *, scope: Scope = "project", lock: Lock | None = None) -> Worker:
    """Return the worker in a file, with its instructions."""
    source = yaml.read(path)
    definition = read_definition(source)
    text, instructions = source.text, definition.instructions
    if instructions is None:
        values = {"name": definition.name, "description": definition.description or ""}
        instructions = prompt_text(_prompt_path(source, definition), values)
        text = f"{text}\0{instructions}"
    if not instructions.strip():
        raise source.error("the instructions are empty", ("instructions",))
    return Worker(
        definition=definition,
        instructions=instructions,
        scope=scope,
        digest=ids.digest(text.encode()),
        path=path,
        lock=lock,
    )


def load_definition(path: Path) -> Definition:
    """Return the definition in a file. Check that the prompt file exists, but do not render it."""
    source = yaml.read(path)
    definition = read_definition(source)
    if definition.instructions is None:
        _prompt_path(source, definition)
    return definition


def read_definition(source: Source) -> Definition:
    """Return the definition in a source. The default name is that of the file."""
    stem = source.path.stem
    data = cast("object", source.data)
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("name") is None:
        if not ids.is_name(stem):
            raise source.error(f"invalid worker name {stem!r}: {ids.NAME_RULE}", hint="Rename the file.")
        source = replace(source, data={**cast("dict[str, Any]", data), "name": stem})
    definition = parse_definition(source, Definition)
    if definition.name != stem:
        hint = f"Rename the file to {definition.name}{source.path.suffix}, or the worker to {stem}."
        raise source.error(f"the worker name {definition.name!r} differs from the file name {stem!r}", ("name",), hint)
    return definition


def parse_definition(source: Source, kind: type[Kind], location: Location = ()) -> Kind:
    """Return the definition at a location. Raise InvalidFile if it has unknown tools or rules."""
    source = normalize_fields(source, location)
    return yaml.validate(kind, source, location, unknown_names(source, location))


def unknown_names(source: Source, location: Location = ()) -> Iterator[tuple[Location, str, str | None]]:
    """Yield location, message and hint for each unknown tool and each unknown rule of a definition."""
    data = cast("object", source.at(location))
    fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    tools = cast("list[object]", fields.get("tools")) if isinstance(fields.get("tools"), list) else []
    for index, tool in enumerate(tools):
        if isinstance(tool, str) and ids.is_name(tool) and tool not in BUILT_IN_TOOLS:
            tool_location = (*location, "tools", index)
            yield tool_location, f"unknown built-in tool {tool!r}", did_you_mean(tool, BUILT_IN_TOOLS)
    # The tools of toolboxes and servers are known when a run is assembled. Worker.rules_for checks their rules.
    if any(fields.get(name) for name in ("toolboxes", "mcp_servers", "members", "worker")):
        return
    rules = cast("dict[str, object]", fields.get("tool_rules")) if isinstance(fields.get("tool_rules"), dict) else {}
    for rule in rules:
        if rule not in rule_names():
            yield (*location, "tool_rules", rule), "unknown capability or tool", did_you_mean(rule, rule_names())


def normalize_fields(
    source: Source, location: Location = (), aliases: Mapping[str, str] = MappingProxyType({"backend": "runtime"})
) -> Source:
    """Return the source with `aliases` renamed and a list of rules converted to a mapping. Line numbers are kept."""
    if not isinstance(cast("object", source.at(location)), dict):
        return source
    fields = dict(cast("dict[str, Any]", source.at(location)))
    lines, written = dict(source.lines), dict(source.written_names)
    for alias, name in aliases.items():
        if alias in fields and name not in fields:
            fields[name] = fields.pop(alias)
            move_lines(lines, (*location, alias), (*location, name))
            written[(*location, name)] = alias
    rules = cast("list[Any]", fields.get("tool_rules")) if isinstance(fields.get("tool_rules"), list) else []
    names = [cast("dict[str, Any]", rule).get("name") if isinstance(rule, dict) else None for rule in rules]
    if names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        fields["tool_rules"] = dict(zip(names, rules, strict=True))
        for index, name in enumerate(names):
            move_lines(lines, (*location, "tool_rules", index), (*location, "tool_rules", str(name)))
    data = _replace_part(source.data, location, fields)
    return replace(source, data=data, lines=lines, written_names=written)


def _replace_part(data: Any, location: Location, part: Any) -> Any:
    if not location:
        return part
    return {**data, location[0]: _replace_part(data[location[0]], location[1:], part)}


def move_lines(lines: dict[Location, int], old: Location, new: Location) -> None:
    """Record the lines of a value and its parts under a new location."""
    for location in [location for location in lines if location[: len(old)] == old]:
        lines[(*new, *location[len(old) :])] = lines.pop(location)


def _prompt_path(source: Source, definition: Definition) -> Path:
    path = source.path
    folders = list(dict.fromkeys((project_folder(path) / "prompts", path.parent / "prompts")))
    if (prompt := find_prompt(definition.name, folders)) is None:
        hint = f"Add `instructions:`, or create {folders[0] / definition.name}.md."
        raise source.error("the worker has no instructions", hint=hint)
    return prompt
