"""The ids that people name. The letter says what one is of: given to the wrong command, it is told which is right."""

from __future__ import annotations

from functools import partial

from guildhall.core.errors import NotFound
from guildhall.core.ids import ASK, COMMISSION, JOB, MEETING, RUN, is_id

# What it is, what one looks like, and the command that lists them.
_KINDS = {
    RUN: ("run", "r-7k2m9x4qpw", "guild ls --all"),
    ASK: ("ask", "a-3h8n5w2kcd", "guild ls"),
    JOB: ("job", "j-7k2m9x4qpw", "guild job ls"),
    COMMISSION: ("commission", "c-7k2m9x4qpw", "guild commission ls"),
    MEETING: ("meeting", "t-7k2m9x4qpw", "guild meeting ls"),
}


def kind_of(text: str) -> str | None:
    """What the text is the id of, with its article; None: it has the form of no id."""
    found = next((noun for letter, (noun, *_) in _KINDS.items() if is_id(text, letter)), None)
    return found and f"{'an' if found == 'ask' else 'a'} {found}"


def short(text: str) -> str:
    """A word of the command line, as an error shows it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _id(text: str, letter: str) -> str:
    """The text, if it has the form of such an id."""
    if is_id(text, letter):
        return text
    noun, example, listing = _KINDS[letter]
    if (other := kind_of(text)) is not None:
        article = "an" if noun == "ask" else "a"
        raise NotFound(f"{text} is {other}, not {article} {noun}", hint=_what_to_do(text))
    raise NotFound(
        f"there is no {noun} {short(text)}", hint=f"{noun.capitalize()}s look like {example}; `{listing}` lists them."
    )


def _what_to_do(text: str) -> str:
    if is_id(text, ASK):
        return f"Answer it: guild answer {text}"
    more = f". To go on with it: guild resume {text}" if is_id(text, RUN) else ""
    return f"All about it, and what it asks: guild show {text}{more}"


run_id = partial(_id, letter=RUN)
ask_id = partial(_id, letter=ASK)
job_id = partial(_id, letter=JOB)
commission_id = partial(_id, letter=COMMISSION)
meeting_id = partial(_id, letter=MEETING)
