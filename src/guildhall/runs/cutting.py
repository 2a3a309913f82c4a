"""An answer that the person has cut off: what there was of it counts as the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.runs import shown

if TYPE_CHECKING:
    from guildhall.runs.journal import Journal

CUT_OFF = "[The person interrupted here.]"


async def cut_short(journal: Journal, text: str) -> bool:
    """Puts on record that the question that waits for an answer has had this one. False: none waits for any.

    To be called while nobody executes the run. What the model had to be paid for it is not known.
    """
    from pydantic_ai.messages import ModelResponse, TextPart

    open_ones = [
        entry.key for entry in journal.kind("model_asked") if not journal.last(entry.key or "", "model_answered")
    ]
    if not open_ones:
        return False
    said = f"{text.rstrip()}\n\n{CUT_OFF}" if text.strip() else CUT_OFF
    response = shown.dump([ModelResponse(parts=[TextPart(said)])])[0]
    usage = {"input_tokens": 0, "output_tokens": 0}
    data = {"response": response, "usage": usage, "cost_usd": None}
    await journal.append("model_answered", data, key=open_ones[-1])
    return True
