"""Worker creation: drafts and saves workers for a worker (`worker_create`) or the library (`Worker.create`).

The request has a name, instructions, a description, a model and an output schema. The file is a draft below
`workers/generated/`. Does not write the starter file of `guild worker new` (see `workers.lifecycle`).

Invariant: permissions come only from `worker_creation:` in the user's settings, and never exceed the permissions of the
creating worker. A created worker has no network, no toolboxes, no other workers, and cannot create workers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr, ValidationError

from guildhall.core import yaml
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.config import WorkerCreation
from guildhall.core.errors import Conflict, InvalidFile, Refused, ToolUnavailable, UsageError
from guildhall.core.ids import digest, is_name
from guildhall.core.yaml_writer import dump
from guildhall.sandbox.view import Folder
from guildhall.tools.executor import BUILT_IN
from guildhall.workers.code import check_output_schema
from guildhall.workers.definition import Definition, Line
from guildhall.workers.loader import WORKER_SUFFIXES, read_definition
from guildhall.workers.model import GENERATED, WORKERS, Worker, rule_names
from guildhall.workers.registry import normalize_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame

SCHEMAS = "schemas"
_LONGEST = 100_000  # characters of instructions
_NOT_HANDED_ON = frozenset({"worker.call", "worker.create", "worker_call", "worker_create", "net"})
_FILES = ("script:", "replay:")  # models that are files or records of this machine


class Spec(BaseModel):
    """A request for a new worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: StrictStr
    instructions: Annotated[StrictStr, Field(min_length=1, max_length=_LONGEST)]
    description: Annotated[StrictStr, Field(max_length=1000)] | None = None
    model: Line | None = None
    output_schema: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A worker that is not saved yet: its file, its schema's file, and the rights that it does not get."""

    worker: Worker
    path: Path
    text: str
    schema_path: Path
    schema: str | None
    omitted_rights: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.schema is None else (self.path, self.schema_path)

    def is_saved(self) -> bool:
        """Return True if the file exists with exactly this text."""
        try:
            return self.path.read_text() == self.text
        except (OSError, UnicodeDecodeError):
            return False

    def save(self) -> None:
        """Write the files, the worker's last. An existing file is never overwritten."""
        if self.schema is not None:
            _write_new(self.schema_path, self.schema)
        _write_new(self.path, self.text)


def parse_spec(data: Mapping[str, Any]) -> Spec:
    """Return the request. Raise UsageError if it is not valid."""
    try:
        spec = Spec.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(_first_problem(error)) from None
    if not is_name(spec.name) or spec.name.lower().endswith(WORKER_SUFFIXES):
        raise UsageError(f"name: {spec.name!r} cannot name a worker", hint="Use letters, digits, '_', '-' and '.'.")
    if not spec.instructions.strip() or "\0" in spec.instructions:
        raise UsageError("instructions: say in text how the worker is to work")
    return spec


def draft(
    spec: Spec,
    defaults: WorkerCreation | None,
    frame: Frame,
    *,
    existing_names: Iterable[str],
    creator: Worker | None = None,
    author: str,
) -> Draft:
    """Return the worker of a request, with the rights that it may have. `by` names its author.

    `taken`: the names of all reachable workers, which a new worker must not shadow.
    """
    if frame.worktree is not None:
        hint = "Propose it in words, or as a file of the project; a person takes it over."
        raise Refused("in a worktree of a project no workers are made: they would lie in the user's folder", hint=hint)
    root = creator.project_root(frame) if creator else frame.root
    path = root / WORKERS / GENERATED / f"{spec.name}.yaml"
    schema_path = root / SCHEMAS / GENERATED / f"{spec.name}.json"
    rights, left_out = _rights(defaults or WorkerCreation(), creator, frame)
    data: dict[str, Any] = {"name": spec.name}
    if spec.description:
        data["description"] = " ".join(spec.description.split())
    data["status"] = "draft"
    if (model := spec.model or (defaults.model if defaults else None)) is not None:
        data["model"] = _model(model, defaults, creator)
    data["instructions"] = spec.instructions
    if spec.output_schema is not None:
        data["output_schema_ref"] = str(schema_path.relative_to(root))
    data |= rights
    text = f"# Written by {author}. A draft: read it, then `guild worker promote {spec.name}`.\n{dump(data)}"
    try:
        definition = read_definition(yaml.parse(path, text))
    except InvalidFile as error:
        raise UsageError(f"the worker cannot be made: {error.message}", hint=error.hint) from None
    schema = None if spec.output_schema is None else check_output_schema(spec.output_schema, "output_schema")
    made = Draft(
        worker=Worker(
            definition=definition,
            instructions=spec.instructions,
            scope="project",
            digest=digest(text.encode()),
            path=path,
        ),
        path=path,
        text=text,
        schema_path=schema_path,
        schema=None if schema is None else json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        omitted_rights=left_out,
    )
    if spec.name.casefold() in {name.casefold() for name in existing_names} and not made.is_saved():
        raise Conflict(f"name: there is already a worker {spec.name!r}", hint="Choose another name.")
    return made


def _model(model: str, defaults: WorkerCreation | None, creator: Worker | None) -> str:
    """Return the model. Raise Refused for a local file that neither the settings nor the creator use."""
    chosen = {defaults.model if defaults else None, creator.definition.model if creator else None}
    if normalize_model(model).startswith(_FILES) and model not in chosen:
        raise Refused(f"model: {model!r} is a file of this machine", hint="Name a provider's model, or none at all.")
    return model


def _rights(defaults: WorkerCreation, creator: Worker | None, frame: Frame) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the rights of the settings that the creator has too, and the rights that are left out."""
    left_out: list[str] = []
    tools: list[str] = []
    for name in defaults.tools:
        if "net" in BUILT_IN.get(name, frozenset()):
            left_out.append(f"tools: {name} reaches the network")
        elif creator is not None and name not in creator.definition.tools:
            left_out.append(f"tools: {creator.name} has no {name} itself")
        else:
            tools.append(name)
    sandboxes: dict[str, Any] = {}
    for name, wanted in defaults.sandboxes.items():
        if (narrowed := _narrowed(name, wanted, creator, frame)) is None:
            left_out.append(f"sandboxes.{name}: {creator.name if creator else 'it'} has no such right itself")
        else:
            sandboxes[name] = narrowed
    rules = _rules(defaults, creator)
    fields: dict[str, Any] = {"tools": tools, "sandboxes": sandboxes, "tool_rules": rules}
    if creator is not None:
        fields["limits"] = creator.definition.limits.model_dump(mode="json", exclude_defaults=True)
        if not creator.definition.base:
            fields["base"] = False
    return {name: value for name, value in fields.items() if value not in ({}, [])}, tuple(left_out)


def _rules(defaults: WorkerCreation, creator: Worker | None) -> dict[str, dict[str, Any]]:
    """Return the rules of settings and creator, the stricter of the two for each name."""
    handed_on = rule_names() - _NOT_HANDED_ON
    own = creator.definition.tool_rules if creator else {}
    asked = _parsed({"tool_rules": defaults.tool_rules}).tool_rules
    rules: dict[str, dict[str, Any]] = {}
    for name in sorted({*own, *asked} & handed_on):
        both = [rules_of[name] for rules_of in (own, asked) if name in rules_of]
        tighter: dict[str, Any] = {}
        if not all(rule.allowed for rule in both):
            tighter["allowed"] = False
        if any(rule.approval_required for rule in both):
            tighter["approval_required"] = True
        if times := [rule.timeout for rule in both if rule.timeout is not None]:
            tighter["timeout"] = f"{min(times):g}s"
        if tighter:
            rules[name] = tighter
    return rules


def _narrowed(name: str, wanted: Any, creator: Worker | None, frame: Frame) -> dict[str, Any] | None:
    """Return a sandbox of the settings, narrowed to the creator's, or None if the creator has no such right."""
    asked = _parsed({"sandboxes": {name: wanted}})
    fields = asked.sandboxes[name].model_dump(mode="json", exclude_defaults=True)
    if creator is None:
        return fields
    try:
        (folder,) = replace(creator, definition=asked).sandbox_folders(frame)
    except ToolUnavailable:  # it is to be read and is not there
        return None
    kept = [one.resolve() for one in creator.protected_paths(frame)]
    for own in (*creator.sandbox_folders(frame), *_looked_at(creator, frame)):
        if not folder.path.is_relative_to(own.path) or (folder.writable and not own.writable):
            continue
        if folder.writable and any(own.path in one.parents and folder.path.is_relative_to(one) for one in kept):
            continue  # it lies in what the creator's folder does not let it change
        for limit in ("allowed_suffixes", "text_suffixes", "attachment_suffixes"):
            narrowed = _common(getattr(folder, limit), getattr(own, limit))
            if narrowed is None:
                return None
            if narrowed:
                fields[limit] = list(narrowed)
        fields["max_bytes"] = min(folder.max_bytes, own.max_bytes)
        return fields
    return None


def _looked_at(creator: Worker, frame: Frame) -> tuple[Folder, ...]:
    """Return the working folder if the creator has tools that read files there."""
    looks = any("fs.read" in BUILT_IN[name] for name in creator.definition.tools)
    return (Folder(path=frame.sees.resolve()),) if looks else ()


def _common(wanted: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the suffixes that both allow, or None if there are none. An empty tuple allows all."""
    if not wanted or not own:
        return wanted or own
    return tuple(suffix for suffix in wanted if suffix in own) or None


def _parsed(fields: dict[str, Any]) -> Definition:
    """Return fields of the settings as those of a worker file."""
    try:
        return Definition.model_validate({"name": "new", "instructions": "-", **fields})
    except ValidationError as error:
        hint = "Correct it in config.yaml of your home."
        raise InvalidFile(f"worker_creation.{_first_problem(error)}", hint=hint) from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{yaml.field_name(first['loc'])}: {first['msg']}"


def _write_new(path: Path, text: str) -> None:
    """Write a new file. Raise Conflict if it exists with another text, and Refused if a link leads elsewhere."""
    for folder in (path.parent.parent, path.parent):
        if folder.is_symlink():
            raise Refused("a new worker is not written through a link", where=str(folder))
    if os.path.lexists(path):
        if not path.is_symlink() and path.read_bytes() == text.encode():
            return
        raise Conflict("there is already such a file", where=str(path), hint="Choose another name.")
    replace_user_file(path, text)
