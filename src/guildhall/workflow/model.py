"""Types of a workflow file: the workflow with its agents and paths, and the placeholders in its texts.

A placeholder is `${{ name }}` (the output of a setup step), `${{ params.x }}`, `${{ env.X }}` or `${{ workflow.tag }}`.
`$${{` is the escape. A command receives values only as environment variables, never as shell text.
Does not read files (`loader.py`) or compute the values of a start (`start_values.py`).

Invariant: a text for a model contains no secret from a placeholder. `check_secrets` raises Refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from guildhall.core.config import resolve_script_path
from guildhall.core.errors import InvalidFile, NotFound, Refused
from guildhall.core.ids import digest
from guildhall.core.paths import project_root
from guildhall.core.redaction import MIN_GUESSED_CHARS, looks_secret
from guildhall.core.text import did_you_mean
from guildhall.room.model import MessageText, TextPart
from guildhall.runs.assembly.callees import declared_capabilities

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Definition, Wakeup

Kind = Literal["output", "env", "params", "source", "workflow"]
WORKFLOW_FIELDS = ("name", "tag")
SOURCE_FIELDS = ("dir",)

_FIXED_NAMES = {"workflow": WORKFLOW_FIELDS, "source": SOURCE_FIELDS}
_OPENING = re.compile(r"\$?\$\{\{")
_INSIDE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)(?:\.([A-Za-z_][A-Za-z0-9_-]*))?\s*")
_MAX_PLACEHOLDER_CHARS = 200
_VARIABLE_PREFIX = "GUILD_"


@dataclass(frozen=True)
class Reference:
    """The name in a placeholder: the output of a setup step, or a name with a prefix such as `params.`."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "output" else f"{self.kind}.{self.name}"

    @property
    def variable(self) -> str:
        """Return the name of the environment variable for the value in a command."""
        return self.name if self.kind == "env" else _VARIABLE_PREFIX + str(self).replace(".", "_").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of placeholders."""

    workflow: str
    tag: str
    folder: str = ""  # folder of the workflow file
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])

    def find(self, reference: Reference) -> str | None:
        if reference.kind == "workflow":
            return self.workflow if reference.name == "name" else self.tag
        if reference.kind == "source":
            return self.folder
        return {"output": self.outputs, "env": self.env, "params": self.params}[reference.kind].get(reference.name)

    def get(self, reference: Reference) -> str:
        """Return the value of a placeholder. Raise InvalidFile if it has none."""
        if (value := self.find(reference)) is None:
            what = "is not set" if reference.kind == "env" else "has no value"
            raise InvalidFile(f"${{{{ {reference} }}}}: {reference.name} {what}", hint=_unset_hint(reference))
        return value


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names that the placeholders of a text may use."""

    outputs: tuple[str, ...] = ()  # outputs of earlier setup steps
    later_outputs: tuple[str, ...] = ()
    params: Collection[str] = ()
    env: Collection[str] = ()

    def check(self, text: str) -> None:
        """Raise InvalidFile for the first placeholder with an unknown name."""
        for reference in references(text):
            known = {"output": self.outputs, "env": self.env, "params": self.params, **_FIXED_NAMES}
            if reference.name not in known[reference.kind]:
                raise self._unknown_name(reference)

    def _unknown_name(self, reference: Reference) -> InvalidFile:
        placeholder, name = f"${{{{ {reference} }}}}", reference.name
        if reference.kind == "env":
            hint = f"Add `env: [{name}]` to this file. Your settings must allow the variable, too."
            return InvalidFile(f"{placeholder}: the variable {name} is not listed in `env:`", hint=hint)
        if reference.kind == "params":
            message = f"{placeholder}: unknown param {name!r}"
            return InvalidFile(message, hint=did_you_mean(name, self.params) or "Add it to `params:`.")
        if name in self.later_outputs:
            return InvalidFile(f"{placeholder}: the setup step runs later, so its output is not available here")
        heads = {**_FIXED_NAMES, "params": self.params, "env": self.env}
        known = [*self.outputs, *(f"{head}.{one}" for head, names in heads.items() for one in names)]
        hint = did_you_mean(str(reference), known)
        return InvalidFile(f"{placeholder}: unknown name", hint=hint)


def references(text: str) -> tuple[Reference, ...]:
    """Return the names in the placeholders of a text, without duplicates."""
    return tuple(dict.fromkeys(part for part in _parts(text) if isinstance(part, Reference)))


def fill(text: str, values: Values) -> MessageText:
    """Return the text with the values of its placeholders, as quoted parts."""
    pieces = (
        TextPart(values.get(part), is_quoted=True) if isinstance(part, Reference) else TextPart(part)
        for part in _parts(text)
    )
    return MessageText(tuple(piece for piece in pieces if piece.text))


def quote_placeholders(text: str) -> MessageText:
    """Return the text with its placeholders as quoted parts, before they have values."""
    return MessageText(tuple(TextPart(str(part), is_quoted=isinstance(part, Reference)) for part in _parts(text)))


def shell_command(text: str) -> str:
    """Return a command with a reference to an environment variable in place of each placeholder."""
    return "".join(f"${{{part.variable}}}" if isinstance(part, Reference) else part for part in _parts(text))


def check_secrets(text: str, values: Values) -> None:
    """Raise Refused if a text for a model would contain a secret."""
    secrets = [value for name, value in values.env.items() if looks_secret(name, value)]
    for reference in references(text):
        placeholder, rule = f"${{{{ {reference} }}}}", "Models and journals must not contain secrets."
        if reference.kind == "env" and looks_secret(reference.name, values.env.get(reference.name, "")):
            hint = f"{rule} Use ${reference.name} in a command of `setup:`, and use only the output of the command."
            raise Refused(f"{placeholder}: the variable {reference.name} looks like a secret", hint=hint)
        value = values.find(reference) or ""  # a setup step has no output yet
        if looks_secret("", value) or any(one in value for one in secrets if len(one) >= MIN_GUESSED_CHARS):
            raise Refused(f"{placeholder}: the value seems to contain a secret", hint=f"{rule} Remove the placeholder.")


def _unset_hint(reference: Reference) -> str | None:
    if reference.kind == "env":
        return f"Set {reference.name}, and allow it: `env: [{reference.name}]` in config.yaml of your home."
    return f"Add --param {reference.name}=VALUE." if reference.kind == "params" else None


def _parts(text: str) -> Iterator[str | Reference]:
    """Yield the literal texts and the placeholders in their order."""
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        yield text[at : opening.start()]
        if opening[0].startswith("$$"):
            yield opening[0][1:]
            at = opening.end()
            continue
        end = text.find("}}", opening.end(), opening.end() + _MAX_PLACEHOLDER_CHARS)
        inside = _INSIDE.fullmatch(text, opening.end(), end) if end >= 0 else None
        if inside is None:
            shown = text[opening.start() : opening.start() + 40].partition("\n")[0]
            raise InvalidFile(
                f"invalid placeholder {shown!r}",
                hint="Write ${{ name }}, ${{ params.x }}, ${{ env.X }}, ${{ workflow.tag }}; $${{ for a literal ${{.",
            )
        yield _make_reference(inside[1], inside[2])
        at = end + 2
    yield text[at:]


def _make_reference(head: str, name: str | None) -> Reference:
    if name is None:
        return Reference("output", head)
    if head in ("env", "params", "source", "workflow"):
        return Reference(head, name)
    hint = did_you_mean(head, ("env", "params", "source", "workflow"))
    raise InvalidFile(f"${{{{ {head}.{name} }}}}: unknown name", hint=hint)


ROOMS_FOLDER = ".workflow"  # beside the workflow file
DOCUMENTS_FOLDER = "documents"
_DATABASE_SUFFIXES = ("-wal", "-shm", ".lock")
EXPORTED_FILES = ("channel.md", "_state")  # written by `provider: file`


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent of the team and its worker. Placeholders in its prompts are not filled in."""

    name: str
    worker: Worker  # has the name of the agent
    prompt: str  # all instructions of an inline agent, else text to append; with placeholders
    is_inline: bool  # True if the agent is defined in the workflow file, not in a worker file
    wakeup: Wakeup | None = None
    wakeup_prompt: str | None = None  # with placeholders
    cwd: Path | None = None  # None for the folder of the workflow


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A workflow file with its agents."""

    definition: Definition
    path: Path  # absolute
    text: str  # content of the file
    agents: tuple[Agent, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> Path:
        """Return the folder of the file. Relative paths and commands start there."""
        return self.path.parent

    @property
    def place(self) -> str:
        return str(self.path)

    @cached_property
    def digest(self) -> str:
        return digest(self.text.encode())

    @property
    def budget(self) -> float | None:
        """Return the budget of the file in dollars, or None if it sets no limit."""
        return None if self.definition.budget is None or math.isinf(self.definition.budget) else self.definition.budget

    def agent(self, name: str) -> Agent:
        for agent in self.agents:
            if agent.name == name:
                return agent
        hint = did_you_mean(name, [agent.name for agent in self.agents])
        raise NotFound(f"unknown agent {name!r} of the workflow {self.name}", hint=hint)

    def frame(self, frame: Frame) -> Frame:
        """Return the frame of its commands and agents, whose folder is the folder of the file."""
        model = resolve_script_path(frame.model, frame.cwd) if frame.model else None
        return replace(frame, cwd=self.folder, root=project_root(self.folder), model=model)

    def worker_of(self, agent: Agent, values: Values) -> Worker:
        """Return the worker of an agent with its filled instructions."""
        instructions = fill(agent.prompt, values).text
        if not agent.is_inline:
            own = agent.worker.instructions
            instructions = f"{own.rstrip()}\n\n{instructions}" if instructions else own
        return replace(agent.worker, instructions=instructions, workflow_paths=self.protected_paths(values))

    def protected_paths(self, values: Values) -> tuple[Path, ...]:
        """Return the paths that agents must not write: the file, the room's data and the database."""
        room, database = self.room_folder(values), self.database_path(values)
        paths = [self.path, self.folder / ROOMS_FOLDER, *(room / name for name in (DOCUMENTS_FOLDER, *EXPORTED_FILES))]
        if database is not None:
            paths += [database.with_name(database.name + suffix) for suffix in ("", *_DATABASE_SUFFIXES)]
        return tuple(paths)

    def other_capabilities(self, agent: Agent) -> frozenset[str]:
        """Return the capabilities of the other agents. Data that an agent reads can reach them through the room."""
        if not self.definition.context.enabled:
            return frozenset()
        others = (declared_capabilities(one.worker) for one in self.agents if one.name != agent.name)
        return frozenset[str]().union(*others)

    def room_folder(self, values: Values) -> Path:
        """Return the folder of the documents and, with `provider: file`, of the exported channel."""
        config = self.definition.context.config
        named = config.dir or config.bind
        if named is None:
            return self.folder / ROOMS_FOLDER / values.workflow / values.tag
        return self.folder / fill(named, values).text

    def documents_folder(self, values: Values) -> Path | None:
        """Return the folder of the documents, or None if they are in the database or the workflow has no room."""
        return self.room_folder(values) / DOCUMENTS_FOLDER if self.definition.context.stores_files else None

    def database_path(self, values: Values) -> Path | None:
        """Return the path of the workflow's own database, or None."""
        db = self.definition.context.config.db
        return self.folder / fill(db, values).text if db is not None else None
