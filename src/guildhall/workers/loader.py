"""Worker loader: reads and validates a worker file, and finds and renders its instructions.

Does not search for workers: `workers.registry` does. Does not render templates in this process: `workers.template` is
a separate program.

Invariant: errors name the file, the line, the field and the nearest valid name.
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
from guildhall.workers import template
from guildhall.workers.definition import Definition
from guildhall.workers.model import BUILT_IN_TOOLS, Lock, Scope, Worker, project_folder, rule_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.core.yaml import Location, Source

    Kind = TypeVar("Kind", bound=Definition)

WORKER_SUFFIXES = (".yaml", ".yml", ".json")
_PROMPT_SUFFIXES = (".md", ".txt", ".j2", ".jinja2")
_TEMPLATE_SUFFIXES = (".j2", ".jinja2")
_MAX_CPU_S = 2  # most of it to start Python
_TIMEOUT_S = 20.0


def find_prompt(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the prompt file of a worker in the first folder that has one. Raise InvalidFile if it has two."""
    for folder in folders:
        paths = [folder / f"{name}{suffix}" for suffix in _PROMPT_SUFFIXES]
        found = [path for path in paths if path.exists() or path.is_symlink()]
        if len(found) > 1:
            both = " and ".join(path.name for path in found)
            raise InvalidFile(f"several prompts for one worker: {both}", where=str(folder), hint="Delete all but one.")
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
    request = {**location, "values": dict(values), "seconds": max_cpu_s}
    too_long = InvalidFile("rendering the template takes too long", where=str(prompt), hint="Look for endless loops.")
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
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        raise InvalidFile("cannot render the template: the renderer crashed", where=str(prompt)) from None
    if "text" in answer:
        return answer["text"]
    place = f"{prompt.parent / answer['file']}:{answer['line']}" if answer.get("file") else str(prompt)
    raise InvalidFile(f"cannot render the template: {answer['error']}", where=place)


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
    """Return the definition in a file. Check that its prompt exists, but do not render it."""
    source = yaml.read(path)
    definition = read_definition(source)
    if definition.instructions is None:
        _prompt_path(source, definition)
    return definition


def worker_from_fields(fields: Mapping[str, Any]) -> Worker:
    """Return a worker that is built in Python from the fields of a worker file, with inline instructions."""
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
    """Return the definition in a source. The default name is that of the file."""
    stem = source.path.stem
    data = cast("object", source.data)
    if isinstance(data, dict) and cast("dict[str, Any]", data).get("name") is None:
        if not ids.is_name(stem):
            raise source.error(f"invalid worker name {stem!r}", hint="Rename the file: use letters, digits, _ and -.")
        source = replace(source, data={**cast("dict[str, Any]", data), "name": stem})
    definition = parse_definition(source, Definition)
    if definition.name != stem:
        hint = f"Rename the file to {definition.name}{source.path.suffix}, or the worker to {stem}."
        raise source.error(f"the worker name {definition.name!r} differs from the file name {stem!r}", ("name",), hint)
    return definition


def parse_definition(source: Source, kind: type[Kind], location: Location = ()) -> Kind:
    """Return the definition in a part of a source. Raise InvalidFile if it has unknown tools or rules."""
    source = normalize_fields(source, location)
    definition = yaml.validate(kind, source, location)
    for index, tool in enumerate(definition.tools):
        if tool not in BUILT_IN_TOOLS:
            hint = did_you_mean(tool, BUILT_IN_TOOLS)
            raise source.error(f"unknown built-in tool {tool!r}", (*location, "tools", index), hint)
    # The tools of toolboxes and servers are not known before a run is assembled: Worker.rules_for checks those rules.
    has_other_tools = definition.toolboxes or definition.mcp_servers or definition.members
    for rule in definition.tool_rules:
        if rule not in rule_names() and not has_other_tools:
            hint = did_you_mean(rule, rule_names())
            raise source.error("unknown capability or tool", (*location, "tool_rules", rule), hint)
    return definition


def normalize_fields(
    source: Source, location: Location = (), aliases: Mapping[str, str] = MappingProxyType({"backend": "runtime"})
) -> Source:
    """Return the source with the fields `aliases` renamed and a list of rules as a mapping. Line numbers are kept."""
    if not isinstance(cast("object", source.at(location)), dict):
        return source
    fields = dict(cast("dict[str, Any]", source.at(location)))
    lines = dict(source.lines)
    for alias, name in aliases.items():
        if alias in fields and name not in fields:
            fields[name] = fields.pop(alias)
            _move_lines(lines, (*location, alias), (*location, name))
    rules = cast("list[Any]", fields.get("tool_rules")) if isinstance(fields.get("tool_rules"), list) else []
    names = [cast("dict[str, Any]", rule).get("name") if isinstance(rule, dict) else None for rule in rules]
    if names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        fields["tool_rules"] = dict(zip(names, rules, strict=True))
        for index, name in enumerate(names):
            _move_lines(lines, (*location, "tool_rules", index), (*location, "tool_rules", str(name)))
    return replace(source, data=_replace_part(source.data, location, fields), lines=lines)


def _replace_part(data: Any, location: Location, part: Any) -> Any:
    if not location:
        return part
    return {**data, location[0]: _replace_part(data[location[0]], location[1:], part)}


def _move_lines(lines: dict[Location, int], old: Location, new: Location) -> None:
    for location in [location for location in lines if location[: len(old)] == old]:
        lines[(*new, *location[len(old) :])] = lines.pop(location)


def _prompt_path(source: Source, definition: Definition) -> Path:
    path = source.path
    folders = list(dict.fromkeys((project_folder(path) / "prompts", path.parent / "prompts")))
    if (prompt := find_prompt(definition.name, folders)) is None:
        hint = f"Add `instructions:`, or create {folders[0] / definition.name}.md."
        raise source.error("the worker has no instructions", hint=hint)
    return prompt
