"""Models that are never asked here: the program of a runtime asks them itself, with a key of the person's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import ModelFailed, ModelUnusable
from guildhall.models.keys import KEYS, variable_with_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.model import OnText, Query


@dataclass(frozen=True)
class Elsewhere:
    """Stands where the answers would come from: what they cost is not known, and nothing but text is handed over."""

    name: str

    def cost(self, usage: RequestUsage) -> float | None:
        return None

    def takes(self, media_type: str) -> bool:
        return False

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        raise ModelFailed(f"{self.name} is asked by the program that executes the run, and by nobody else")


def elsewhere(model: str, environ: Mapping[str, str]) -> Elsewhere:
    """The model, if there is a key for it."""
    provider = model.partition(":")[0]
    if variable_with_key(provider, environ) is None:
        variable = KEYS[provider][0]
        raise ModelUnusable(f"{model} needs a key, and {variable} is not set", hint=f"export {variable}=...")
    return Elsewhere(model)
