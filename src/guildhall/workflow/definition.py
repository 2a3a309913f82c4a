"""The schema of workflow files: pydantic models with every field, its default and its allowed values.

The JSON Schema of workflow files is generated from these models. A wake-up time is an interval such as `5m` or a cron
line with five fields.
Does not read files, resolve agents to workers (`loader.py`) or fill in placeholders (`model.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from guildhall.core.config import Dollars, Duration, VariableName, check_unit, parse_duration
from guildhall.core.errors import UsageError
from guildhall.core.ids import RUN, is_id
from guildhall.core.yaml import format_value
from guildhall.room.model import RESERVED as RESERVED_IN_ROOM
from guildhall.workers.definition import (
    Line,
    ModelSettings,
    Name,
    Part,
    RuntimeName,
    ToolRule,
    WorkerName,
    convert_runtime,
    rules_by_name,
)

MIN_INTERVAL_S = 1.0
_WAKEUP_SYNTAX = 'Write 30s, 5m, 1h, or a cron line with five fields such as "0 9 * * 1-5".'
_CRON_LINE = re.compile(r"\S+(\s+\S+){4,5}")
_MAX_CRON_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Wakeup:
    """An interval or a cron line. Exactly one of the two is set."""

    every: float | None = None  # in seconds
    cron: str | None = None

    def after(self, moment: datetime) -> datetime:
        """Return the next due time after a moment. Cron lines are read in the time zone of the moment."""
        if self.every is not None:
            return moment + timedelta(seconds=self.every)
        from cronsim import CronSim

        return next(CronSim(self.cron or "", moment))

    def __str__(self) -> str:
        return f"cron {self.cron}" if self.cron is not None else f"every {format_seconds(self.every or 0)}"


def parse_wakeup(value: object) -> Wakeup:
    """Return a wake-up from a file or a command line. Raise ValueError if it is not valid."""
    if isinstance(value, Wakeup):
        return value
    if isinstance(value, str) and _CRON_LINE.fullmatch(value.strip()) and len(value) <= _MAX_CRON_CHARS:
        return Wakeup(cron=_check_cron(value.strip()))
    check_unit(value)
    try:
        seconds = parse_duration(value)
    except UsageError:
        message = f"invalid wakeup {format_value(value)}: not an interval or a cron line. {_WAKEUP_SYNTAX}"
        raise ValueError(message) from None
    if seconds < MIN_INTERVAL_S:
        raise ValueError(f"invalid wakeup {format_value(value)}: the minimum is 1 s")
    return Wakeup(every=seconds)


def _check_cron(line: str) -> str:
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(line, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise ValueError(f"invalid cron line {format_value(line)}: {error}. {_WAKEUP_SYNTAX}") from None
    except StopIteration:
        raise ValueError(f"invalid cron line {format_value(line)}: it is never due") from None
    return line


def format_seconds(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


NO_OWNER = "none"  # value of `documentOwner`
GLOBAL = "global"  # the workflow of agents without a workflow file
RESERVED = RESERVED_IN_ROOM | {NO_OWNER}  # not allowed as agent names
PREFIXES = ("env", "params", "source", "workflow")  # prefixes of placeholders

_AGENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VALUE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?")
_MAX_TEXT_CHARS = 200_000
_MAX_AGENTS = 100


def _check_agent_name(value: object) -> object:
    if isinstance(value, str) and not _AGENT_NAME.fullmatch(value):
        raise ValueError(
            f"invalid agent name {format_value(value)}: use a letter, then up to 63 letters, digits, '_' or '-'"
        )
    if isinstance(value, str) and value.lower() in RESERVED:
        raise ValueError(f"invalid agent name {format_value(value)}: the word is reserved")
    return value


def _check_value_name(value: object) -> object:
    if isinstance(value, str) and not _VALUE_NAME.fullmatch(value):
        raise ValueError(
            f"invalid name {format_value(value)}: use a letter or '_', then up to 63 letters, digits, '_' or '-'"
        )
    if isinstance(value, str) and value in PREFIXES:
        raise ValueError(f"invalid name {format_value(value)}: the word is reserved for ${{{{ {value}.x }}}}")
    return value


def _check_workflow_name(value: object) -> object:
    if value == GLOBAL:
        raise ValueError(f"invalid name {GLOBAL!r}: it is reserved for agents without a workflow file")
    if isinstance(value, str) and is_id(value, RUN):
        raise ValueError(f"invalid name {value!r}: it has the form of the id of a run")
    return value


def _check_text(value: object) -> object:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("invalid text: contains a NUL character")
    return value


def _parse_optional_wakeup(value: object) -> object:
    return value if value is None else parse_wakeup(value)


AgentName = Annotated[StrictStr, BeforeValidator(_check_agent_name)]
ValueName = Annotated[StrictStr, BeforeValidator(_check_value_name)]
Text = Annotated[StrictStr, BeforeValidator(_check_text), Field(min_length=1, max_length=_MAX_TEXT_CHARS)]


class Prompt(Part):
    """Text that is added to the instructions of a worker."""

    append: Text = Field(description="Text, or the path of a file that ends in .md or .txt.")


class AgentDefinition(Part):
    """An agent of the team, defined in this file or by the file of a worker."""

    FIELD_HINTS: ClassVar = {
        "schedule": "Use `wakeup`, with an interval or a cron line.",
        "soul": "Write it into `system_prompt`.",
        "instructions": "Use `system_prompt`, or name the worker file: `worker: NAME`.",
        "sandboxes": "Write a worker file with `sandboxes`, and name it: `worker: NAME`.",
        "toolboxes": "Write a worker file with `toolboxes`, and name it: `worker: NAME`.",
        "limits": "Use max_turns, max_budget_usd and timeout of the agent.",
    }
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    worker: WorkerName | None = Field(default=None, description="The worker of the agent; `ref` is an alias.")
    prompt: Prompt | None = Field(default=None, description="With `worker`: text to add to its instructions.")
    description: Line | None = Field(default=None, description="The purpose of the agent, in one line.")
    system_prompt: Text | None = Field(
        default=None, description="Without `worker`: text, or the path of a file that ends in .md or .txt."
    )
    model: Line | None = Field(
        default=None, description="provider:model, script:FILE or replay:RUN; null: the model of the caller."
    )
    model_settings: ModelSettings | None = Field(
        default=None, description="Settings of the model calls. With `worker`: they replace settings of the worker."
    )
    runtime: RuntimeName | None = Field(
        default=None, description="The program that executes the agent; `backend` is an alias."
    )
    tools: tuple[Name, ...] | None = Field(
        default=None, description="Built-in tools. With `worker`: the only tools of the worker that stay available."
    )
    tool_rules: Annotated[dict[Line, ToolRule], BeforeValidator(rules_by_name)] = Field(
        default_factory=dict, description="Rules by capability or tool, in addition to those of the worker."
    )
    workdir: Line | None = Field(
        default=None,
        description="The writable working folder. Default: the folder of this file, or that of the worker.",
    )
    max_turns: Annotated[StrictInt, Field(gt=0)] | None = Field(default=None, description="Model calls of one run.")
    max_budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Dollars of one run."
    )
    timeout: Duration | None = Field(default=None, description="Running time of one run, such as 30m.")
    wakeup: Annotated[
        Wakeup | None, BeforeValidator(_parse_optional_wakeup, json_schema_input_type=StrictStr | float | None)
    ] = Field(
        default=None,
        description="The schedule: an interval such as 30s, 5m, 1h, or a cron line.",
    )
    wakeup_prompt: Text | None = Field(default=None, description="The message of the wake-up.")

    @model_validator(mode="before")
    @classmethod
    def _resolve_aliases(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        for alias, name in FIELD_ALIASES.items():
            if alias in fields:
                if name in fields:
                    raise ValueError(f"`{alias}` is an alias of `{name}`: keep one of them")
                fields[name] = fields.pop(alias)
        if "max_tokens" in fields:  # the maximum of one response
            settings: object = fields.get("model_settings") or {}
            if isinstance(settings, dict):
                fields["model_settings"] = {"max_tokens": fields.pop("max_tokens"), **cast("dict[str, Any]", settings)}
        return convert_runtime(_convert_provider(_convert_prompt(fields)))

    @model_validator(mode="after")
    def _check_instructions(self) -> AgentDefinition:
        if self.worker is None and self.system_prompt is None:
            raise ValueError("the agent needs a `system_prompt` or a `worker`")
        if self.worker is not None and self.system_prompt is not None:
            raise ValueError("the worker has its own instructions: add to them with `prompt: {append: ...}`")
        if self.worker is None and self.prompt is not None:
            raise ValueError("`prompt` adds to the instructions of a `worker`: without one, use `system_prompt`")
        if self.wakeup_prompt is not None and self.wakeup is None:
            raise ValueError("`wakeup_prompt` needs a `wakeup`")
        return self


FIELD_ALIASES = {"backend": "runtime", "ref": "worker", "max_steps": "max_turns", "system_prompt_file": "system_prompt"}


def _convert_prompt(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with `prompt: {system: TEXT}` as `system_prompt: TEXT`."""
    prompt: object = fields.get("prompt")
    if not isinstance(prompt, dict) or "system" not in prompt:
        return fields
    rest = dict(cast("dict[str, Any]", prompt))
    if "system_prompt" in fields:
        raise ValueError("`prompt.system` is an alias of `system_prompt`: keep one of them")
    fields = {**fields, "system_prompt": rest.pop("system"), "prompt": rest}
    return fields if rest else {name: value for name, value in fields.items() if name != "prompt"}


def _convert_provider(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with `provider: NAME` as a part of the model."""
    if "provider" not in fields:
        return fields
    fields = dict(fields)
    provider: object = fields.pop("provider")
    if isinstance(provider, dict):
        options = cast("dict[str, Any]", provider)
        if others := [name for name in options if name != "name"]:
            raise ValueError(
                f"`provider.{others[0]}` cannot be set in a file: set the key or the address of the provider in the "
                "environment, such as OPENAI_API_KEY and OPENAI_BASE_URL"
            )
        provider = options.get("name")
    model: object = fields.get("model")
    if not isinstance(provider, str) or not isinstance(model, str):
        raise ValueError("`provider` needs the name of a provider and a `model`: write `model: provider:model`")
    model_provider = re.split("[:/]", model)[0] if re.search("[:/]", model) else None
    if model_provider not in (None, provider):
        raise ValueError(f"the model {format_value(model)} names another provider than `provider: {provider}`")
    return {**fields, "model": model if model_provider else f"{provider}:{model}"}


class ContextConfig(Part):
    """The paths of the room's data. Relative paths start at the folder of this file."""

    db: Line | None = Field(default=None, description="A separate database for the state of this workflow.")
    dir: Line | None = Field(default=None, description="The folder of the documents and of the exported channel.")
    bind: Line | None = Field(default=None, description="An alias of `dir`.")

    @model_validator(mode="after")
    def _check_folder(self) -> ContextConfig:
        if self.dir is not None and self.bind is not None:
            raise ValueError("`bind` is an alias of `dir`: keep one of them")
        return self


class Context(Part):
    """The room that the agents share."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    enabled: StrictBool = Field(default=True, description="false, or `context: false`: the agents have no room.")
    provider: Literal["sqlite", "file", "memory"] = Field(
        default="sqlite", description="file: also export the channel as channel.md; memory: no document files."
    )
    documents: Literal["file", "sqlite"] | None = Field(
        default=None, description="The place of the documents: files in the folder, or the database. Default: file."
    )
    document_owner: StrictStr | None = Field(
        default=None,
        alias="documentOwner",
        description="The only agent that writes documents; none: all agents write. Default: the agents elect one.",
    )
    config: ContextConfig = Field(default=ContextConfig(), description="Paths.")

    @model_validator(mode="after")
    def _check_provider(self) -> Context:
        if self.config.db is not None and self.provider != "sqlite":
            raise ValueError(f"`config.db` needs `provider: sqlite`, not {self.provider}")
        if self.provider == "memory" and self.documents == "file":
            raise ValueError("`documents: file` cannot be used with `provider: memory`")
        return self

    @property
    def uses_documents(self) -> bool:
        """Return True if the file configures documents."""
        names_owner = self.document_owner not in (None, NO_OWNER)
        return names_owner or self.documents is not None or self.config.dir is not None or self.config.bind is not None

    @property
    def stores_files(self) -> bool:
        """Return True if documents are files."""
        return self.enabled and self.provider != "memory" and self.documents != "sqlite"


def _normalise_context(value: object) -> object:
    is_switch = value is None or isinstance(value, bool)
    return {"enabled": value is not False} if is_switch else value


class Param(Part):
    """An input value of the workflow."""

    name: ValueName | None = Field(default=None, description="The name, if params are a list.")
    default: StrictStr | None = Field(default=None, description="The value if none is passed.")
    type: Literal["string", "number", "boolean"] = Field(default="string", description="The form of the value.")
    short: StrictStr | None = Field(default=None, description="A letter of other systems. Use --param NAME=VALUE.")
    required: StrictBool | None = Field(default=None, description="Default: true without a `default`.")
    description: Line | None = Field(default=None, description="The purpose, in one line.")

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

    def accepts(self, value: str) -> bool:
        """Return True if the value has the type of the param."""
        if self.type == "number":
            return _NUMBER.fullmatch(value) is not None
        return self.type == "string" or value in ("true", "false")

    @model_validator(mode="after")
    def _check_default(self) -> Param:
        if self.default is not None and not self.accepts(self.default):
            raise ValueError(f"invalid default {format_value(self.default)}: expected a {self.type}")
        return self

    @property
    def is_required(self) -> bool:
        return self.default is None if self.required is None else self.required


def _normalise_params(value: object) -> object:
    """Return the params by name. The file has a list of names or of mappings with `name:`, or a mapping."""
    if isinstance(value, list):
        named: dict[str, object] = {}
        for param in cast("list[object]", value):
            fields: object = {"name": param} if isinstance(param, str) else param
            name = cast("dict[str, object]", fields).get("name") if isinstance(fields, dict) else None
            if not isinstance(name, str):
                raise ValueError("each param of a list must be a name or a mapping with `name:`")
            if name in named:
                raise ValueError(f"duplicate param {format_value(name)}")
            named[name] = fields
        return named
    if not isinstance(value, dict):
        return value
    return {name: _normalise_param(name, param) for name, param in cast("dict[str, object]", value).items()}


def _normalise_param(name: str, value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return {"default": value}
    if isinstance(value, dict) and cast("dict[str, object]", value).get("name", name) != name:
        raise ValueError(f"invalid param {format_value(name)}: it contains another `name:`")
    return cast("object", value)


class Step(Part):
    """A command that runs before the agents do."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    shell: Text = Field(description="The command. A placeholder in it becomes an environment variable.")
    name: ValueName | None = Field(default=None, alias="as", description="The name of its output, for placeholders.")
    timeout: Duration = Field(default=600.0, description="The maximum duration. Default: 10m.")


class TeamLimits(Part):
    """Limits of conversations between agents without progress."""

    max_hops: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=20, description="The maximum length of a chain of replies between agents."
    )
    max_repeats: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=3, description="The maximum number of repetitions of a message by an agent."
    )
    max_rounds_without_progress: Annotated[StrictInt, Field(gt=0, le=10_000)] = Field(
        default=5, description="The maximum number of rounds without progress."
    )


class Definition(Part):
    """The content of a workflow file."""

    name: Annotated[Name, BeforeValidator(_check_workflow_name)] = Field(
        description="The name. Default: the file name without its suffix."
    )
    description: Line | None = Field(default=None, description="The purpose, in one line.")
    agents: Annotated[dict[AgentName, AgentDefinition], Field(min_length=1, max_length=_MAX_AGENTS)] = Field(
        description="The agents by name, in the order of the file."
    )
    context: Annotated[Context, BeforeValidator(_normalise_context, json_schema_input_type=bool | None | Context)] = (
        Field(default=Context(), description="The room that the agents share; false: none.")
    )
    params: Annotated[dict[ValueName, Param], BeforeValidator(_normalise_params)] = Field(
        default_factory=dict, description="Input values: --param name=value."
    )
    env: tuple[VariableName, ...] = Field(
        default=(), description="Environment variables for setup and ${{ env.X }}. Your settings must allow them."
    )
    setup: tuple[Step, ...] = Field(
        default=(), max_length=100, description="Commands that run before the agents, in this order."
    )
    kickoff: Text | None = Field(
        default=None, description="The first message of the channel. The agents that it mentions start."
    )
    budget: Dollars | None = Field(
        default=None,
        description="Dollars for all agents together, then the user is asked; none: no limit in this file.",
    )
    limits: TeamLimits = Field(default=TeamLimits(), description="Limits of messages between agents without progress.")
