"""Worker creation: drafts and saves workers for a worker (`worker_create`) or the library (`Worker.create`).

The file is a draft below `workers/generated/`. The starter file of `guild worker new` is written by
`workers.lifecycle`.

Invariant: permissions come only from `worker_creation:` in the user's settings, and never exceed the permissions of the
creating worker. A created worker has no network and no toolboxes, and cannot create workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from guildhall.core import yaml
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.config import WorkerCreation
from guildhall.core.errors import Conflict, InvalidFile, Refused, ToolUnavailable, UsageError
from guildhall.core.ids import NAME_RULE, digest, is_name
from guildhall.core.text_checks import check_text
from guildhall.core.yaml_writer import dump
from guildhall.sandbox.view import Folder
from guildhall.tools.call_router import BUILT_IN
from guildhall.workers.code_trust import check_output_schema
from guildhall.workers.definition import EVERY_WORKER, Definition, Line
from guildhall.workers.loader import WORKER_SUFFIXES, read_definition
from guildhall.workers.model import GENERATED, WORKERS, Worker, WorkerListing, rule_names
from guildhall.workers.registry import normalize_model

if TYPE_CHECKING:
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
    output_schema_ref: Line | None = None
    force: StrictBool = False


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A worker that is not saved, with the texts of its files and the omitted rights."""

    worker: Worker
    path: Path
    text: str
    schema_path: Path
    schema: str | None
    omitted_rights: tuple[str, ...]
    replaces: bool = False  # True if `save` may overwrite an earlier draft

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.schema is None else (self.path, self.schema_path)

    def is_saved(self) -> bool:
        """Return True if the worker file exists with this text."""
        try:
            return self.path.read_text() == self.text
        except (OSError, UnicodeDecodeError):
            return False

    def save(self) -> None:
        """Write the files, the worker file last. Raise Conflict for an existing file unless `replaces`."""
        if self.schema is not None:
            _write(self.schema_path, self.schema, replaces=self.replaces)
        _write(self.path, self.text, replaces=self.replaces)


def parse_spec(data: Mapping[str, Any]) -> Spec:
    try:
        spec = yaml.validate(Spec, yaml.Source(Path(), "", dict(data), {}))
    except InvalidFile as error:
        raise UsageError(error.message, hint=error.hint) from None
    if not is_name(spec.name) or spec.name.lower().endswith(WORKER_SUFFIXES):
        raise UsageError(f"name: invalid worker name {spec.name!r}: {NAME_RULE}")
    check_text("instructions", spec.instructions)
    if spec.output_schema is not None and spec.output_schema_ref is not None:
        raise UsageError("output_schema_ref: cannot be used together with output_schema", hint="Omit one of them.")
    return spec


def draft(
    spec: Spec,
    defaults: WorkerCreation | None,
    frame: Frame,
    *,
    existing: Iterable[WorkerListing],
    creator: Worker | None = None,
    author: str,
) -> Draft:
    """Return the draft of a worker.

    `existing`: all reachable workers, which the new worker must not shadow. With `force` in the spec, it may replace an
    unlocked draft in the same file.
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
    reference = spec.output_schema_ref if spec.output_schema is None else str(schema_path.relative_to(root))
    if reference is not None:
        data["output_schema_ref"] = reference
    data |= rights
    text = f"# Written by {author}. A draft: read it, then `guild worker set {spec.name} active`.\n{dump(data)}"
    try:
        definition = read_definition(yaml.parse(path, text))
    except InvalidFile as error:
        raise UsageError(f"cannot create the worker: {error.message}", hint=error.hint) from None
    schema = None if spec.output_schema is None else check_output_schema(spec.output_schema, "output_schema")
    checksum = digest(text.encode())
    worker = Worker(definition=definition, instructions=spec.instructions, scope="project", digest=checksum, path=path)
    same_name = [listed for listed in existing if listed.name.casefold() == spec.name.casefold()]
    drafts = [listed for listed in same_name if listed.status == "draft" and not listed.locked]
    replaceable = [listed for listed in drafts if listed.path == path.resolve()]
    new = Draft(
        worker=worker,
        path=path,
        text=text,
        schema_path=schema_path,
        schema=None if schema is None else json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        omitted_rights=omitted,
        replaces=spec.force and bool(replaceable),
    )
    if len(same_name) > (len(replaceable) if spec.force else 0) and not new.is_saved():
        raise Conflict(f"name: the worker {spec.name!r} already exists", hint="Use another name.")
    return new


def _model(model: str, defaults: WorkerCreation | None, creator: Worker | None) -> str:
    """Return the model. Raise Refused for a local model that neither the settings nor the creator use."""
    allowed = {defaults.model if defaults else None, creator.definition.model if creator else None}
    if normalize_model(model).startswith(_LOCAL_MODELS) and model not in allowed:
        raise Refused(f"model: {model!r} is not a model of a provider", hint="Use `provider:model`, or omit it.")
    return model


def _rights(defaults: WorkerCreation, creator: Worker | None, frame: Frame) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the rights in the settings that the creator has too, and descriptions of the omitted rights."""
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
    callees = [name for name in defaults.allow_workers if creator is None or _may_call(creator, name)]
    omitted += [
        f"allow_workers: {creator.name} may not call {name}"
        for name in defaults.allow_workers
        if creator is not None and name not in callees
    ]
    rules = _rules(defaults, creator)
    rights: dict[str, Any] = {"tools": tools, "sandboxes": sandboxes, "tool_rules": rules, "allow_workers": callees}
    rights["attachment_policy"] = defaults.attachment_policy
    if creator is not None:
        rights["limits"] = creator.definition.limits.model_dump(mode="json", exclude_defaults=True)
        if not creator.definition.base:
            rights["base"] = False
    return {name: value for name, value in rights.items() if value not in ({}, [])}, tuple(omitted)


def _may_call(creator: Worker, name: str) -> bool:
    return name in creator.definition.allow_workers or EVERY_WORKER in creator.definition.allow_workers


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
    """Return a sandbox of the settings limited to the rights of the creator, or None if the creator has no access."""
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
    """Return the suffixes that both tuples allow, or None if they allow no common suffix. An empty tuple allows all."""
    if not first or not second:
        return first or second
    return tuple(suffix for suffix in first if suffix in second) or None


def _parse_settings(fields: dict[str, Any]) -> Definition:
    """Return a definition with these fields of `worker_creation`. Raise InvalidFile if they are invalid."""
    try:
        return yaml.validate(Definition, yaml.Source(Path(), "", {"name": "new", "instructions": "-", **fields}, {}))
    except InvalidFile as error:
        hint = error.hint or "The user must correct worker_creation: in config.yaml."
        raise InvalidFile(f"worker_creation.{error.message}", hint=hint) from None


def _write(path: Path, text: str, *, replaces: bool) -> None:
    """Write a file. Raise Refused if its folder is a link, and Conflict for an existing file unless `replaces`."""
    for folder in (path.parent.parent, path.parent):
        if folder.is_symlink():
            raise Refused("cannot write a new worker through a symbolic link", where=str(folder))
    if path.is_symlink() or (os.path.lexists(path) and not replaces):
        if not path.is_symlink() and path.read_bytes() == text.encode():
            return
        raise Conflict("the file already exists", where=str(path), hint="Use another name.")
    replace_user_file(path, text)
