"""Model check: find out whether a worker has a usable model before a commission or meeting is created for it.

Does not call the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.models.catalog import AUTO, CURSOR, REPLAY, SCRIPT
from guildhall.models.credentials import WITH_LOGIN
from guildhall.models.providers import split_name
from guildhall.models.scripted.source import load_script
from guildhall.runs.assembly.preflight import fitting
from guildhall.runs.execution.grants import unpriced
from guildhall.workers.registry import BY_OPTION, Choice, choose_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.models.model import Source
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class UsableModels:
    """What a hall knows of the models that workers may be given."""

    settings: Callable[[Frame], Settings]
    source: Callable[[str, Frame, bool], Source]
    priced: Callable[[str, Frame], bool | None]  # None: that cannot be known

    def later(self, worker: Worker, frame: Frame, *, override: str | None = None, in_dollars: bool = False) -> None:
        """Raises where the worker has none, or one that nobody can have. It need not answer now: no key is needed.

        `in_dollars`: a limit in dollars must be kept.
        """
        choice = self.chosen(worker, frame, override)
        if choice.by in ("override", "frame"):
            _refuse_unknown(choice.model)
        if in_dollars and self.priced(choice.model, frame) is False:
            raise unpriced(choice.model)

    def now(self, worker: Worker, frame: Frame) -> None:
        """Raises where nobody would answer at once."""
        choice = self.chosen(worker, frame)
        self.source(choice.model, frame, worker.definition.runtime == WITH_LOGIN)

    def chosen(self, worker: Worker, frame: Frame, override: str | None = None, *, given_by: str = BY_OPTION) -> Choice:
        """The model. Raises where there is none; `given_by` is how a person could have named one."""
        choice = choose_model(worker, frame, self.settings(frame), override=override, given_by=given_by)
        return fitting(worker, choice)


def _refuse_unknown(model: str) -> None:
    if model.startswith(SCRIPT):
        load_script(Path(model.removeprefix(SCRIPT)))
    elif model != AUTO and not model.startswith((CURSOR, REPLAY)):
        split_name(model)
