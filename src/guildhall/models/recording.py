"""Answers from a recorded run: `replay:RUN` as the model of a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.model import OnText, Query


@dataclass(frozen=True)
class RecordingSource:
    """Gives the answers of a recorded run again, one after another. They were paid for then and cost nothing now."""

    run: str
    answers: Sequence[ModelResponse]

    @property
    def name(self) -> str:
        return f"replay:{self.run}"

    def cost(self, usage: RequestUsage) -> float | None:
        return 0.0

    def takes(self, media_type: str) -> bool:
        return True

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        if query.step >= len(self.answers):
            raise ModelFailed(
                f"the recording of {self.run} has {len(self.answers)} answers and another one was asked for",
                hint="The new run took another path than the recorded one; use a real model or a script.",
            )
        answer = self.answers[query.step]
        if answer.text:
            on_text(answer.text)
        return answer
