"""`guild answer`, `approve` and `deny`: answer an ask, a request for a meeting or a question of a member's job.

Without an id, they answer the only open ask. The run of the ask is resumed and followed. Does not read answers at the
terminal (see `cli.prompt`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import is_member_job, parse_ask_id
from guildhall.cli.command import OUTPUT, Context, argument, command
from guildhall.cli.commands.runs.resume import resume_run
from guildhall.cli.format.commissions_and_meetings import print_change
from guildhall.cli.format.jobs import answer_command, find_question
from guildhall.cli.format.runs import print_next_steps, result_data
from guildhall.cli.prompt import NoAnswer, ask_user, read_choice
from guildhall.cli.short_ids import is_kind, read_id
from guildhall.core.errors import Conflict, MemberRefused, NotFound, UsageError
from guildhall.core.ids import MEETING
from guildhall.runs.model import OUTLIVING_KINDS, Answer, Ask, format_choices
from guildhall.runs.purpose import CommissionPurpose, MeetingPurpose

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting

_ID = argument(
    "ask",
    metavar="ASK|MEETING",
    type=read_id,
    nargs="?",
    help="the id of the ask, of a requested meeting, or MEMBER/JOB (default: the only open ask)",
)
_NOTE = argument("--note", metavar="TEXT", help="a text for the worker, such as a reason")
_LIKE_ID = re.compile(r"[a-z]-[0-9a-z]+|\S+/\S+")  # any other text is an answer to the only open ask


@command(
    _ID,
    argument(
        "choice",
        metavar="ANSWER",
        nargs="?",
        help="one of the choices that `guild show ASK` prints (default: a prompt); of a meeting: yes, no or a date",
    ),
    argument(
        "--question",
        metavar="Q",
        help="of a member's job with several questions: the question, or its beginning",
    ),
    _NOTE,
    OUTPUT,
)
async def answer(ctx: Context) -> int:
    args = ctx.args
    if args.ask is not None and args.choice is None and not _LIKE_ID.fullmatch(args.ask):
        args.ask, args.choice = None, str(args.ask)
    if args.ask is not None and is_kind(args.ask, MEETING):
        return await _answer_meeting(ctx)
    if args.ask is not None and is_member_job(args.ask):
        return await _answer_member(ctx, args.ask)
    return await _answer(ctx, args.choice)


@command(_ID, _NOTE, OUTPUT)
async def approve(ctx: Context) -> int:
    return await _decide(ctx, "yes")


@command(_ID, _NOTE, OUTPUT)
async def deny(ctx: Context) -> int:
    return await _decide(ctx, "no")


async def _decide(ctx: Context, choice: str) -> int:
    if ctx.args.ask is not None and is_kind(ctx.args.ask, MEETING):
        ctx.args.choice = choice
        return await _answer_meeting(ctx)
    if ctx.args.ask is not None and is_member_job(ctx.args.ask):
        raise UsageError("a job of a member accepts only text", hint=f'Answer it: guild answer {ctx.args.ask} "..."')
    return await _answer(ctx, choice)


async def _answer_meeting(ctx: Context) -> int:
    """Accept, decline or defer a requested meeting."""
    choice, note = ctx.args.choice, ctx.args.note
    if choice is None:
        raise UsageError("no answer given", hint="Add yes, no, or a date to be asked again, such as 2027-01-31.")
    meetings = (await ctx.connect()).meetings
    match choice.strip().lower():
        case "yes" | "y":
            meeting = await meetings.accept(ctx.args.ask)
        case "no" | "n":
            meeting = await meetings.decline(ctx.args.ask, reason=note)
        case date:
            meeting = await meetings.defer(ctx.args.ask, date.upper())
    _print_meeting(ctx, meeting)
    return exit_codes.DONE


def _print_meeting(ctx: Context, meeting: Meeting) -> None:
    if ctx.as_json:
        ctx.screen.print_final(meeting.as_dict())
    else:
        print_change(meeting, ctx.screen)


async def _only_ask(ctx: Context) -> str:
    """Return the id of the only open ask. Raise NotFound or UsageError unless exactly one is open."""
    asks = await ctx.client.asks.list()
    if not asks:
        raise NotFound("there are no open asks", hint="List active work: guild ls")
    if len(asks) > 1:
        listed = "\n".join(
            f"  guild answer {ask.id} ...  {ctx.screen.one_line(ask.question.title, 80)}" for ask in asks
        )
        raise UsageError(f"no ask given: {len(asks)} asks are open", hint=f"Answer one of them:\n{listed}")
    return asks[0].id


async def _answer(ctx: Context, choice: str | None) -> int:
    ctx.args.ask = None if ctx.args.ask is None else parse_ask_id(ctx.args.ask)
    client = await ctx.connect()
    id = ctx.args.ask or await _only_ask(ctx)
    ask = await client.asks.get(id)
    answer = await _read_answer(ctx, ask, choice)
    await client.asks.answer(id, answer)
    if ask.kind == "meeting":
        _print_meeting(ctx, (await client.meetings.get(ask.key)).meeting)
        return exit_codes.DONE
    ctx.screen.note(f"{id}: {answer.choice}", "dim")
    run = (await client.runs.get(ask.run)).run
    if ask.kind == "conflict" and (commission := run.purpose_as(CommissionPurpose)):
        await _print_commission(ctx, commission.id)
        return exit_codes.DONE
    return await _continue(ctx, run.root)


async def _read_answer(ctx: Context, ask: Ask, choice: str | None) -> Answer:
    """Return the answer from the command line, or prompt for it."""
    if ask.status != "open":
        raise Conflict(f"{ask.id} is closed: it {ask.closed_reason}", hint=f"Details: guild show {ask.id}")
    if choice is not None:
        return Answer(choice=read_choice(ask.as_dict(), choice), note=ctx.args.note)
    if not ctx.screen.is_interactive:
        raise UsageError(f"no answer given to {ask.id}", hint=f"Add one of: {format_choices(ask.question.choices)}.")
    try:
        typed = await ask_user(ask.as_dict(), ctx.client, ctx.screen)
    except TimeoutError:
        raise Conflict(f"{ask.id} is closed: it has expired", hint=f"Details: guild show {ask.id}") from None
    except NoAnswer:
        hint = f"The ask stays open. Answer it later: guild answer {ask.id}"
        raise UsageError(f"no answer given to {ask.id}", hint=hint) from None
    return Answer(choice=typed.choice, note=ctx.args.note or typed.note)


async def _print_commission(ctx: Context, id: str) -> None:
    """Print the state of a commission after the user has decided about its merge conflict."""
    one = (await ctx.client.commissions.get(id)).commission
    if ctx.screen.form != "text":
        ctx.screen.print_final(one.as_dict())
        return
    ctx.screen.result(f"{id} is {one.status}")
    if one.status in ("dispatched", "in_progress"):
        ctx.screen.note(f"Started again in the background: guild wait {id}", "dim")
    elif one.status == "failed":
        ctx.screen.note(f"The work stays on the branch {one.branch}: guild show {id}", "dim")


async def _continue(ctx: Context, run: str) -> int:
    """Follow the run if no other ask blocks it; otherwise print the open asks.

    Asks of other agents do not block an agent of a workflow.
    """
    client, screen = ctx.client, ctx.screen
    details = await client.runs.get(run)
    is_unblocked = not any(ask.status == "open" and ask.kind not in OUTLIVING_KINDS for ask in details.asks)
    if is_unblocked and (meeting := details.run.purpose_as(MeetingPurpose)):
        from guildhall.cli.commands.projects.meet import Conversation

        return await Conversation(screen).follow_answer(meeting.id, client, ctx.frame)
    if details.run.status == "waiting" and (is_unblocked or details.run.kind == "workflow"):
        return await resume_run(ctx, run)
    print_next_steps(details, screen)
    if screen.form != "text":
        screen.print_final(await result_data(details, client))
    return exit_codes.NEEDS_YOU if details.run.status in ("waiting", "paused", "interrupted") else exit_codes.DONE


async def _answer_member(ctx: Context, id: str) -> int:
    """Answer a question of a member's job. The member continues the job."""
    choice, question = ctx.args.choice, ctx.args.question
    if choice is None:
        raise UsageError(f"no answer given to {id}", hint=f'For example: guild answer {id} "..."')
    text = f"{choice}\n{ctx.args.note}" if ctx.args.note else choice
    client = await ctx.connect()
    if question is not None:
        question = find_question(question, (await client.jobs.get(id, ctx.frame)).questions)
    try:
        await client.jobs.answer(id, text, ctx.frame, question=question)
    except MemberRefused as error:
        questions = () if question else (await client.jobs.get(id, ctx.frame)).questions
        if len(questions) <= 1:
            raise
        hint = "\n".join(answer_command(id, one, questions) for one in questions)
        raise UsageError(error.message, hint=f"Answer one of them:\n{hint}") from None
    ctx.screen.note(f"Answered {id}.", "dim")
    return exit_codes.DONE
