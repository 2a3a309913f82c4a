"""Worker definition: declares every field of a worker file with its default and its constraints.

The JSON Schema of worker files is generated from these types. Does not read files (see `workers.loader`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from guildhall.core.config import Duration, VariableName
from guildhall.core.ids import is_name
from guildhall.core.yaml import format_value

RuntimeName = Literal["pydantic", "claude", "codex", "opencode", "cursor"]
Status = Literal["draft", "active", "retired"]
EVERY_WORKER = "*"
# The hall gives these by where a worker works, and by who it is. None of them can be asked for.
SYSTEM_TOOLBOXES = ("base", "room", "job", "commission", "meeting", "manager")


def _name(value: object) -> object:
    if isinstance(value, str) and not is_name(value):
        raise ValueError(f"{format_value(value)} cannot be a name: use letters, digits, '_', '-' and '.', at most 64")
    return value


def _toolbox_name(value: object) -> object:
    if value in SYSTEM_TOOLBOXES:
        raise ValueError(f"{value} is a toolbox of the hall's own: it is given where it belongs, and cannot be named")
    return _name(value)


def _plain(value: object) -> object:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("there are control characters in the text")
    return value


def _suffix(value: object) -> object:
    if not isinstance(value, str):
        return value
    suffix = value.lower() if value.startswith(".") else f".{value.lower()}"
    if len(suffix) < 2 or not suffix.isprintable() or "/" in suffix:
        raise ValueError(f"{format_value(value)} is not a suffix: write it like .md")
    return suffix


def _mode(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _everyone(value: object) -> object:
    return (EVERY_WORKER,) if value == EVERY_WORKER else value


def _worker_name(value: object) -> object:
    """Accept a name, a name with its scope (`project/reviewer`), or `*`."""
    if isinstance(value, str) and value != EVERY_WORKER:
        scope, _, name = value.rpartition("/")
        _name(name if scope in ("", "project", "home", "package", "shipped") else value)
    return value


def _member_name(value: object) -> object:
    """Accept a name, a name with its scope (`home/researcher`), or `*`."""
    if isinstance(value, str) and value != EVERY_WORKER:
        _name(value.removeprefix("project/").removeprefix("home/"))
    return value


Name = Annotated[StrictStr, BeforeValidator(_name)]
ToolboxName = Annotated[StrictStr, BeforeValidator(_toolbox_name)]
Line = Annotated[StrictStr, BeforeValidator(_plain), Field(min_length=1, max_length=4096)]
Suffix = Annotated[StrictStr, BeforeValidator(_suffix)]
MemberName = Annotated[StrictStr, BeforeValidator(_member_name)]
WorkerName = Annotated[StrictStr, BeforeValidator(_worker_name)]
_EVERYONE = BeforeValidator(_everyone, json_schema_input_type=Literal["*"] | tuple[str, ...])
Bytes = Annotated[StrictInt, Field(gt=0, le=10**12)]


class Part(BaseModel):
    """A part of a worker file: frozen, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sandbox(Part):
    """A folder that the worker may see under a name."""

    name: Name | None = Field(default=None, description="The sandbox's name again; it may be left out.")
    path: Line = Field(description="The folder. A relative path starts at the project.")
    mode: Annotated[Literal["ro", "rw"], BeforeValidator(_mode)] = Field(
        default="ro", description="Whether the worker may only read (ro) or also write (rw)."
    )
    allowed_suffixes: tuple[Suffix, ...] = Field(default=(), description="Only files with these suffixes; empty: all.")
    text_suffixes: tuple[Suffix, ...] = Field(default=(), description="Only these are read as text; empty: all.")
    attachment_suffixes: tuple[Suffix, ...] = Field(default=(), description="Only these may be attached; empty: all.")
    max_bytes: Bytes = Field(default=10_000_000, description="The largest file that is read or written.")


class AttachmentPolicy(Part):
    """Limits of the attachments of a request to the worker."""

    max_attachments: Annotated[StrictInt, Field(ge=0, le=1000)] = Field(default=4, description="How many files.")
    max_total_bytes: Bytes = Field(default=10_000_000, description="How many bytes all of them may have.")
    allowed_suffixes: tuple[Suffix, ...] = Field(default=(), description="Only these suffixes; empty: all.")
    denied_suffixes: tuple[Suffix, ...] = Field(default=(), description="Never these suffixes.")

    def __str__(self) -> str:
        if not self.max_attachments:
            return "none"
        parts = [f"at most {self.max_attachments}, {self.max_total_bytes:,} bytes together"]
        parts += [f"only {', '.join(self.allowed_suffixes)}"] if self.allowed_suffixes else []
        parts += [f"no {', '.join(self.denied_suffixes)}"] if self.denied_suffixes else []
        return "; ".join(parts)


class ToolRule(Part):
    """A rule for a capability or a tool."""

    name: StrictStr | None = Field(default=None, description="The rule's name, where rules are written as a list.")
    allowed: StrictBool = Field(default=True, description="false: the worker may not do this at all.")
    approval_required: StrictBool = Field(default=False, description="true: a person is asked before each call.")
    timeout: Duration | None = Field(
        default=None, description="How long the approval may take; not set: as long as it takes."
    )
    description: StrictStr | None = Field(default=None, description="Why the rule is there; for readers.")


class McpServer(Part):
    """A server of tools that speaks MCP: a program, or an address."""

    command: Annotated[tuple[Line, ...], Field(min_length=1)] | None = Field(
        default=None, description="The program and its arguments, as a list."
    )
    url: Annotated[StrictStr, Field(pattern=r"^https?://[^\s]+$")] | None = Field(
        default=None, description="The address of a running server."
    )
    env: tuple[VariableName, ...] = Field(
        default=(),
        description="Names of variables that the program may see; with `url` one at most, whose value is its token.",
    )
    tools: tuple[Line, ...] | None = Field(default=None, description="Only these of its tools; not set: all.")

    @model_validator(mode="after")
    def _one(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("name either `command` (a list) or `url`")
        if self.url is not None and len(self.env) > 1:
            raise ValueError("with `url`, `env` names at most one variable: the one that holds the server's token")
        return self


class Limits(Part):
    """Limits of one run."""

    max_turns: Annotated[StrictInt, Field(gt=0)] | None = Field(default=150, description="Model calls; null: no limit.")
    max_tokens: Annotated[StrictInt, Field(gt=0)] | None = Field(
        default=None, description="Tokens of all questions and answers together; not set: no limit."
    )
    max_budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="Dollars; not set: no limit of its own."
    )
    timeout: Duration | None = Field(default=None, description="Running time, such as 30m; waiting does not count.")


class Completion(Part):
    """Files that a job of the worker must write."""

    artifacts: Annotated[tuple[Line, ...], Field(max_length=100)] = Field(
        default=(), description="Files below the job's artifacts/ that it must have written, such as report.md."
    )


def named_rules(value: object) -> object:
    """Return rules by name. A list of rules with `name:` becomes a mapping; a name inside must equal the key."""
    if isinstance(value, list | tuple):
        named: dict[str, object] = {}
        for rule in cast("list[object]", value):
            fields = cast("dict[str, object]", rule) if isinstance(rule, dict) else {}
            name = fields.get("name")
            if not isinstance(name, str):
                raise ValueError("in a list, each rule needs a `name:`")
            if name in named:
                raise ValueError(f"there are two rules named {format_value(name)}")
            named[name] = fields
        return named
    if isinstance(value, dict):
        for name, rule in cast("dict[str, object]", value).items():
            inner = cast("dict[str, object]", rule).get("name", name) if isinstance(rule, dict) else name
            if inner not in (name, None):
                raise ValueError(f"the rule {format_value(name)} says inside that its name is {format_value(inner)}")
    return cast("object", value)


class Definition(Part):
    """All fields of a worker file."""

    name: Name = Field(description="The worker's name: that of its file.")
    description: StrictStr | None = Field(default=None, description="What it is for, in a line.")
    instructions: StrictStr | None = Field(
        default=None, description="The system prompt, taken as it stands. Not set: prompts/<name>.{md,txt,j2,jinja2}."
    )
    model: Line | None = Field(
        default=None, description="provider:model, script:FILE or replay:RUN; null: the caller's."
    )
    runtime: RuntimeName = Field(
        default="pydantic", description="What executes it. `backend` is another name for this field."
    )
    tools: tuple[Name, ...] = Field(default=(), description="Built-in tools that it may use.")
    toolboxes: tuple[ToolboxName, ...] = Field(default=(), description="Toolboxes that it may use.")
    members: Annotated[tuple[MemberName, ...], _EVERYONE] = Field(
        default=(), description="Guild members that it may dispatch to; `*`: all that take work."
    )
    mcp_servers: dict[Name, McpServer] = Field(default_factory=dict, description="Further servers of tools, by name.")
    sandboxes: dict[Name, Sandbox] = Field(default_factory=dict, description="Folders that it may see, by name.")
    attachment_policy: AttachmentPolicy = Field(
        default=AttachmentPolicy(), description="What may be attached to a request."
    )
    allow_workers: Annotated[tuple[WorkerName, ...], _EVERYONE] = Field(
        default=(), description="Workers that it may call; `*`: all active ones."
    )
    tool_rules: Annotated[dict[Line, ToolRule], BeforeValidator(named_rules)] = Field(
        default_factory=dict, description="Rules by capability or tool, as a mapping or as a list with `name:`."
    )
    output_schema_ref: Line | None = Field(default=None, description="A JSON Schema file or package.module:Model.")
    completion: Completion = Field(
        default=Completion(), description="What a job of the worker must give besides its result."
    )
    limits: Limits = Field(default=Limits(), description="Turns, dollars and time of one run.")
    checkout: Literal["sparse", "full"] = Field(
        default="sparse", description="How much of a project it gets as its worktree."
    )
    status: Status = Field(default="active", description="draft, active or retired.")
    locked: StrictBool = Field(default=False, description="true asks for a lock: the file is pinned as it is.")
    base: StrictBool = Field(
        default=True, description="false: without the base toolbox (memory, artifacts, decisions)."
    )
    accepts_risk: StrictBool = Field(
        default=False, description="true: private files, untrusted text and outward acts together need no approval."
    )

    @model_validator(mode="before")
    @classmethod
    def _backend(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        fields = dict(cast("dict[str, Any]", value))
        if "backend" in fields:
            if "runtime" in fields:
                raise ValueError("`runtime` and `backend` are the same field; keep one")
            fields["runtime"] = fields.pop("backend")
        return fields

    @model_validator(mode="after")
    def _inner_names(self) -> Definition:
        for name, sandbox in self.sandboxes.items():
            if sandbox.name not in (None, name):
                raise ValueError(f"the sandbox {name!r} says inside that its name is {sandbox.name!r}")
        return self
