"""Worker loader: reads and validates a worker file, and finds and renders its instructions.

Does not search for workers (see `workers.registry`). Templates are rendered in a process of their own (see
`workers.template`). Errors name the file, the line, the field and the nearest valid name.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from guildhall.core import ids, yaml
from guildhall.core.errors import InvalidFile
from guildhall.core.text import did_you_mean
from guildhall.workers import template as rendering
from guildhall.workers.definition import Definition
from guildhall.workers.model import BUILT_IN_TOOLS, Lock, Scope, Worker, project_folder, rule_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.core.yaml import Location, Source

    Kind = TypeVar("Kind", bound=Definition)


SUFFIXES = (".md", ".txt", ".j2", ".jinja2")
RENDERED = frozenset({".j2", ".jinja2"})
CPU_SECONDS = 2  # a template's own work; starting Python is most of it
WALL_SECONDS = 20.0


def find_prompt(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the prompt file of a worker in the first folder that has one. Raise InvalidFile if it has two."""
    for folder in folders:
        found = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists() or path.is_symlink()]
        if len(found) > 1:
            both = " and ".join(path.name for path in found)
            raise InvalidFile(f"there are two prompts for one worker: {both}", where=str(folder), hint="Keep one.")
        if found:
            return found[0]
    return None


def prompt_text(prompt: Path, values: Mapping[str, Any], *, seconds: int = CPU_SECONDS) -> str:
    """Return the instructions in a prompt file. A template is rendered."""
    if prompt.suffix in RENDERED:
        return _rendered(prompt, values, seconds)
    try:
        return rendering.read_inside(str(prompt.parent), prompt.name)
    except rendering.UnreadableFile as error:
        raise InvalidFile(str(error), where=str(prompt)) from None


def _rendered(prompt: Path, values: Mapping[str, Any], seconds: int) -> str:
    where = {"path": sys.path, "folder": str(prompt.parent), "name": prompt.name}
    request = {**where, "values": dict(values), "seconds": seconds}
    too_long = InvalidFile("the template takes too long to render", where=str(prompt), hint="Look for endless loops.")
    try:
        child = subprocess.run(
            [sys.executable, "-I", str(Path(rendering.__file__))],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_long from None
    if child.returncode < 0:
        raise too_long
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        raise InvalidFile("the template broke its renderer", where=str(prompt)) from None
    if "text" in answer:
        return answer["text"]
    place = f"{prompt.parent / answer['file']}:{answer['line']}" if answer.get("file") else str(prompt)
    raise InvalidFile(f"the template cannot be rendered: {answer['error']}", where=place)


WORKER_SUFFIXES = (".yaml", ".yml", ".json")


def load(path: Path, *, scope: Scope = "project", lock: Lock | None = None) -> Worker:
    """Return the worker in a file, ready to run."""
    source = yaml.read(path)
    definition = read_definition(source)
    text, instructions = source.text, definition.instructions
    if instructions is None:
        values = {"name": definition.name, "description": definition.description or ""}
        instructions = prompt_text(_prompt(source, definition), values)
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
    """Return the definition in a file. Its prompt must exist, but is not rendered."""
    source = yaml.read(path)
    definition = read_definition(source)
    if definition.instructions is None:
        _prompt(source, definition)
    return definition


def worker_from_fields(fields: Mapping[str, Any]) -> Worker:
    """Return a worker that is built in Python from the fields of a worker file. Its instructions are inline."""
    name = fields.get("name")
    source = yaml.Source(Path(f"Worker({name!r})"), "", dict(fields), {})
    definition = parse_definition(source, Definition)
    if not (definition.instructions or "").strip():
        raise source.error("this field is required", ("instructions",))
    return Worker(
        definition=definition,
        instructions=definition.instructions or "",
        scope="given",
        digest=ids.fingerprint(definition.model_dump(mode="json")),
    )


def read_definition(source: Source) -> Definition:
    """Return the definition in a source. The name defaults to the file's."""
    stem = source.path.stem
    data = cast("object", source.data)
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("name") is None:
        if not ids.is_name(stem):
            raise source.error(f"the file's name {stem!r} cannot name a worker", hint="Use letters, digits, _ and -.")
        source = replace(source, data={**cast("dict[str, Any]", data), "name": stem})
    definition = parse_definition(source, Definition)
    if definition.name != stem:
        hint = f"Rename the file to {definition.name}{source.path.suffix}, or the worker to {stem}."
        raise source.error(f"the worker {definition.name!r} is in a file with another name", ("name",), hint)
    return definition


def parse_definition(source: Source, kind: type[Kind], location: Location = ()) -> Kind:
    """Return the definition in a part of a source. Raise InvalidFile for unknown tools and rules."""
    source = normalize_fields(source, location)
    definition = yaml.validate(kind, source, location)
    for index, tool in enumerate(definition.tools):
        if tool not in BUILT_IN_TOOLS:
            hint = did_you_mean(tool, BUILT_IN_TOOLS)
            raise source.error(f"there is no built-in tool {tool!r}", (*location, "tools", index), hint)
    # Toolboxes and servers bring tools whose names are known only when a run is assembled: Worker.rules_for.
    brings_more = definition.toolboxes or definition.mcp_servers or definition.members
    for rule in definition.tool_rules:
        if rule not in rule_names() and not brings_more:
            hint = did_you_mean(rule, rule_names())
            raise source.error("there is no such capability or tool", (*location, "tool_rules", rule), hint)
    return definition


def normalize_fields(
    source: Source, location: Location = (), others: Mapping[str, str] = MappingProxyType({"backend": "runtime"})
) -> Source:
    """Return the source with `others` renamed and a list of rules as a mapping. Line numbers are kept."""
    if not isinstance(cast("object", source.at(location)), dict):
        return source
    fields = dict(cast("dict[str, Any]", source.at(location)))
    lines = dict(source.lines)
    for other, name in others.items():
        if other in fields and name not in fields:
            fields[name] = fields.pop(other)
            _move(lines, (*location, other), (*location, name))
    rules = cast("list[Any]", fields.get("tool_rules")) if isinstance(fields.get("tool_rules"), list) else []
    names = [cast("dict[str, Any]", rule).get("name") if isinstance(rule, dict) else None for rule in rules]
    if names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        fields["tool_rules"] = dict(zip(names, rules, strict=True))
        for index, name in enumerate(names):
            _move(lines, (*location, "tool_rules", index), (*location, "tool_rules", str(name)))
    return replace(source, data=_with(source.data, location, fields), lines=lines)


def _with(data: Any, location: Location, part: Any) -> Any:
    """Return the data with another part at a location."""
    if not location:
        return part
    return {**data, location[0]: _with(data[location[0]], location[1:], part)}


def _move(lines: dict[Location, int], old: Location, new: Location) -> None:
    for location in [location for location in lines if location[: len(old)] == old]:
        lines[(*new, *location[len(old) :])] = lines.pop(location)


def _prompt(source: Source, definition: Definition) -> Path:
    path = source.path
    folders = list(dict.fromkeys((project_folder(path) / "prompts", path.parent / "prompts")))
    if (prompt := find_prompt(definition.name, folders)) is None:
        hint = f"Write `instructions:` here, or the file {folders[0] / definition.name}.md."
        raise source.error("the worker has no instructions", hint=hint)
    return prompt
