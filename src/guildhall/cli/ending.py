"""How a run stands that was waited for: what came of it, why it ended, or what it asks, whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.follow import how_to_go_on, text_of
from guildhall.cli.jobs import by_job, id_of

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.interface import Shown


def print_ending(shown: Shown, screen: Screen) -> None:
    """The result; or else why there is none, what is asked, and how to go on."""
    run = shown.run
    if run.status == "completed":
        screen.result(text_of(run.output))
    if run.status == "cancelled":
        screen.note(f"guild: {id_of(run)} was cancelled: there is no result", "red")
    elif run.status == "failed" or run.error:
        error = run.error or {}
        where = f"{error['where']}: " if error.get("where") else ""
        said = error.get("message") or run.reason or "no reason given"
        screen.note(f"guild: {id_of(run)} {run.status}: {where}{said}", "red")
        if hint := error.get("hint"):
            screen.note(by_job(str(hint), run))
    for ask in shown.asks:
        if ask.status == "open" and ask.question.body:
            screen.note(screen.barred(ask.question.body, wrapped=screen.err.isatty()))
    for line in how_to_go_on(shown, screen):
        screen.note(line)
