"""Workflows as data: the workflow with its agents and paths, and the placeholders in its texts.

A placeholder is `${{ name }}` (the output of a setup step), `${{ params.x }}`, `${{ env.X }}` or `${{ workflow.tag }}`.
`$${{` is the escape. A command receives values only as environment variables, never as shell text.
Does not read files (`loader.py`) and does not compute the values of a start (`start.py`).

Invariant: the value of a placeholder does not put a secret into a text for a model. `refuse_secrets` raises Refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from guildhall.core.config import resolve_script_path
from guildhall.core.errors import InvalidFile, NotFound, Refused
from guildhall.core.ids import digest
from guildhall.core.paths import project_root
from guildhall.core.redaction import MIN_GUESSED_CHARS, looks_secret
from guildhall.core.text import did_you_mean
from guildhall.room.model import Piece, Said
from guildhall.runs.assembly.callees import declared_capabilities

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.model import Worker
    from guildhall.workflow.definition import Definition, Wakeup


Kind = Literal["output", "env", "params", "workflow"]
OF_WORKFLOW = ("name", "tag")

_OPENING = re.compile(r"\$?\$\{\{")
_INSIDE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)(?:\.([A-Za-z_][A-Za-z0-9_-]*))?\s*")
_LONGEST = 200
_VARIABLE = "GUILD_"


@dataclass(frozen=True)
class Reference:
    """What a placeholder names: the output of a setup step, or something with a dot."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "output" else f"{self.kind}.{self.name}"

    @property
    def variable(self) -> str:
        """The variable that holds its value in a command."""
        return self.name if self.kind == "env" else _VARIABLE + str(self).replace(".", "_").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Values:
    """What placeholders stand for."""

    workflow: str
    tag: str
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])

    def of(self, reference: Reference) -> str:
        if reference.kind == "workflow":
            return self.workflow if reference.name == "name" else self.tag
        values = {"output": self.outputs, "env": self.env, "params": self.params}[reference.kind]
        if reference.name not in values:
            what = "is not set" if reference.kind == "env" else "has no value"
            raise InvalidFile(f"${{{{ {reference} }}}}: {reference.name} {what}", hint=_unset(reference))
        return values[reference.name]


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a text may name."""

    outputs: tuple[str, ...] = ()  # of the steps before it
    later: tuple[str, ...] = ()  # of steps whose output is not there yet
    params: Collection[str] = ()
    env: Collection[str] = ()

    def check(self, text: str) -> None:
        """Raises InvalidFile for the first placeholder that stands for nothing."""
        for reference in references(text):
            known = {"output": self.outputs, "env": self.env, "params": self.params, "workflow": OF_WORKFLOW}
            if reference.name not in known[reference.kind]:
                raise self._unknown(reference)

    def _unknown(self, reference: Reference) -> InvalidFile:
        said, name = f"${{{{ {reference} }}}}", reference.name
        if reference.kind == "env":
            hint = f"Name it in this file: `env: [{name}]`. Your settings must allow it too."
            return InvalidFile(f"{said}: the variable {name} is not among those of `env:`", hint=hint)
        if reference.kind == "params":
            message = f"{said}: there is no param {name!r}"
            return InvalidFile(message, hint=did_you_mean(name, self.params) or "Name it under `params:`.")
        if name in self.later:
            return InvalidFile(f"{said}: the output of that setup step is not known here yet")
        heads = {"workflow": OF_WORKFLOW, "params": self.params, "env": self.env}
        known = [*self.outputs, *(f"{head}.{one}" for head, names in heads.items() for one in names)]
        hint = did_you_mean(str(reference), known)
        return InvalidFile(f"{said}: there is nothing of this name", hint=hint)


def references(text: str) -> tuple[Reference, ...]:
    """What the placeholders of a text name, each once."""
    return tuple(dict.fromkeys(part for part in _parts(text) if isinstance(part, Reference)))


def fill(text: str, values: Values) -> Said:
    """The text with its placeholders filled in."""
    pieces = (
        Piece(values.of(part), quoted=True) if isinstance(part, Reference) else Piece(part) for part in _parts(text)
    )
    return Said(tuple(piece for piece in pieces if piece.text))


def unfilled(text: str) -> Said:
    """The text before its placeholders have values: whatever they will stand for is a quotation."""
    return Said(tuple(Piece(str(part), quoted=isinstance(part, Reference)) for part in _parts(text)))


def filled(text: str, values: Values) -> str:
    """The same as one text, for where nobody looks for mentions."""
    return fill(text, values).text


def command(text: str) -> str:
    """A command in which each placeholder has become the variable that will hold its value."""
    return "".join(f"${{{part.variable}}}" if isinstance(part, Reference) else part for part in _parts(text))


def refuse_secrets(text: str, values: Values) -> None:
    """Raises Refused where a text that a model reads would have a secret in it."""
    secrets = [value for name, value in values.env.items() if looks_secret(name, value)]
    for reference in references(text):
        said, how = f"${{{{ {reference} }}}}", "Models and records must not see it."
        if reference.kind == "env" and looks_secret(reference.name, values.env.get(reference.name, "")):
            hint = f"{how} Use it in a command of `setup:` as ${reference.name}, and keep only what comes out."
            raise Refused(f"{said}: the variable {reference.name} looks like a secret", hint=hint)
        value = _known(values, reference)
        if looks_secret("", value) or any(one in value for one in secrets if len(one) >= MIN_GUESSED_CHARS):
            raise Refused(f"{said}: there is something that looks like a secret in it", hint=f"{how} Leave it out.")


def _known(values: Values, reference: Reference) -> str:
    try:
        return values.of(reference)
    except InvalidFile:  # not yet
        return ""


def _unset(reference: Reference) -> str | None:
    if reference.kind == "env":
        return f"Set {reference.name}, and allow it: `env: [{reference.name}]` in config.yaml of your home."
    return f"Give one: --param {reference.name}=VALUE." if reference.kind == "params" else None


def _parts(text: str) -> Iterator[str | Reference]:
    """The text, cut at its placeholders. One pass."""
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        yield text[at : opening.start()]
        if opening[0].startswith("$$"):
            yield opening[0][1:]
            at = opening.end()
            continue
        end = text.find("}}", opening.end(), opening.end() + _LONGEST)
        inside = _INSIDE.fullmatch(text, opening.end(), end) if end >= 0 else None
        if inside is None:
            shown = text[opening.start() : opening.start() + 40].partition("\n")[0]
            raise InvalidFile(
                f"{shown!r} is not a placeholder",
                hint="Write ${{ name }}, ${{ params.x }}, ${{ env.X }}, ${{ workflow.tag }}; for the text itself $${{.",
            )
        yield _reference(inside[1], inside[2])
        at = end + 2
    yield text[at:]


def _reference(head: str, name: str | None) -> Reference:
    if name is None:
        return Reference("output", head)
    if head in ("env", "params", "workflow"):
        return Reference(head, name)
    hint = did_you_mean(head, ("env", "params", "workflow"))
    raise InvalidFile(f"${{{{ {head}.{name} }}}}: there is nothing of this name", hint=hint)


ROOMS = ".workflow"  # beside the workflow file: what people see of its rooms
DOCUMENTS = "documents"
_BESIDE = ("-wal", "-shm", ".lock")  # what SQLite and the hall have beside a database
SHOWN = ("channel.md", "_state")  # what `provider: file` writes there


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A seat, and the worker that takes it. Its prompt is not filled in yet."""

    name: str
    ordinal: int  # in the order of the file
    worker: Worker  # under the agent's name
    prompt: str  # with placeholders: all instructions of an agent of the file's own, or what a worker's get added
    inline: bool  # the file defines it; else it is a worker with a file of its own
    wakeup: Wakeup | None = None
    wakeup_prompt: str | None = None  # with placeholders
    place: Path | None = None  # where it works from; None: where its workflow does


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A workflow file, with all that it names."""

    definition: Definition
    path: Path  # absolute
    text: str  # the file's
    agents: tuple[Agent, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def folder(self) -> Path:
        """Where its relative paths start and its commands run."""
        return self.path.parent

    @property
    def place(self) -> str:
        return str(self.path)

    @cached_property
    def digest(self) -> str:
        return digest(self.text.encode())

    @property
    def budget(self) -> float | None:
        """Dollars that the file sets for the team; None: it sets none."""
        return None if self.definition.budget is None or math.isinf(self.definition.budget) else self.definition.budget

    def agent(self, name: str) -> Agent:
        for agent in self.agents:
            if agent.name == name:
                return agent
        hint = did_you_mean(name, [agent.name for agent in self.agents])
        raise NotFound(f"the workflow {self.name} has no agent {name!r}", hint=hint)

    def frame(self, frame: Frame) -> Frame:
        """The frame in which its commands and agents work: in the folder of its file, wherever it was started from."""
        model = resolve_script_path(frame.model, frame.cwd) if frame.model else None
        return replace(frame, cwd=self.folder, root=project_root(self.folder), model=model)

    def seated(self, agent: Agent, values: Values) -> Worker:
        """The agent's worker as it runs in the room."""
        said = filled(agent.prompt, values)
        if not agent.inline:
            own = agent.worker.instructions
            said = f"{own.rstrip()}\n\n{said}" if said else own
        return replace(agent.worker, instructions=said, workflow_paths=self.keeps(values))

    def keeps(self, values: Values) -> tuple[Path, ...]:
        """What it has on disk, which agents change through the room or not at all."""
        room, database = self.room_folder(values), self.database(values)
        beside = [database.with_name(database.name + ending) for ending in ("", *_BESIDE)] if database else []
        return (self.path, self.folder / ROOMS, *(room / name for name in (DOCUMENTS, *SHOWN)), *beside)

    def around(self, agent: Agent) -> frozenset[str]:
        """What the others at the table can do to the world: what one of them has read, another can be told."""
        if not self.definition.context.enabled:
            return frozenset()
        others = (declared_capabilities(one.worker) for one in self.agents if one.name != agent.name)
        return frozenset[str]().union(*others)

    def room_folder(self, values: Values) -> Path:
        """Where people see its room: documents, and with `provider: file` the channel."""
        config = self.definition.context.config
        named = config.dir or config.bind
        if named is None:
            return self.folder / ROOMS / values.workflow / values.tag
        return self.folder / filled(named, values)

    def documents(self, values: Values) -> Path | None:
        """The folder of its documents; None: they are in the database, or it has none."""
        return self.room_folder(values) / DOCUMENTS if self.definition.context.stores_files else None

    def database(self, values: Values) -> Path | None:
        """The database that its state is in, where it is one of its own."""
        db = self.definition.context.config.db
        return self.folder / filled(db, values) if db is not None else None
