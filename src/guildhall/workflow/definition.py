"""The schema of workflow files: pydantic models with every field, its default and its allowed values.

The JSON Schema of workflow files is generated from these models. Also parses wake-up times: an interval such as `5m`,
or a cron line with five fields.
Does not read files or resolve agents to workers (`loader.py`), and does not fill in placeholders (`model.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from guildhall.core.config import Dollars, Duration, VariableName, parse_duration
from guildhall.core.errors import UsageError
from guildhall.core.yaml import format_value
from guildhall.room.model import RESERVED as ROOM_WORDS
from guildhall.workers.definition import Line, Name, Part, RuntimeName, ToolRule, WorkerName, rules_by_name

SHORTEST = 1.0  # seconds
_HOW = 'Write 30s, 5m, 1h, or a cron line with five fields such as "0 9 * * 1-5".'
_FIELDS = re.compile(r"\S+(\s+\S+){4,5}")
_LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class Wakeup:
    """One of the two is set."""

    every: float | None = None  # seconds
    cron: str | None = None

    def after(self, moment: datetime) -> datetime:
        """The next time that it is due. Cron lines are read in the time zone of the moment."""
        if self.every is not None:
            return moment + timedelta(seconds=self.every)
        from cronsim import CronSim

        return next(CronSim(self.cron or "", moment))

    def __str__(self) -> str:
        return f"cron {self.cron}" if self.cron is not None else f"every {in_words(self.every or 0)}"


def wakeup_of(value: object) -> Wakeup:
    """A wake-up as people write it. ValueError: what is wrong, in a sentence."""
    if isinstance(value, Wakeup):
        return value
    if isinstance(value, str) and _FIELDS.fullmatch(value.strip()) and len(value) <= _LONGEST:
        return Wakeup(cron=_checked(value.strip()))
    try:
        seconds = parse_duration(value)
    except UsageError:
        raise ValueError(f"{format_value(value)} is no time to wake at. {_HOW}") from None
    if seconds < SHORTEST:
        raise ValueError(f"{format_value(value)} is too often: at most once in a second")
    return Wakeup(every=seconds)


def _checked(line: str) -> str:
    from datetime import UTC, datetime

    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(line, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"{format_value(line)} is not a cron line: {error}. {_HOW}") from None
    except StopIteration:
        raise ValueError(f"{format_value(line)} is a cron line that is never due") from None
    return line


def in_words(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


NOBODY = "none"  # as a document owner
GLOBAL = "global"  # the workflow of agents that stand alone
RESERVED = ROOM_WORDS | {NOBODY}  # no agent has one of these names
HEADS = ("env", "params", "workflow")  # what stands before the dot in a placeholder

_AGENT = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_LONGEST_TEXT = 200_000
_MOST_AGENTS = 100


def _agent_name(value: object) -> object:
    if isinstance(value, str) and not _AGENT.fullmatch(value):
        raise ValueError(
            f"{format_value(value)} cannot name an agent: a letter, then letters, digits, '_' or '-', up to 64"
        )
    if isinstance(value, str) and value.lower() in RESERVED:
        raise ValueError(f"{format_value(value)} cannot name an agent: the word has a meaning of its own in a room")
    return value


def _value_name(value: object) -> object:
    if isinstance(value, str) and not _VALUE.fullmatch(value):
        raise ValueError(f"{format_value(value)} cannot be a name here: a letter, then letters, digits, '_' and '-'")
    if isinstance(value, str) and value in HEADS:
        raise ValueError(f"{format_value(value)} cannot be a name here: ${{{{ {value}.x }}}} means something else")
    return value


def _workflow_name(value: object) -> object:
    if value == GLOBAL:
        raise ValueError(f"no file can be named {GLOBAL!r}: that is where agents without a workflow are")
    return value


def _text(value: object) -> object:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("there is a NUL character in the text")
    return value


def _wakeup(value: object) -> object:
    return value if value is None else wakeup_of(value)


AgentName = Annotated[StrictStr, BeforeValidator(_agent_name)]
ValueName = Annotated[StrictStr, BeforeValidator(_value_name)]
Text = Annotated[StrictStr, BeforeValidator(_text), Field(min_length=1, max_length=_LONGEST_TEXT)]


class Prompt(Part):
    """What an agent is told beyond the instructions of its worker."""

    append: Text = Field(description="Text, or the path of a file that ends in .md or .txt.")


class AgentDefinition(Part):
    """A seat in the room: defined here, or taken by a worker that has its own file."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    worker: WorkerName | None = Field(
        default=None, description="The worker that takes the seat; `ref` is another name."
    )
    prompt: Prompt | None = Field(default=None, description="With `worker`: what is added to its instructions.")
    description: Line | None = Field(default=None, description="What the agent is for, in a line.")
    system_prompt: Text | None = Field(
        default=None, description="Without `worker`: text, or the path of a file that ends in .md or .txt."
    )
    model: Line | None = Field(default=None, description="provider:model, script:FILE, replay:RUN; null: the caller's.")
    runtime: RuntimeName | None = Field(
        default=None, description="What executes it. `backend` is another name for this field."
    )
    tools: tuple[Name, ...] | None = Field(
        default=None, description="Built-in tools. With `worker`: only these of the tools that it has."
    )
    tool_rules: Annotated[dict[Line, ToolRule], BeforeValidator(rules_by_name)] = Field(
        default_factory=dict, description="Rules by capability or tool; those of a worker hold as well."
    )
    workdir: Line | None = Field(
        default=None,
        description="Where it works and may write. Not set: this file's folder, or as its worker says.",
    )
    max_turns: Annotated[StrictInt, Field(gt=0)] | None = Field(default=None, description="Model calls of one run.")
    max_budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Dollars of one run."
    )
    timeout: Duration | None = Field(default=None, description="Running time of one run, such as 30m.")
    wakeup: Annotated[Wakeup | None, BeforeValidator(_wakeup, json_schema_input_type=StrictStr | float | None)] = Field(
        default=None, description="Runs it without being mentioned: every 30s, 5m, 1h, or by a cron line."
    )
    wakeup_prompt: Text | None = Field(default=None, description="What it is told then.")

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        for other, name in OTHER_NAMES.items():
            if other in fields:
                if name in fields:
                    raise ValueError(f"`{name}` and `{other}` are the same field; keep one")
                fields[name] = fields.pop(other)
        return fields

    @model_validator(mode="after")
    def _one_kind(self) -> AgentDefinition:
        if self.worker is None and self.system_prompt is None:
            raise ValueError("the agent has neither a `system_prompt` nor a `worker`")
        if self.worker is not None and self.system_prompt is not None:
            raise ValueError("the worker has instructions of its own: add to them with `prompt: {append: ...}`")
        if self.worker is None and self.prompt is not None:
            raise ValueError(
                "`prompt` adds to the instructions of a `worker`; here, all of it stands in `system_prompt`"
            )
        if self.wakeup_prompt is not None and self.wakeup is None:
            raise ValueError("`wakeup_prompt` is told when `wakeup` is due, and there is no `wakeup`")
        return self


OTHER_NAMES = {"backend": "runtime", "ref": "worker"}


class ContextConfig(Part):
    """Where the room keeps its things. Relative paths start at the folder of this file."""

    db: Line | None = Field(default=None, description="A database of its own for all state of this workflow.")
    dir: Line | None = Field(default=None, description="The folder of documents and of the channel as a file.")
    bind: Line | None = Field(default=None, description="Another name for `dir`.")

    @model_validator(mode="after")
    def _one_folder(self) -> ContextConfig:
        if self.dir is not None and self.bind is not None:
            raise ValueError("`dir` and `bind` are the same folder; keep one")
        return self


class Context(Part):
    """What the agents share."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    enabled: StrictBool = Field(default=True, description="false, or `context: false`: no room, the agents are alone.")
    provider: Literal["sqlite", "file", "memory"] = Field(
        default="sqlite", description="file: the channel is also kept as channel.md; memory: documents leave no files."
    )
    documents: Literal["file", "sqlite"] | None = Field(
        default=None, description="Where documents are: files below the folder, or the database. Not set: files."
    )
    document_owner: StrictStr | None = Field(
        default=None,
        alias="documentOwner",
        description="The agent that alone writes documents; none: all do. Not set: several agents elect one.",
    )
    config: ContextConfig = Field(default=ContextConfig(), description="Where things are kept.")

    @model_validator(mode="after")
    def _fits(self) -> Context:
        if self.config.db is not None and self.provider != "sqlite":
            raise ValueError(f"`config.db` goes with `provider: sqlite`, not with {self.provider}")
        if self.provider == "memory" and self.documents == "file":
            raise ValueError("`documents: file` does not go with `provider: memory`")
        return self

    @property
    def stores_files(self) -> bool:
        """Whether documents are files."""
        return self.enabled and self.provider != "memory" and self.documents != "sqlite"


def _context(value: object) -> object:
    alone = value is None or isinstance(value, bool)
    return {"enabled": value is not False} if alone else value


class Param(Part):
    """A value that whoever starts the workflow gives."""

    name: ValueName | None = Field(default=None, description="Its name, where params are written as a list.")
    default: StrictStr | None = Field(default=None, description="What it is where nobody says.")
    required: StrictBool | None = Field(default=None, description="Not set: required where there is no default.")
    description: Line | None = Field(default=None, description="What it is for, in a line.")

    @model_validator(mode="before")
    @classmethod
    def _default_as_text(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        if isinstance(fields.get("default"), bool | int | float):
            default = fields["default"]
            fields["default"] = str(default).lower() if isinstance(default, bool) else str(default)
        return fields

    @property
    def must_be_given(self) -> bool:
        return self.default is None if self.required is None else self.required


def _params(value: object) -> object:
    """Params by name: a list of names or of mappings with `name:`, or a mapping; a plain value is the default."""
    if isinstance(value, list):
        named: dict[str, object] = {}
        for param in cast("list[object]", value):
            fields: object = {"name": param} if isinstance(param, str) else param
            name = cast("dict[str, object]", fields).get("name") if isinstance(fields, dict) else None
            if not isinstance(name, str):
                raise ValueError("in a list, each param is a name, or fields with a `name:`")
            if name in named:
                raise ValueError(f"there are two params named {format_value(name)}")
            named[name] = fields
        return named
    if not isinstance(value, dict):
        return value
    return {name: _param(name, param) for name, param in cast("dict[str, object]", value).items()}


def _param(name: str, value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return {"default": value}
    if isinstance(value, dict) and cast("dict[str, object]", value).get("name", name) != name:
        raise ValueError(f"the param {format_value(name)} says inside that its name is another one")
    return cast("object", value)


class Step(Part):
    """A command that runs before the agents do."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    shell: Text = Field(description="The command. Values of others are variables in it, never part of its text.")
    name: ValueName | None = Field(default=None, alias="as", description="Keeps what it prints under this name.")
    timeout: Duration = Field(default=600.0, description="How long it may take; 10m where it does not say.")


class TeamLimits(Part):
    """When agents that only talk to each other are stopped."""

    max_hops: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=20, description="How many messages may follow from one another without a person."
    )
    max_repeats: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=3, description="How often an agent may say the same."
    )
    max_rounds_without_progress: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=5, description="How many rounds may pass in which nothing but talk happens."
    )


class Definition(Part):
    """What a workflow file says."""

    name: Annotated[Name, BeforeValidator(_workflow_name)] = Field(description="Its name; not set: that of the file.")
    description: Line | None = Field(default=None, description="What it is for, in a line.")
    agents: Annotated[dict[AgentName, AgentDefinition], Field(min_length=1, max_length=_MOST_AGENTS)] = Field(
        description="The agents by name, in the order of the file."
    )
    context: Annotated[Context, BeforeValidator(_context, json_schema_input_type=bool | None | Context)] = Field(
        default=Context(), description="What the agents share; false: nothing."
    )
    params: Annotated[dict[ValueName, Param], BeforeValidator(_params)] = Field(
        default_factory=dict, description="Values that whoever starts it gives: --param name=value."
    )
    env: tuple[VariableName, ...] = Field(
        default=(), description="Variables that setup may see and ${{ env.X }} may name, as far as your settings allow."
    )
    setup: tuple[Step, ...] = Field(default=(), max_length=100, description="Commands that run first, in this order.")
    kickoff: Text | None = Field(
        default=None, description="The first message in the channel. Its mentions wake agents."
    )
    budget: Dollars | None = Field(
        default=None, description="Dollars for all agents together; then you are asked. none: no limit of its own."
    )
    limits: TeamLimits = Field(default=TeamLimits(), description="When agents that only talk are stopped.")

    @model_validator(mode="after")
    def _agrees(self) -> Definition:
        owner = self.context.document_owner
        if owner not in (None, NOBODY, *self.agents):
            known = ", ".join(self.agents)
            raise ValueError(
                f"context.documentOwner: there is no agent {format_value(owner)} (there are: {known}; or none)"
            )
        names = [step.name for step in self.setup if step.name]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"setup: two steps keep their output as {format_value(twice[0])}")
        return self
