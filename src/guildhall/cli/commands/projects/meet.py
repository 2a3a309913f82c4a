"""`guild meet WORKER|MEETING [WORDS]`: starts a meeting with a worker, or returns to an open meeting.

Does not conduct the conversation (see `cli.conversation`) or end a meeting (see `meeting`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import OUTPUT, Context, argument, command
from guildhall.cli.conversation import Conversation
from guildhall.cli.parser import read_text
from guildhall.cli.targets import worker_name
from guildhall.core.errors import UsageError
from guildhall.core.ids import MEETING, is_id

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen


@command(
    argument("who", metavar="WORKER|MEETING", help="the worker to meet, or the id of a meeting to go back to"),
    argument("words", metavar="WORDS", nargs="?", help="what to say first; `-`: standard input"),
    argument("--say", metavar="TEXT", action="append", default=[], help="and then this; may be repeated"),
    argument("--project", metavar="NAME", help="the project to meet in; without it the one of this folder"),
    argument("--model", metavar="M", help="used where the worker names none"),
    argument("--renew", action="store_true", help="go on in a new session, told in short what was said"),
    argument("--close", action="store_true", help="close the meeting afterwards, with notes"),
    OUTPUT,
)
def meet(ctx: Context) -> int:
    args, screen = ctx.args, ctx.screen
    back = is_id(args.who, MEETING)
    who = args.who if back else worker_name(args.who)
    if back and args.project:
        raise UsageError("--project: a meeting is where it is", hint="Leave it out.")
    if args.renew and not back:
        raise UsageError("--renew goes with a meeting that there is", hint="guild meet t-... --renew")
    conversation = Conversation(screen, model=args.model)
    at_terminal = screen.interactive and screen.wanted.form == "text"
    words = _first_words(args.words, args.say, at_terminal=at_terminal, back=back)
    if at_terminal and not args.say and not args.close:
        if back:
            code = conversation.come_back(who, words, renew=args.renew)
        else:
            code = conversation.begin(who, words, project=args.project)
        return conversation.go_on() if code == exit_codes.DONE and conversation.is_open else code
    said = [*([words] if words is not None else []), *args.say]
    if not back and not said:
        raise UsageError("nothing is said", hint='Say something: guild meet WORKER "...", or --say "..."')
    return conversation.scripted(who, said, back=back, project=args.project, renew=args.renew, close=args.close)


def go_back(id: str, screen: Screen, **more: Any) -> int:
    """Resume a meeting: wait for the answer that is due; at a terminal, continue the conversation."""
    conversation = Conversation(screen, more=more)
    if not screen.interactive or screen.wanted.form != "text":
        return conversation.scripted(id, (), back=True, project=None, renew=False, close=False)
    code = conversation.come_back(id, None, renew=False)
    return conversation.go_on() if code == exit_codes.DONE else code


def _first_words(given: str | None, more: list[str], *, at_terminal: bool, back: bool) -> str | None:
    """Return the first words from the command line or from the standard input of a program, or None."""
    if given is not None:
        return read_text(given, "text")
    if at_terminal or more or sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return None
    text = read_text("-", "text")
    return text if text.strip() or not back else None
