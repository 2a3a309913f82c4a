"""`guild meet`: talk with a worker in a project; leave, and come back to it days later."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import worker_name
from guildhall.cli.conversation import Talk
from guildhall.cli.follow import output_argument
from guildhall.cli.targets import text_of
from guildhall.core.errors import UsageError
from guildhall.core.ids import MEETING, is_id

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "who", metavar="WORKER|MEETING", help="the worker to meet, or the id of a meeting to go back to"
    )
    parser.add_argument("words", metavar="WORDS", nargs="?", help="what to say first; `-`: standard input")
    parser.add_argument("--say", metavar="TEXT", action="append", default=[], help="and then this; may be repeated")
    parser.add_argument("--project", metavar="NAME", help="the project to meet in; without it the one of this folder")
    parser.add_argument("--model", metavar="M", help="used where the worker names none")
    parser.add_argument("--renew", action="store_true", help="go on in a new session, told in short what was said")
    parser.add_argument("--close", action="store_true", help="close the meeting afterwards, with notes")
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    back = is_id(args.who, MEETING)
    who = args.who if back else worker_name(args.who)
    if back and args.project:
        raise UsageError("--project: a meeting is where it is", hint="Leave it out.")
    if args.renew and not back:
        raise UsageError("--renew goes with a meeting that there is", hint="guild meet t-... --renew")
    talk = Talk(screen, model=args.model)
    words = _first(args.words, args.say, asked=screen.interactive and screen.wanted.form == "text", back=back)
    terminal = screen.interactive and screen.wanted.form == "text" and not args.say and not args.close
    if terminal:
        code = talk.come_back(who, words, renew=args.renew) if back else talk.begin(who, words, project=args.project)
        return talk.go_on() if code == exit_codes.DONE and talk.is_open else code
    said = [*([words] if words is not None else []), *args.say]
    if not back and not said:
        raise UsageError("nothing is said", hint='Say something: guild meet WORKER "...", or --say "..."')
    return talk.scripted(who, said, back=back, project=args.project, renew=args.renew, close=args.close)


def go_back(id: str, screen: Screen, **more: Any) -> int:
    """`guild resume` of a meeting: what was said last is answered, and a person at a terminal goes on from there."""
    talk = Talk(screen, more=more)
    if not screen.interactive or screen.wanted.form != "text":
        return talk.scripted(id, (), back=True, project=None, renew=False, close=False)
    code = talk.come_back(id, None, renew=False)
    return talk.go_on() if code == exit_codes.DONE else code


def _first(given: str | None, more: list[str], *, asked: bool, back: bool) -> str | None:
    """The first words, as far as they are given: on the command, or by a program on standard input."""
    if given is not None:
        return text_of(given, "text")
    if asked or more or sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return None
    text = text_of("-", "text")
    return text if text.strip() or not back else None
