"""`guild answer`, `guild approve`, `guild deny`: record what the person says, and let the run go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.resume import go_on
from guildhall.cli.connection import with_hall
from guildhall.cli.follow import output_argument
from guildhall.cli.format.member_jobs import how_to_answer, question_meant
from guildhall.cli.format.runs import how_to_go_on, result_of
from guildhall.cli.prompt import NoAnswer, ask_person, read_choice
from guildhall.cli.targets import ask_id
from guildhall.core.errors import Conflict, MemberRefused, UsageError
from guildhall.members.model import of_member
from guildhall.runs.model import ASIDE, Answer, choices_in_words

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.meetings.model import MeetingShown
    from guildhall.runs.model import Ask

_SEVERAL = 2
_CHOICES = {"approve": "yes", "deny": "no"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ask", metavar="ASK", help="the id of the ask; of a member's job: MEMBER/JOB")
    if choice := _CHOICES.get(parser.get_default("command")):
        parser.set_defaults(choice=choice)
    else:
        parser.add_argument(
            "choice",
            metavar="ANSWER",
            nargs="?",
            help="one of those that `guild show ASK` names; without it you are asked",
        )
        help = "of a member's job, where it has several: the one that you answer, or its beginning"
        parser.add_argument("--question", metavar="Q", help=help)
    parser.add_argument("--note", metavar="N", help="words for the worker, such as why not")
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    if (theirs := of_member(args.ask)) is not None:
        return _to_member(*theirs, args, screen)
    name = ask_id(args.ask)

    async def work(client: HallClient, frame: Frame) -> int:
        ask = await client.asks.get(name)
        answer = await _answer(ask, args, screen)
        await client.asks.answer(name, answer)
        if ask.kind == "meeting":
            return _tell_meeting(await client.meetings.get(ask.key), screen)
        screen.note(f"{name}: {answer.choice}", "dim")
        told = (await client.runs.get(ask.run)).run.request.get("commission")
        if ask.kind == "conflict" and told:
            return await _tell_commission(str(told["id"]), client, screen)
        return await _go_on((await client.runs.get(ask.run)).run.root, client, frame, screen)

    return with_hall(work, screen)


def _tell_meeting(shown: MeetingShown, screen: Screen) -> int:
    """How the meeting stands that an ask was about."""
    from guildhall.cli.commands.projects.meeting import tell_change

    if screen.wanted.form == "text":
        tell_change(shown.meeting, screen)
    else:
        screen.last(shown.meeting.as_dict())
    return exit_codes.DONE


async def _tell_commission(id: str, client: HallClient, screen: Screen) -> int:
    """How the commission stands whose work could not be merged, now that it is said what is to become of it."""
    one = (await client.commissions.get(id)).commission
    if screen.wanted.form != "text":
        screen.last(one.as_dict())
        return exit_codes.DONE
    screen.result(f"{id} is {one.status}")
    if one.status in ("dispatched", "in_progress"):
        screen.note(f"It is tried anew, by itself: guild wait {id}", "dim")
    elif one.status == "failed":
        screen.note(f"It stays as it is, on the branch {one.branch}: guild show {id}", "dim")
    return exit_codes.DONE


def _to_member(member: str, job: str, args: argparse.Namespace, screen: Screen) -> int:
    """What a person says to a question of a member's job, which goes on by itself."""
    if args.command != "answer":
        raise UsageError("a job of a member is answered in words", hint=f'guild answer {args.ask} "..."')
    if args.choice is None:
        raise UsageError(f"no answer was given to {args.ask}", hint="Give it in quotes.")
    words = f"{args.choice}\n{args.note}" if args.note else args.choice

    async def work(client: HallClient, frame: Frame) -> int:
        if args.question is None:
            meant = None
        else:
            meant = question_meant(args.question, (await client.members.job(member, job, frame)).questions or ())
        try:
            await client.members.answer_job(member, job, words, frame, question=meant)
        except MemberRefused as error:
            open_ones = () if meant else (await client.members.job(member, job, frame)).questions or ()
            if len(open_ones) < _SEVERAL:
                raise
            hint = "\n".join(how_to_answer(args.ask, one, open_ones) for one in open_ones)
            raise UsageError(error.message, hint=f"Say which one:\n{hint}") from None
        screen.note(f"{args.ask} has your answer.", "dim")
        return exit_codes.DONE

    return with_hall(work, screen)


async def _answer(ask: Ask, args: argparse.Namespace, screen: Screen) -> Answer:
    told = ask.as_dict()
    if ask.status != "open":
        raise Conflict(f"{ask.id} is no longer open: {ask.closed_words}", hint=f"See guild show {ask.id}.")
    if args.choice is not None:
        return Answer(choice=read_choice(told, args.choice), note=args.note)
    if not screen.interactive:
        raise UsageError(
            f"no answer was given to {ask.id}", hint=f"Say one of: {choices_in_words(ask.question.choices)}."
        )
    try:
        typed = await ask_person(told, screen)
    except (NoAnswer, TimeoutError):
        raise UsageError(f"no answer was given to {ask.id}", hint="It stays open.") from None
    return Answer(choice=typed.choice, note=args.note or typed.note)


async def _go_on(run: str, client: HallClient, frame: Frame, screen: Screen) -> int:
    """Follow the run if nothing else keeps it; otherwise say what does.

    An agent of a workflow goes on by itself: what others ask keeps it from nothing.
    """
    shown = await client.runs.get(run)
    alone = not any(ask.status == "open" and ask.kind not in ASIDE for ask in shown.asks)
    if alone and (meeting := shown.run.request.get("meeting")):
        from guildhall.cli.conversation import Talk

        return await Talk(screen).once(meeting["id"], client, frame)
    if shown.run.status == "waiting" and (alone or shown.run.request.get("workflow")):
        return await go_on(run, client, frame, screen)
    for line in how_to_go_on(shown, screen):
        screen.note(line)
    if screen.wanted.form != "text":
        screen.last(await result_of(shown, client))
    return exit_codes.NEEDS_YOU if shown.run.status in ("waiting", "parked", "lost") else exit_codes.DONE
