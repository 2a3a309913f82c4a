"""Worker creation: drafts and saves workers for a worker (`worker_create`) or the library (`Worker.create`).

The file is a draft below `workers/generated/`. Does not write the starter file of `guild worker new`:
`workers.lifecycle` does.

Invariant: permissions come only from `worker_creation:` in the user's settings, and never exceed the permissions of the
creating worker. A created worker has no network and no toolboxes, and cannot call or create workers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from guildhall.core import yaml
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.config import WorkerCreation
from guildhall.core.errors import Conflict, InvalidFile, Refused, ToolUnavailable, UsageError
from guildhall.core.ids import digest, is_name
from guildhall.core.yaml_writer import dump
from guildhall.sandbox.view import Folder
from guildhall.tools.executor import BUILT_IN
from guildhall.workers.code_trust import check_output_schema
from guildhall.workers.definition import Definition, Line
from guildhall.workers.loader import WORKER_SUFFIXES, read_definition
from guildhall.workers.model import GENERATED, WORKERS, Worker, rule_names
from guildhall.workers.registry import normalize_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guildhall.core.request_frame import Frame

SCHEMAS = "schemas"
_MAX_INSTRUCTION_CHARS = 100_000
_NOT_INHERITED = frozenset({"worker.call", "worker.create", "worker_call", "worker_create", "net"})
_LOCAL_MODELS = ("script:", "replay:")  # models that read files or journals of this machine


class Spec(BaseModel):
    """A request for a new worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: StrictStr
    instructions: Annotated[StrictStr, Field(min_length=1, max_length=_MAX_INSTRUCTION_CHARS)]
    description: Annotated[StrictStr, Field(max_length=1000)] | None = None
    model: Line | None = None
    output_schema: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A worker that is not saved yet, with the texts of its files and the rights that it does not get."""

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
        """Write the files, the worker file last. Raise Conflict instead of overwriting a file."""
        if self.schema is not None:
            _write_new(self.schema_path, self.schema)
        _write_new(self.path, self.text)


def parse_spec(data: Mapping[str, Any]) -> Spec:
    try:
        spec = yaml.validate(Spec, yaml.Source(Path(), "", dict(data), {}))
    except InvalidFile as error:
        raise UsageError(error.message, hint=error.hint) from None
    if not is_name(spec.name) or spec.name.lower().endswith(WORKER_SUFFIXES):
        raise UsageError(f"name: invalid worker name {spec.name!r}", hint="Use letters, digits, '_', '-' and '.'.")
    if not spec.instructions.strip() or "\0" in spec.instructions:
        raise UsageError("instructions: empty, or contains a NUL character")
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
    """Return the worker of a request, with the rights that it may have.

    `existing_names`: of all reachable workers, which a new worker must not shadow.
    """
    if frame.worktree is not None:
        hint = "Propose the worker in your result. The user can create it."
        raise Refused("cannot create a worker from a worktree: its file would be outside of the worktree", hint=hint)
    root = creator.project_root(frame) if creator else frame.root
    path = root / WORKERS / GENERATED / f"{spec.name}.yaml"
    schema_path = root / SCHEMAS / GENERATED / f"{spec.name}.json"
    rights, omitted = _rights(defaults or WorkerCreation(), creator, frame)
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
    text = f"# Written by {author}. A draft: read it, then `guild worker set {spec.name} active`.\n{dump(data)}"
    try:
        definition = read_definition(yaml.parse(path, text))
    except InvalidFile as error:
        raise UsageError(f"cannot create the worker: {error.message}", hint=error.hint) from None
    schema = None if spec.output_schema is None else check_output_schema(spec.output_schema, "output_schema")
    checksum = digest(text.encode())
    worker = Worker(definition=definition, instructions=spec.instructions, scope="project", digest=checksum, path=path)
    new = Draft(
        worker=worker,
        path=path,
        text=text,
        schema_path=schema_path,
        schema=None if schema is None else json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        omitted_rights=omitted,
    )
    if spec.name.casefold() in {name.casefold() for name in existing_names} and not new.is_saved():
        raise Conflict(f"name: the worker {spec.name!r} already exists", hint="Use another name.")
    return new


def _model(model: str, defaults: WorkerCreation | None, creator: Worker | None) -> str:
    """Return the model. Raise Refused for a local model that neither the settings nor the creator use."""
    allowed = {defaults.model if defaults else None, creator.definition.model if creator else None}
    if normalize_model(model).startswith(_LOCAL_MODELS) and model not in allowed:
        raise Refused(f"model: {model!r} is not a model of a provider", hint="Use `provider:model`, or omit it.")
    return model


def _rights(defaults: WorkerCreation, creator: Worker | None, frame: Frame) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the rights of the settings that the creator has too, and descriptions of the other rights."""
    omitted: list[str] = []
    tools: list[str] = []
    for name in defaults.tools:
        if "net" in BUILT_IN.get(name, frozenset()):
            omitted.append(f"tools: {name} uses the network")
        elif creator is not None and name not in creator.definition.tools:
            omitted.append(f"tools: {creator.name} does not have {name}")
        else:
            tools.append(name)
    sandboxes: dict[str, Any] = {}
    for name, fields in defaults.sandboxes.items():
        if (narrowed := _narrow_sandbox(name, fields, creator, frame)) is None:
            omitted.append(f"sandboxes.{name}: {creator.name if creator else 'the creator'} does not have this right")
        else:
            sandboxes[name] = narrowed
    rules = _rules(defaults, creator)
    rights: dict[str, Any] = {"tools": tools, "sandboxes": sandboxes, "tool_rules": rules}
    if creator is not None:
        rights["limits"] = creator.definition.limits.model_dump(mode="json", exclude_defaults=True)
        if not creator.definition.base:
            rights["base"] = False
    return {name: value for name, value in rights.items() if value not in ({}, [])}, tuple(omitted)


def _rules(defaults: WorkerCreation, creator: Worker | None) -> dict[str, dict[str, Any]]:
    """Return the rules of the settings and the creator. If both have a rule, combine the stricter fields."""
    own = creator.definition.tool_rules if creator else {}
    defined = _parse_settings({"tool_rules": defaults.tool_rules}).tool_rules
    rules: dict[str, dict[str, Any]] = {}
    for name in sorted({*own, *defined} & (rule_names() - _NOT_INHERITED)):
        both = [source[name] for source in (own, defined) if name in source]
        strict: dict[str, Any] = {}
        if not all(rule.allowed for rule in both):
            strict["allowed"] = False
        if any(rule.approval_required for rule in both):
            strict["approval_required"] = True
        if times := [rule.timeout for rule in both if rule.timeout is not None]:
            strict["timeout"] = f"{min(times):g}s"
        if strict:
            rules[name] = strict
    return rules


def _narrow_sandbox(name: str, settings: Any, creator: Worker | None, frame: Frame) -> dict[str, Any] | None:
    """Return a sandbox of the settings, limited to the rights of the creator, or None if it has no right to it."""
    definition = _parse_settings({"sandboxes": {name: settings}})
    fields = definition.sandboxes[name].model_dump(mode="json", exclude_defaults=True)
    if creator is None:
        return fields
    try:
        (folder,) = replace(creator, definition=definition).sandbox_folders(frame)
    except ToolUnavailable:  # a read-only folder that does not exist
        return None
    protected = [path.resolve() for path in creator.protected_paths(frame)]
    readable = any("fs.read" in BUILT_IN[tool] for tool in creator.definition.tools)
    working_folder = (Folder(path=frame.project_folder.resolve()),) if readable else ()
    for own in (*creator.sandbox_folders(frame), *working_folder):
        if not folder.path.is_relative_to(own.path) or (folder.is_writable and not own.is_writable):
            continue
        if folder.is_writable and any(
            own.path in path.parents and folder.path.is_relative_to(path) for path in protected
        ):
            continue
        for limit in ("allowed_suffixes", "text_suffixes", "attachment_suffixes"):
            narrowed = _common_suffixes(getattr(folder, limit), getattr(own, limit))
            if narrowed is None:
                return None
            if narrowed:
                fields[limit] = list(narrowed)
        fields["max_bytes"] = min(folder.max_bytes, own.max_bytes)
        return fields
    return None


def _common_suffixes(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the suffixes that both allow, or None if they have none in common. An empty tuple allows all."""
    if not first or not second:
        return first or second
    return tuple(suffix for suffix in first if suffix in second) or None


def _parse_settings(fields: dict[str, Any]) -> Definition:
    """Return a definition with these fields of `worker_creation`. Raise InvalidFile if they are not valid."""
    try:
        return yaml.validate(Definition, yaml.Source(Path(), "", {"name": "new", "instructions": "-", **fields}, {}))
    except InvalidFile as error:
        hint = error.hint or "Correct config.yaml in your home."
        raise InvalidFile(f"worker_creation.{error.message}", hint=hint) from None


def _write_new(path: Path, text: str) -> None:
    """Write a new file. Raise Conflict if it exists with another text, and Refused if a folder is a link."""
    for folder in (path.parent.parent, path.parent):
        if folder.is_symlink():
            raise Refused("cannot write a new worker through a symbolic link", where=str(folder))
    if os.path.lexists(path):
        if not path.is_symlink() and path.read_bytes() == text.encode():
            return
        raise Conflict("the file already exists", where=str(path), hint="Use another name.")
    replace_user_file(path, text)
