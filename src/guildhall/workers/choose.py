"""Which model a run uses: the worker's own, else the caller's, else the request's, else the settings'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from guildhall.core.config import anchored
from guildhall.core.errors import NoModel

if TYPE_CHECKING:
    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.workers.model import Worker

Chooser = Literal["override", "worker", "caller", "frame", "settings"]
BY_OPTION = "--model provider:model"  # how a person gives a run a model
BY_CONFIG = """--config '{"model": "provider:model"}'"""  # and a job
_ANYWHERE = "GUILDHALL_MODEL, `model:` in the worker, or in your settings."
# Neither an option nor a variable of whoever dispatches reaches it.
_FOR_DISPATCHED = f"Dispatch with {BY_CONFIG}, or give one with `model:` in the worker, or in your settings."


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model, and who chose it."""

    model: str
    by: Chooser


def choose_model(
    worker: Worker,
    frame: Frame,
    settings: Settings,
    *,
    caller: str | None = None,
    override: str | None = None,
    given_by: str = BY_OPTION,
) -> Choice:
    """The model of a run. `override` beats all; a script is looked for where it was named.

    `given_by` is how a person could have named one.
    """
    candidates: tuple[tuple[Chooser, str | None], ...] = (
        ("override", override),
        ("worker", worker.definition.model),
        ("caller", caller),
        ("frame", frame.model),
        ("settings", settings.model),
    )
    for by, model in candidates:
        if model:
            folder = worker.beside(frame) if by == "worker" else frame.cwd
            return Choice(model=anchored(normal(model), folder), by=by)
    raise NoModel(
        f"the worker {worker.name!r} names no model, and neither does anyone else",
        where=worker.place,
        hint=_FOR_DISPATCHED if frame.caller == "member" else f"Give one with {given_by}, {_ANYWHERE}",
    )


def normal(model: str) -> str:
    """`provider/model` as `provider:model`; what already has a colon before the first slash stays as it is."""
    provider, slash, rest = model.partition("/")
    return f"{provider}:{rest}" if slash and provider and rest and ":" not in provider else model
