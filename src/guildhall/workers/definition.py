"""Worker definition: declares every field of a worker file with its default and its constraints.

The JSON Schema of worker files is generated from these types. Worker files are read by `workers.loader`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from guildhall.core.config import Duration, VariableName
from guildhall.core.ids import NAME_RULE, is_name
from guildhall.core.yaml import format_value

RuntimeName = Literal["pydantic", "claude", "codex", "opencode", "cursor"]
Status = Literal["draft", "active", "retired"]
EVERY_WORKER = "*"
# Names of other systems for the runtime `pydantic`. A `mock` gets its responses from a script.
_PYDANTIC_NAMES = ("default", "sdk", "mock")
# The hall adds these toolboxes by the purpose of a run. A worker file cannot name them.
SYSTEM_TOOLBOXES = ("base", "room", "job", "commission", "meeting", "manager")


def _check_name(value: object) -> object:
    if isinstance(value, str) and not is_name(value):
        raise ValueError(f"invalid name {format_value(value)}: {NAME_RULE}")
    return value


def _check_toolbox_name(value: object) -> object:
    if value in SYSTEM_TOOLBOXES:
        raise ValueError(f"{value!r} is a system toolbox, which the hall adds itself: remove it")
    return _check_name(value)


def _check_printable(value: object) -> object:
    if isinstance(value, str) and (hidden := [char for char in value if not char.isprintable()]):
        raise ValueError(f"contains the non-printable character {hidden[0]!a}")
    return value


def _normalize_suffix(value: object) -> object:
    if not isinstance(value, str):
        return value
    suffix = value.lower() if value.startswith(".") else f".{value.lower()}"
    if len(suffix) < 2 or not suffix.isprintable() or "/" in suffix:
        raise ValueError(f"invalid suffix {format_value(value)}: write it like .md")
    return suffix


def _check_worker_name(value: object) -> object:
    """Accept a name, a name with its scope (`project/reviewer`), or `*`."""
    if isinstance(value, str) and value != EVERY_WORKER:
        scope, _, name = value.rpartition("/")
        _check_name(name if scope in ("", "project", "home", "package", "shipped") else value)
    return value


def _check_member_name(value: object) -> object:
    """Accept a name, a name with its scope (`home/researcher`), or `*`."""
    if isinstance(value, str) and value != EVERY_WORKER:
        _check_name(value.removeprefix("project/").removeprefix("home/"))
    return value


Name = Annotated[StrictStr, BeforeValidator(_check_name)]
ToolboxName = Annotated[StrictStr, BeforeValidator(_check_toolbox_name)]
Line = Annotated[StrictStr, BeforeValidator(_check_printable), Field(min_length=1, max_length=4096)]
Suffix = Annotated[StrictStr, BeforeValidator(_normalize_suffix)]
MemberName = Annotated[StrictStr, BeforeValidator(_check_member_name)]
WorkerName = Annotated[StrictStr, BeforeValidator(_check_worker_name)]
_ALLOW_STAR = BeforeValidator(
    lambda value: (EVERY_WORKER,) if value == EVERY_WORKER else value,
    json_schema_input_type=Literal["*"] | tuple[str, ...],
)
Bytes = Annotated[StrictInt, Field(gt=0, le=10**12)]


class Part(BaseModel):
    """A part of a worker file: frozen, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sandbox(Part):
    """A folder that the worker can access."""

    name: Name | None = Field(default=None, description="The name of the sandbox, repeated. Optional.")
    path: Line = Field(description="The folder, relative to the project.")
    mode: Annotated[
        Literal["ro", "rw"], BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
    ] = Field(default="ro", description="ro: the worker may read; rw: it may also write.")
    allowed_suffixes: tuple[Suffix, ...] = Field(
        default=(), description="Allow only files with these suffixes; empty: all."
    )
    text_suffixes: tuple[Suffix, ...] = Field(default=(), description="Read only these as text; empty: all.")
    attachment_suffixes: tuple[Suffix, ...] = Field(
        default=(), description="Allow only these as attachments; empty: all."
    )
    max_bytes: Bytes = Field(default=10_000_000, description="Maximum size of a file that is read or written.")


class AttachmentPolicy(Part):
    """Limits on the attachments of a run."""

    max_attachments: Annotated[StrictInt, Field(ge=0, le=1000)] = Field(
        default=4, description="Maximum number of files."
    )
    max_total_bytes: Bytes = Field(default=10_000_000, description="Maximum size of all files together.")
    allowed_suffixes: tuple[Suffix, ...] = Field(default=(), description="Allow only these suffixes; empty: all.")
    denied_suffixes: tuple[Suffix, ...] = Field(default=(), description="Reject these suffixes.")

    def __str__(self) -> str:
        if not self.max_attachments:
            return "none"
        parts = [f"at most {self.max_attachments}, {self.max_total_bytes:,} bytes together"]
        parts += [f"only {', '.join(self.allowed_suffixes)}"] if self.allowed_suffixes else []
        parts += [f"no {', '.join(self.denied_suffixes)}"] if self.denied_suffixes else []
        return "; ".join(parts)


class ToolRule(Part):
    """A rule for a capability or a tool."""

    MAPPING_HINT: ClassVar = "Write {approval_required: true} to be asked before each call, or {allowed: false}."

    name: StrictStr | None = Field(default=None, description="The name of the rule, if rules are written as a list.")
    allowed: StrictBool = Field(default=True, description="false: reject these calls.")
    approval_required: StrictBool = Field(default=False, description="true: ask the user before each call.")
    timeout: Duration | None = Field(default=None, description="How long to wait for the approval; not set: no limit.")
    description: StrictStr | None = Field(default=None, description="Reason for the rule. An ask shows it.")


class McpServer(Part):
    """An MCP server: a program to start, or the URL of a running server."""

    command: Annotated[tuple[Line, ...], Field(min_length=1)] | None = Field(
        default=None, description="The program and its arguments, as a list."
    )
    url: Annotated[StrictStr, Field(pattern=r"^https?://[^\s]+$")] | None = Field(
        default=None, description="The URL of a running server."
    )
    env: tuple[VariableName, ...] = Field(
        default=(),
        description="Environment variables for the program; with `url` at most one, whose value is the token.",
    )
    tools: tuple[Line, ...] | None = Field(default=None, description="Offer only these tools; not set: all.")

    @model_validator(mode="after")
    def _check_transport(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either `command` (a list) or `url`")
        if self.url is not None and len(self.env) > 1:
            raise ValueError("with `url`, `env` names at most one variable: the token of the server")
        return self


class Limits(Part):
    """Limits of one run."""

    max_turns: Annotated[StrictInt, Field(gt=0)] | None = Field(default=150, description="Model calls; null: no limit.")
    max_tokens: Annotated[StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Input and output tokens together; not set: no limit."
    )
    max_budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="US dollars; not set: no limit."
    )
    max_repeats: Annotated[StrictInt, Field(gt=0)] | None = Field(
        default=10, description="Repeats of a tool call in a row with equal results; null: no limit."
    )
    timeout: Duration | None = Field(default=None, description="Running time, such as 30m; waiting does not count.")


class ModelSettings(Part):
    """Settings of the model calls of a worker. A setting that is not set has the default of the provider."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Randomness of the response, from 0 to 2."
    )
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Sample only from the most likely tokens with this total probability."
    )
    max_tokens: Annotated[StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Maximum output tokens of one model call, including thinking."
    )
    thinking: Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="How much the model thinks before it responds."
    )
    seed: StrictInt | None = Field(default=None, description="Seed of the sampling, for more similar responses.")
    stop: Annotated[tuple[Annotated[StrictStr, Field(min_length=1)], ...], Field(max_length=4)] = Field(
        default=(), description="Texts at which the model stops."
    )
    service_tier: Literal["default", "flex", "priority"] | None = Field(
        default=None, description="Service tier of the provider, which can change the price."
    )
    cache: StrictBool = Field(default=True, description="false: no prompt caching.")

    def declared_values(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, without `cache`."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"cache"})

    def request_values(self) -> dict[str, Any]:
        """Return the settings of a model call under the names of pydantic-ai."""
        settings = self.declared_values()
        if "stop" in settings:
            settings["stop_sequences"] = settings.pop("stop")
        if settings.get("thinking") == "off":
            settings["thinking"] = False
        return {**settings, "cache": True} if self.cache else settings

    def __str__(self) -> str:
        declared = self.declared_values().items()
        texts = [f"{name} {', '.join(value) if name == 'stop' else value}" for name, value in declared]
        return "; ".join([*texts, f"prompt caching {'on' if self.cache else 'off'}"])


class Completion(Part):
    """Files that a job of the worker must write."""

    artifacts: Annotated[tuple[Line, ...], Field(max_length=100)] = Field(
        default=(), description="Files that a job must write below its artifacts/, such as report.md."
    )


def convert_runtime(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the runtime `pydantic` in place of other names for it."""
    if (name := fields.get("runtime")) not in _PYDANTIC_NAMES:
        return fields
    model = fields.get("model")
    if name == "mock" and isinstance(model, str) and not model.startswith(("script:", "replay:")):
        raise ValueError("`backend: mock` needs a script as the model: write `model: script:FILE`")
    return {**fields, "runtime": "pydantic"}


def rules_by_name(value: object) -> object:
    """Convert a list of rules with `name:` to a mapping. A `name:` in a mapping must equal its key."""
    if isinstance(value, list | tuple):
        named: dict[str, object] = {}
        for rule in cast("list[object]", value):
            fields = cast("dict[str, object]", rule) if isinstance(rule, dict) else {}
            name = fields.get("name")
            if not isinstance(name, str):
                raise ValueError("in a list, each rule needs a `name:`")
            if name in named:
                raise ValueError(f"duplicate rule {format_value(name)}")
            named[name] = fields
        return named
    if isinstance(value, dict):
        for name, rule in cast("dict[str, object]", value).items():
            inner = cast("dict[str, object]", rule).get("name", name) if isinstance(rule, dict) else name
            if inner not in (name, None):
                raise ValueError(f"the rule {format_value(name)} has a different `name:` inside, {format_value(inner)}")
    return cast("object", value)


class Definition(Part):
    """All fields of a worker file."""

    name: Name = Field(description="The name of the worker. It must be the name of the file.")
    description: StrictStr | None = Field(default=None, description="The purpose of the worker, on one line.")
    instructions: StrictStr | None = Field(
        default=None, description="The system prompt, used as it is. Not set: prompts/<name>.{md,txt,j2,jinja2}."
    )
    model: Line | None = Field(
        default=None, description="provider:model, script:FILE or replay:RUN; null: the model of the caller."
    )
    model_settings: ModelSettings = Field(
        default=ModelSettings(), description="Settings of the model calls, such as temperature and thinking."
    )
    runtime: RuntimeName = Field(
        default="pydantic", description="The program that executes runs. `backend` is another name for this field."
    )
    tools: tuple[Name, ...] = Field(default=(), description="Built-in tools of the worker.")
    toolboxes: tuple[ToolboxName, ...] = Field(default=(), description="Toolboxes of the worker.")
    members: Annotated[tuple[MemberName, ...], _ALLOW_STAR] = Field(
        default=(), description="Members that the worker may dispatch jobs to; `*`: all that accept jobs."
    )
    mcp_servers: dict[Name, McpServer] = Field(default_factory=dict, description="MCP servers, by name.")
    sandboxes: dict[Name, Sandbox] = Field(
        default_factory=dict, description="Folders that the worker can access, by name."
    )
    attachment_policy: AttachmentPolicy = Field(
        default=AttachmentPolicy(), description="Limits of the attachments of a request."
    )
    allow_workers: Annotated[tuple[WorkerName, ...], _ALLOW_STAR] = Field(
        default=(), description="Workers that the worker may call; `*`: all active workers."
    )
    tool_rules: Annotated[dict[Line, ToolRule], BeforeValidator(rules_by_name)] = Field(
        default_factory=dict, description="Rules by capability or tool, as a mapping or as a list with `name:`."
    )
    output_schema_ref: Line | None = Field(default=None, description="A JSON Schema file or package.module:Model.")
    completion: Completion = Field(
        default=Completion(), description="Files that a job of the worker must produce besides its result."
    )
    limits: Limits = Field(default=Limits(), description="Turns, dollars and time of one run.")
    checkout: Literal["sparse", "full"] = Field(
        default="sparse", description="How much of a project is in the worktree of the worker."
    )
    status: Status = Field(default="active", description="draft, active or retired.")
    locked: StrictBool = Field(default=False, description="true: lock the worker. The hall pins the text of the file.")
    project_instructions: StrictBool = Field(
        default=False, description="true: AGENTS.md or CLAUDE.md of the project is part of the system prompt."
    )
    base: StrictBool | Literal["auto"] = Field(
        default="auto", description="The base toolbox. true: all its tools. auto: the useful tools. false: none."
    )
    accepts_risk: StrictBool = Field(
        default=False, description="true: private files, untrusted text and network calls together need no approval."
    )

    @model_validator(mode="before")
    @classmethod
    def _rename_backend(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        if "backend" in fields:
            if "runtime" in fields:
                raise ValueError("`runtime` and `backend` are the same field: remove one of them")
            fields["runtime"] = fields.pop("backend")
        return convert_runtime(fields)

    @model_validator(mode="after")
    def _check_sandbox_names(self) -> Definition:
        for name, sandbox in self.sandboxes.items():
            if sandbox.name not in (None, name):
                raise ValueError(f"the sandbox {name!r} has a different `name:` inside, {sandbox.name!r}")
        return self
