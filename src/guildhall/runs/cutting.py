"""An answer that the person has cut off: what there was of it is the answer, and what was reserved is paid."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from guildhall.models.door import OUTPUT_CEILING
from guildhall.runs import limits, records, shown
from guildhall.runs.record.entries import ModelAnswered, ModelAsked, ModelCallFailed, Tokens

if TYPE_CHECKING:
    from guildhall.runs.journal import Journal
    from guildhall.runs.record.entries import Entry

CUT_OFF = "[The person interrupted here.]"


async def cut_short(journal: Journal, text: str) -> bool:
    """Puts on record that the question that waits for an answer has had this one. False: none waits for any.

    To be called while nobody executes the run.
    """
    from pydantic_ai.messages import ModelResponse, TextPart

    open_ones = [asked for asked in journal.all(ModelAsked) if not journal.last(asked.key or "", ModelAnswered)]
    if not open_ones:
        return False
    said = f"{text.rstrip()}\n\n{CUT_OFF}" if text.strip() else CUT_OFF
    response = shown.dump([ModelResponse(parts=[TextPart(said)])])[0]
    usage, cost = _taken(journal, open_ones[-1])
    total = limits.used_with(journal, **usage, cost=cost)
    await journal.append(
        ModelAnswered(response=response, usage=usage, cost_usd=cost, cut_off=True),
        key=open_ones[-1].key,
        also=lambda connection: records.change_run(connection, journal.run, **asdict(total)),
    )
    return True


def _taken(journal: Journal, asked: Entry[ModelAsked]) -> tuple[Tokens, float | None]:
    """The tokens and dollars of a call whose end nobody has seen: the most that it can have taken.

    That is what counts after a crash too, so that no limit is passed by interrupting. One that had failed is paid for
    already, by what is on record of that.
    """
    if journal.last(asked.key or "", ModelAsked, ModelCallFailed) is not asked:
        return {"input_tokens": 0, "output_tokens": 0}, None
    held, most = asked.data.reserved_tokens, asked.data.max_tokens
    answer = min(held, OUTPUT_CEILING if most is None else most)
    return {"input_tokens": held - answer, "output_tokens": answer}, asked.data.reserved_usd
