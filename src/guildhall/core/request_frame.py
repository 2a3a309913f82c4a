"""Request frame: the folder, the project and the allowed environment variables of the caller of a request.

A frame travels with every request. The hall therefore works in the caller's folder with the caller's allowed
variables, never with its own.

Invariant: the stored frame has only the names of the variables, because their values may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guildhall.core.paths import project_root

MODEL_VARIABLE = "GUILDHALL_MODEL"

# Variables that child processes may see without being named in the settings.
_HARMLESS = frozenset({"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "NO_COLOR"})
# Variables for commands of the user, such as git. Workers never see them.
_USER_VARIABLES = frozenset(
    {"HOME", "USER", "LOGNAME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"}
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The origin of a request."""

    cwd: Path
    root: Path
    # The checkout of the project at `root` that this request reads and changes.
    worktree: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    interactive: bool = False  # True if the user can answer asks at a terminal
    model: str | None = None  # value of --model or GUILDHALL_MODEL
    caller: str = "cli"
    # Keys of providers, for the model door and web search. They are not recorded or passed to child processes.
    keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    user_env: Mapping[str, str] = field(default_factory=dict[str, str])  # variables for commands of the user

    @staticmethod
    def here(
        cwd: Path,
        environ: Mapping[str, str],
        *,
        allowed: frozenset[str] = frozenset(),
        interactive: bool = False,
        model: str | None = None,
        caller: str = "cli",
        keys: Iterable[str] = (),
    ) -> Frame:
        """Return the frame of a request in `cwd`, with the harmless and the `allowed` variables.

        `keys`: names of the variables with keys of providers.
        """
        names = _HARMLESS | allowed
        return Frame(
            cwd=cwd,
            root=project_root(cwd),
            env={name: value for name, value in environ.items() if name in names},
            interactive=interactive,
            model=model or environ.get(MODEL_VARIABLE) or None,
            caller=caller,
            keys={name: environ[name] for name in keys if environ.get(name)},
            user_env={name: value for name, value in environ.items() if name in _USER_VARIABLES},
        )

    @property
    def project_folder(self) -> Path:
        """Return the folder of the project for this request: the worktree, or the root without one."""
        return self.worktree or self.root

    def harmless_env(self) -> dict[str, str]:
        return {name: value for name, value in self.env.items() if name in _HARMLESS}

    def to_record(self) -> RecordedFrame:
        """Return the frame as it is stored."""
        return RecordedFrame(
            cwd=self.cwd,
            root=self.root,
            worktree=self.worktree,
            env=tuple(sorted(self.env)),
            interactive=self.interactive,
            model=self.model,
            caller=self.caller,
        )


@dataclass(frozen=True, kw_only=True)
class RecordedFrame:
    """The frame of a run as it is stored, with the names of variables only."""

    cwd: Path
    root: Path
    worktree: Path | None = None
    env: tuple[str, ...] = ()
    interactive: bool = False
    model: str | None = None
    caller: str = "cli"

    def as_dict(self) -> dict[str, object]:
        worktree = {"worktree": str(self.worktree) if self.worktree else None}
        return {**vars(self), "cwd": str(self.cwd), "root": str(self.root), **worktree, "env": list(self.env)}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> RecordedFrame:
        """Return the frame of a record that `as_dict` created."""
        worktree = Path(record["worktree"]) if record["worktree"] else None
        fields: dict[str, Any] = {**record, "cwd": Path(record["cwd"]), "root": Path(record["root"])}
        fields |= {"worktree": worktree, "env": tuple(record["env"])}
        return RecordedFrame(**fields)
