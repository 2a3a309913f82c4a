"""Answers from a recorded run: `replay:RUN` as the model of a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.model import OnText, Query


@dataclass(frozen=True)
class RecordingSource:
    """Gives the answers of a recorded run again, one after another. They were paid for then and cost nothing now.

    Where the recorded run had called others, each run of the new tree gets the answers of the one in its place; else
    whoever asks gets those of the run, whatever the worker is named.
    """

    run: str
    tree: Mapping[tuple[str, int], Sequence[ModelResponse]]  # by worker and which run of it; the run itself first

    @property
    def name(self) -> str:
        return f"replay:{self.run}"

    def cost(self, usage: RequestUsage) -> float | None:
        return 0.0

    def takes(self, media_type: str) -> bool:
        return True

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        answers = self._of(query)
        if query.step >= len(answers):
            raise _other_path(f"has {len(answers)} answers and another one was asked for", self.run)
        answer = answers[query.step]
        if answer.text:
            on_text(answer.text)
        return answer

    def _of(self, query: Query) -> Sequence[ModelResponse]:
        if len(self.tree) == 1:
            return next(iter(self.tree.values()))
        found = self.tree.get((query.worker, query.ordinal))
        if found is None:
            raise _other_path(f"has no run {query.ordinal + 1} of the worker {query.worker}", self.run)
        return found


def _other_path(what: str, run: str) -> ModelFailed:
    return ModelFailed(
        f"the recording of {run} {what}",
        hint="The new run took another path than the recorded one; use a real model or a script.",
    )
