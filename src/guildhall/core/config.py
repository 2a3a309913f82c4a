"""Settings: reads `config.yaml` of the home and lets a project's `guildhall.yaml` tighten it.

The model of a run is chosen in `workers.registry`. Sizes such as `512MB` and durations such as `1.5h` are parsed here.

Invariant: a project can only tighten the permissions and limits of the user, because its author may be a stranger. It
may name the default model.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, model_validator

from guildhall.core import yaml
from guildhall.core.errors import HallUnavailable, UsageError
from guildhall.core.paths import HOME_VARIABLE, PROJECT_SETTINGS, Home
from guildhall.core.text_checks import nearest

if TYPE_CHECKING:
    from pathlib import Path


DEFAULT_BUDGET = 5.0

_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)\s*")
_MIN_MILLISECONDS = 10_000  # a number without a unit is probably in milliseconds from this value on
_MAX_DURATION_S = 10 * 365 * 86400.0
_SIZE = re.compile(r"\s*(\d{1,6})\s*([mMgG][bB])\s*")
_UNIT_BYTES = {"MB": 1024**2, "GB": 1024**3}
_MIN_SIZE_BYTES, _MAX_SIZE_BYTES = 64 * 1024**2, 1000 * 1024**3
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_size(value: object) -> int:
    """Parse a size such as `512MB` or `2GB` into bytes."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    size_bytes = int(match[1]) * _UNIT_BYTES[match[2].upper()] if match else 0
    if not _MIN_SIZE_BYTES <= size_bytes <= _MAX_SIZE_BYTES:
        raise ValueError(f"expected a size from 64MB to 1000GB, such as 512MB (got {yaml.format_value(value)})")
    return size_bytes


def parse_duration(value: object) -> float:
    """Parse a duration such as `30s`, `5m`, `1.5h`, `2d` or a number of seconds into seconds."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _MAX_DURATION_S else math.inf
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
    if seconds is None or not 0 < seconds <= _MAX_DURATION_S:
        hint = "Write a number with s, m, h or d, such as 30s, 5m, 1.5h or 2d; at most ten years."
        raise UsageError(f"invalid duration {yaml.format_value(value)}", hint=hint)
    return seconds


def check_unit(value: object) -> None:
    """Raise ValueError for a large whole number without a unit, which is probably meant in milliseconds."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= _MIN_MILLISECONDS:
        raise ValueError(
            f"the unit of {yaml.format_value(value)} is missing: a number is in seconds. "
            f"Write {value / 1000:g}s if you mean milliseconds, or {value}s"
        )


def _parse_duration_field(value: object) -> float:
    check_unit(value)
    try:
        return parse_duration(value)
    except UsageError as error:
        raise ValueError(f"{error.message}. {error.hint}") from None


# A duration in a file, a number of seconds in the program.
Duration = Annotated[
    float,
    BeforeValidator(
        _parse_duration_field, json_schema_input_type=Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*[smhd]?$")] | float
    ),
]


def _check_variable_name(name: object) -> object:
    if isinstance(name, str) and not _VARIABLE.fullmatch(name):
        raise ValueError(f"invalid name of an environment variable: {yaml.format_value(name)}")
    return name


VariableName = Annotated[StrictStr, BeforeValidator(_check_variable_name)]


def _parse_dollars(value: object) -> object:
    if value == "none":
        return math.inf
    if isinstance(value, bool | str) or (isinstance(value, int | float) and not 0 < value < math.inf):
        raise ValueError(f"expected dollars, such as 5.0, or `none` (got {yaml.format_value(value)})")
    return value


Dollars = Annotated[float, BeforeValidator(_parse_dollars)]  # infinite if the file has `none`


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WebSearch(_Part):
    """`web_search:` of the settings: the URL of a SearXNG server, or a provider."""

    searxng: Annotated[StrictStr, Field(pattern=r"^https?://[^\s]+$")] | None = None
    provider: Literal["native", "tavily", "brave"] | None = None

    @model_validator(mode="after")
    def _check_engine(self) -> WebSearch:
        if (self.searxng is None) == (self.provider is None):
            raise ValueError("set either `searxng` (a URL) or `provider`")
        return self


class ModelTimeouts(_Part):
    """`model_timeouts:` of the settings, in seconds. A provider that exceeds one counts as unreachable.

    A model that thinks for long can be silent between two bytes of its response.
    """

    connect: Duration = 10.0
    first_byte: Duration = 120.0  # from the request to the headers of the response
    between_bytes: Duration = 300.0


class Approvals(_Part):
    """`approvals:` of the settings. Without a timeout an approval waits forever."""

    timeout: Duration | None = None


class Memory(_Part):
    """`memory:` of the settings: the maximum size of the memory block of a prompt."""

    limit_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] = 8000


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=str)]


class HallSettings(_Part):
    """`hall:` of the settings: the idle timeout of the hall, and the memory limit of the process of a run."""

    idle: Duration = 60.0
    run_memory: Size = 1024**3  # bytes above the size of the process at its start


class Commissions(_Part):
    """`commissions:` of the settings: the maximum number that run at the same time, in all projects."""

    max: Annotated[StrictInt, Field(gt=0, le=1000)] = 10


class Manager(_Part):
    """`manager:` of the settings: the actions that need approval."""

    asks_before: tuple[Literal["commission", "pull_request", "meeting"], ...] = ()


class WorkerCreation(_Part):
    """`worker_creation:` of the settings: the defaults and permissions of workers that workers create."""

    model: StrictStr | None = None
    sandboxes: dict[str, Any] = Field(default_factory=dict)
    tools: tuple[StrictStr, ...] = ()
    tool_rules: dict[str, Any] = Field(default_factory=dict)
    attachment_policy: dict[str, Any] = Field(default_factory=dict)
    allow_workers: tuple[StrictStr, ...] = ()


class _File(_Part):
    """The fields of a settings file. A missing or empty field is None."""

    model: Annotated[StrictStr, Field(min_length=1)] | None = None
    budget: Dollars | None = None
    env: tuple[VariableName, ...] | None = None
    web_search: WebSearch | None = None
    approvals: Approvals | None = None
    model_timeouts: ModelTimeouts | None = None
    memory: Memory | None = None
    worker_creation: WorkerCreation | None = None
    hall: HallSettings | None = None
    commissions: Commissions | None = None
    manager: Manager | None = None
    projects: dict[str, Any] | None = None


_USER_ONLY = ("web_search", "model_timeouts", "worker_creation", "hall", "commissions", "projects")


class Settings(_Part):
    """The settings of a request: the user's settings, tightened by the project's."""

    model: str | None = None
    budget: float | None = DEFAULT_BUDGET  # dollars per command; None if the settings say `none`
    env: tuple[str, ...] = ()  # names of variables that a request may carry
    env_refused: tuple[str, ...] = ()  # names that the project requests and the user does not allow
    web_search: WebSearch | None = None
    approvals: Approvals = Approvals()
    model_timeouts: ModelTimeouts = ModelTimeouts()
    memory: Memory = Memory()
    worker_creation: WorkerCreation | None = None
    hall: HallSettings = HallSettings()
    commissions: Commissions = Commissions()
    manager: Manager = Manager()
    projects: dict[str, Any] = Field(default_factory=dict)


def load_settings(home: Home, root: Path) -> Settings:
    """Load the settings of a home, tightened by the project at `root`."""
    user = _read(home.settings, check_foreign=True)
    project = _read(root / PROJECT_SETTINGS, user_only=_USER_ONLY)
    allowed = user.env or ()
    wanted = project.env if project.env is not None else allowed
    budgets = (DEFAULT_BUDGET if user.budget is None else user.budget, project.budget)
    budget = min(budget for budget in budgets if budget is not None)
    timeouts = (file.approvals.timeout for file in (user, project) if file.approvals)
    memory = user.memory or Memory()
    managers = [file.manager for file in (user, project) if file.manager]
    return Settings(
        model=project.model or user.model,
        budget=None if math.isinf(budget) else budget,
        env=tuple(name for name in allowed if name in wanted),
        env_refused=tuple(name for name in wanted if name not in allowed),
        web_search=user.web_search,
        approvals=Approvals(timeout=min((timeout for timeout in timeouts if timeout is not None), default=None)),
        memory=min(memory, project.memory or memory, key=lambda part: part.limit_tokens),
        model_timeouts=user.model_timeouts or ModelTimeouts(),
        worker_creation=user.worker_creation,
        hall=user.hall or HallSettings(),
        commissions=user.commissions or Commissions(),
        manager=Manager(
            asks_before=tuple(dict.fromkeys(action for manager in managers for action in manager.asks_before))
        ),
        projects=user.projects or {},
    )


def _read(path: Path, *, check_foreign: bool = False, user_only: tuple[str, ...] = ()) -> _File:
    if not path.exists():
        return _File()
    source = yaml.read(path)
    data = cast("object", source.data)
    if data is None:
        return _File()
    if check_foreign and isinstance(data, dict) and _is_foreign(cast("dict[str, Any]", data)):
        raise HallUnavailable(
            "cannot use this settings file: it belongs to another program",
            where=str(path),
            hint=f"Set {HOME_VARIABLE} to a folder of Guildhall's own, such as ~/.guildhall."
            + (" In Guildhall `projects:` is a mapping of names, each with its `path:`." if "projects" in data else ""),
        )
    file = yaml.validate(_File, source)
    for name in user_only:
        if getattr(file, name) is not None:
            raise source.error("a project cannot set this field", (name,), f"Set {name} in config.yaml of your home.")
    if file.model:
        file = file.model_copy(update={"model": resolve_script_path(file.model, path.parent)})
    return file


def _is_foreign(data: dict[str, Any]) -> bool:
    """Return True if another program wrote the file: it has no field of Guildhall, or a list in `projects`."""
    ours = set(_File.model_fields)
    if isinstance(data.get("projects"), list):
        ours.discard("projects")
    return bool(data) and not any(name in ours or nearest(name, ours - {"projects"}) for name in data)


def resolve_script_path(model: str, folder: Path) -> str:
    """Return the name of a model. The path in `script:PATH` is resolved against `folder`."""
    kind, _, rest = model.partition(":")
    return f"script:{folder / rest}" if kind == "script" and rest else model
