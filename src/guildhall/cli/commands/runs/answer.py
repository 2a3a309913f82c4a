"""`guild answer`, `approve` and `deny`: answer an ask of a run or a member's job, and resume the run.

Does not read answers at the terminal (see `cli.prompt`).
"""

from __future__ import annotations

from guildhall.cli import exit_codes
from guildhall.cli.arguments import ask_id, is_member_job
from guildhall.cli.command import OUTPUT, Context, argument, command
from guildhall.cli.commands.runs.resume import resume_run
from guildhall.cli.format.jobs import how_to_answer, question_meant
from guildhall.cli.format.projects import print_change
from guildhall.cli.format.runs import print_next_steps, result_data
from guildhall.cli.prompt import NoAnswer, ask_person, read_choice
from guildhall.core.errors import Conflict, MemberRefused, UsageError
from guildhall.runs.model import OUTLIVING_KINDS, Answer, Ask, format_choices
from guildhall.runs.purpose import CommissionPurpose, MeetingPurpose

_SEVERAL = 2
_ID = argument("ask", metavar="ASK", help="the id of the ask; of a member's job: MEMBER/JOB")
_NOTE = argument("--note", metavar="N", help="words for the worker, such as why not")


@command(
    _ID,
    argument(
        "choice",
        metavar="ANSWER",
        nargs="?",
        help="one of those that `guild show ASK` names; without it you are asked",
    ),
    argument(
        "--question",
        metavar="Q",
        help="of a member's job, where it has several: the one that you answer, or its beginning",
    ),
    _NOTE,
    OUTPUT,
)
async def answer(ctx: Context) -> int:
    if is_member_job(ctx.args.ask):
        return await _answer_member(ctx, ctx.args.ask)
    return await _answer(ctx, ctx.args.choice)


@command(_ID, _NOTE, OUTPUT)
async def approve(ctx: Context) -> int:
    return await _decide(ctx, "yes")


@command(_ID, _NOTE, OUTPUT)
async def deny(ctx: Context) -> int:
    return await _decide(ctx, "no")


async def _decide(ctx: Context, choice: str) -> int:
    if is_member_job(ctx.args.ask):
        raise UsageError("a job of a member is answered in words", hint=f'guild answer {ctx.args.ask} "..."')
    return await _answer(ctx, choice)


async def _answer(ctx: Context, choice: str | None) -> int:
    id = ask_id(ctx.args.ask)
    client = await ctx.connect()
    ask = await client.asks.get(id)
    answer = await _read_answer(ctx, ask, choice)
    await client.asks.answer(id, answer)
    if ask.kind == "meeting":
        meeting = (await client.meetings.get(ask.key)).meeting
        if ctx.screen.wanted.form == "text":
            print_change(meeting, ctx.screen)
        else:
            ctx.screen.last(meeting.as_dict())
        return exit_codes.DONE
    ctx.screen.note(f"{id}: {answer.choice}", "dim")
    run = (await client.runs.get(ask.run)).run
    if ask.kind == "conflict" and (commission := run.purpose_as(CommissionPurpose)):
        await _print_commission(ctx, commission.id)
        return exit_codes.DONE
    return await _continue(ctx, run.root)


async def _read_answer(ctx: Context, ask: Ask, choice: str | None) -> Answer:
    """Return the answer from the command line, or ask for it."""
    if ask.status != "open":
        raise Conflict(f"{ask.id} is no longer open: it {ask.closed_reason}", hint=f"See guild show {ask.id}.")
    if choice is not None:
        return Answer(choice=read_choice(ask.as_dict(), choice), note=ctx.args.note)
    if not ctx.screen.interactive:
        raise UsageError(
            f"no answer was given to {ask.id}", hint=f"Say one of: {format_choices(ask.question.choices)}."
        )
    try:
        typed = await ask_person(ask.as_dict(), ctx.screen)
    except (NoAnswer, TimeoutError):
        raise UsageError(f"no answer was given to {ask.id}", hint="It stays open.") from None
    return Answer(choice=typed.choice, note=ctx.args.note or typed.note)


async def _print_commission(ctx: Context, id: str) -> None:
    """Print the state of a commission after the user has decided about its merge conflict."""
    one = (await ctx.client.commissions.get(id)).commission
    if ctx.screen.wanted.form != "text":
        ctx.screen.last(one.as_dict())
        return
    ctx.screen.result(f"{id} is {one.status}")
    if one.status in ("dispatched", "in_progress"):
        ctx.screen.note(f"It is tried anew, by itself: guild wait {id}", "dim")
    elif one.status == "failed":
        ctx.screen.note(f"It stays as it is, on the branch {one.branch}: guild show {id}", "dim")


async def _continue(ctx: Context, run: str) -> int:
    """Follow the run if nothing else blocks it; otherwise print what does.

    An agent of a workflow resumes by itself, and the asks of other agents do not block it.
    """
    client, screen = ctx.client, ctx.screen
    shown = await client.runs.get(run)
    is_unblocked = not any(ask.status == "open" and ask.kind not in OUTLIVING_KINDS for ask in shown.asks)
    if is_unblocked and (meeting := shown.run.purpose_as(MeetingPurpose)):
        from guildhall.cli.commands.projects.meet import Conversation

        return await Conversation(screen).once(meeting.id, client, ctx.frame)
    if shown.run.status == "waiting" and (is_unblocked or shown.run.kind == "workflow"):
        return await resume_run(ctx, run)
    print_next_steps(shown, screen)
    if screen.wanted.form != "text":
        screen.last(await result_data(shown, client))
    return exit_codes.NEEDS_YOU if shown.run.status in ("waiting", "paused", "interrupted") else exit_codes.DONE


async def _answer_member(ctx: Context, id: str) -> int:
    """Answer a question of a member's job, which continues by itself."""
    choice, question = ctx.args.choice, ctx.args.question
    if choice is None:
        raise UsageError(f"no answer was given to {id}", hint="Give it in quotes.")
    words = f"{choice}\n{ctx.args.note}" if ctx.args.note else choice
    client = await ctx.connect()
    if question is not None:
        question = question_meant(question, (await client.jobs.get(id, ctx.frame)).questions)
    try:
        await client.jobs.answer(id, words, ctx.frame, question=question)
    except MemberRefused as error:
        open_ones = () if question else (await client.jobs.get(id, ctx.frame)).questions
        if len(open_ones) < _SEVERAL:
            raise
        hint = "\n".join(how_to_answer(id, one, open_ones) for one in open_ones)
        raise UsageError(error.message, hint=f"Say which one:\n{hint}") from None
    ctx.screen.note(f"{id} has your answer.", "dim")
    return exit_codes.DONE
