"""Settings: reads `config.yaml` of the home and lets a project's `guildhall.yaml` tighten it.

Does not resolve the model of a run (see `workers.registry`). Sizes such as `512MB` and durations such as `1.5h` are
parsed here.

Invariant: a project can only tighten the user's permissions and limits. Its author may be a stranger to the user that
runs workers in it. The project may name the default model.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, model_validator

from guildhall.core import yaml
from guildhall.core.errors import HallUnavailable, UsageError
from guildhall.core.paths import HOME_VARIABLE, PROJECT_SETTINGS, Home
from guildhall.core.text import nearest

if TYPE_CHECKING:
    from pathlib import Path


DEFAULT_BUDGET = 5.0

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)\s*")
_MAX_DURATION_S = 10 * 365 * 86400.0
_SIZE = re.compile(r"\s*(\d{1,6})\s*([mMgG][bB])\s*")
_BYTES = {"MB": 1024**2, "GB": 1024**3}
_MIN_SIZE_BYTES, _MAX_SIZE_BYTES = 64 * 1024**2, 1000 * 1024**3
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_size(value: object) -> int:
    """Parse a size such as `512MB` or `2GB` into bytes."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    count = int(found[1]) * _BYTES[found[2].upper()] if found else 0
    if not _MIN_SIZE_BYTES <= count <= _MAX_SIZE_BYTES:
        raise ValueError("expected a size from 64MB to 1000GB, such as 512MB or 2GB")
    return count


def parse_duration(value: object) -> float:
    """Parse a duration such as `30s`, `5m`, `1.5h`, `2d` or a number of seconds into seconds."""
    seconds: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= _MAX_DURATION_S else math.inf
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        seconds = float(match[1]) * _UNITS[match[2]]
    if seconds is None or not 0 < seconds <= _MAX_DURATION_S:
        hint = "Write a number with s, m, h or d, such as 30s, 5m, 1.5h or 2d; at most ten years."
        raise UsageError(f"{yaml.format_value(value)} is not a duration", hint=hint)
    return seconds


def _seconds(value: object) -> float:
    try:
        return parse_duration(value)
    except UsageError as error:
        raise ValueError(f"{error.message}. {error.hint}") from None


# A field that is a duration in the file and seconds in the program.
Duration = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*[smhd]?$")] | float),
]


def _variable(name: object) -> object:
    if isinstance(name, str) and not _VARIABLE.fullmatch(name):
        raise ValueError(f"{yaml.format_value(name)} is not a valid name of an environment variable")
    return name


VariableName = Annotated[StrictStr, BeforeValidator(_variable)]


def _dollars(value: object) -> object:
    if value == "none":
        return math.inf
    if isinstance(value, bool | str) or (isinstance(value, int | float) and not 0 < value < math.inf):
        raise ValueError(f"expected dollars, such as 5.0, or `none` (got {yaml.format_value(value)})")
    return value


Dollars = Annotated[float, BeforeValidator(_dollars)]  # a field with dollars, or `none`, which is infinite


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WebSearch(_Part):
    """`web_search:` of the settings: a SearXNG server of the user, or a provider."""

    searxng: Annotated[StrictStr, Field(pattern=r"^https?://[^\s]+$")] | None = None
    provider: Literal["native", "tavily", "brave"] | None = None

    @model_validator(mode="after")
    def _one(self) -> WebSearch:
        if (self.searxng is None) == (self.provider is None):
            raise ValueError("set either `searxng` (a URL) or `provider`")
        return self


class Approvals(_Part):
    """`approvals:` of the settings. Without a timeout an approval waits forever."""

    timeout: Duration | None = None


class Memory(_Part):
    """`memory:` of the settings: the size of the memory block of a prompt."""

    limit_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] = 8000


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=str)]


class HallSettings(_Part):
    """`hall:` of the settings: the idle timeout of the hall, and the memory of the process of a run."""

    idle: Duration = 60.0
    run_memory: Size = 1024**3  # bytes above the size at the start


class Commissions(_Part):
    """`commissions:` of the settings: how many may run at the same time, in all projects."""

    max: Annotated[StrictInt, Field(gt=0, le=1000)] = 10


class Manager(_Part):
    """`manager:` of the settings: the actions that need approval."""

    asks_before: tuple[Literal["commission", "pull_request", "meeting"], ...] = ()


class WorkerCreation(_Part):
    """`worker_creation:` of the settings: the rights of workers that workers create."""

    model: StrictStr | None = None
    sandboxes: dict[str, Any] = Field(default_factory=dict)
    tools: tuple[StrictStr, ...] = ()
    tool_rules: dict[str, Any] = Field(default_factory=dict)


class _File(_Part):
    """A settings file. None is a missing or empty field."""

    model: Annotated[StrictStr, Field(min_length=1)] | None = None
    budget: Dollars | None = None
    env: tuple[VariableName, ...] | None = None
    web_search: WebSearch | None = None
    approvals: Approvals | None = None
    memory: Memory | None = None
    worker_creation: WorkerCreation | None = None
    hall: HallSettings | None = None
    commissions: Commissions | None = None
    manager: Manager | None = None
    projects: dict[str, Any] | None = None


_USER_ONLY = ("web_search", "worker_creation", "hall", "commissions", "projects")


class Settings(_Part):
    """The settings of a request: the user's settings, tightened by the project's."""

    model: str | None = None
    budget: float | None = DEFAULT_BUDGET  # dollars per command; None: `none` was written
    env: tuple[str, ...] = ()  # names of variables that may travel with a request
    env_refused: tuple[str, ...] = ()  # names that the project requests and the user's settings do not allow
    web_search: WebSearch | None = None
    approvals: Approvals = Approvals()
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
    budget = min(one for one in budgets if one is not None)
    timeouts = (one.approvals.timeout for one in (user, project) if one.approvals)
    memory = user.memory or Memory()
    managers = [one.manager for one in (user, project) if one.manager]
    return Settings(
        model=project.model or user.model,
        budget=None if math.isinf(budget) else budget,
        env=tuple(name for name in allowed if name in wanted),
        env_refused=tuple(name for name in wanted if name not in allowed),
        web_search=user.web_search,
        approvals=Approvals(timeout=min((one for one in timeouts if one is not None), default=None)),
        memory=min(memory, project.memory or memory, key=lambda part: part.limit_tokens),
        worker_creation=user.worker_creation,
        hall=user.hall or HallSettings(),
        commissions=user.commissions or Commissions(),
        manager=Manager(asks_before=tuple(dict.fromkeys(name for one in managers for name in one.asks_before))),
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
            "this settings file belongs to another program",
            where=str(path),
            hint=f"Set {HOME_VARIABLE} to a folder of Guildhall's own, such as ~/.guildhall."
            + (" In Guildhall `projects:` is a mapping of names, each with its `path:`." if "projects" in data else ""),
        )
    read = yaml.validate(_File, source)
    for name in user_only:
        if getattr(read, name) is not None:
            raise source.error("a project cannot set this field", (name,), "Set it in config.yaml in your home.")
    if read.model:
        read = read.model_copy(update={"model": resolve_script_path(read.model, path.parent)})
    return read


def _is_foreign(data: dict[str, Any]) -> bool:
    """Return True if another program wrote the file: it has none of our fields, or `projects` as a list."""
    ours = set(_File.model_fields)
    if isinstance(data.get("projects"), list):
        ours.discard("projects")
    return bool(data) and not any(name in ours or nearest(name, ours - {"projects"}) for name in data)


def resolve_script_path(model: str, folder: Path) -> str:
    """Return the name of a model. The path of a script is made absolute, relative to `folder`."""
    kind, _, rest = model.partition(":")
    return f"script:{folder / rest}" if kind == "script" and rest else model
