"""`guild commission`: create, dispatch, edit and end pieces of work on a project."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall, with_look
from guildhall.cli.format.commissions import commission_row, print_commission, wait_idle, warn_if_stopped
from guildhall.cli.parser import dollars, positive_int
from guildhall.cli.screen import one_line
from guildhall.cli.targets import commission_id, text_of
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.errors import GuildError, UsageError
from guildhall.hall.client.discovery import is_embedded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Trusting
    from guildhall.projects.commissions.model import Commission

_LABEL = 80  # characters of a title that nobody has given
_LISTS = {"depends_on": "dependencies", "artifact": "artifacts", "link": "linked", "check": "checks"}
_WORDS = ("title", "worker", "reviewer", "model", "max_turns", "max_budget_usd")
_TAKEN_AWAY = """Given empty (--check "", --max-turns ""), what need not be there is taken away."""
_BEGINS = ("new", "edit", "dispatch", "redispatch")  # after which it may be under way


def arguments(parser: argparse.ArgumentParser) -> None:
    verb = parser.get_default("command").partition(" ")[2]
    if verb == "ls":
        parser.add_argument("--project", metavar="NAME", help="only those of one project")
        parser.add_argument("--status", metavar="S", help="only those that are pending, blocked, failed, ...")
    elif verb == "new":
        parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="all that it is told; `-` reads standard input")
        parser.add_argument("--project", metavar="NAME", help="without it the one that you are in")
        parser.add_argument("--dispatch", action="store_true", help="let it begin at once")
        _draft_arguments(parser, required=True)
    else:
        parser.add_argument("id", metavar="COMMISSION", help="the id of the commission")
    if verb == "edit":
        parser.add_argument("--prompt", metavar="TEXT", help="all that it is told; `-` reads standard input")
        _draft_arguments(parser, required=False)
        parser.epilog = f"{_TAKEN_AWAY}\n\n{parser.epilog}"
    if verb in ("cancel", "abandon"):
        parser.add_argument("--reason", metavar="WHY", help="for the timeline")
    if verb in _BEGINS:
        parser.add_argument("--wait", action="store_true", help="wait for its end")
    parser.add_argument("--json", action="store_true", help="print an object")


def _draft_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--worker", metavar="NAME", required=required, help="who does it (`guild worker ls`)")
    parser.add_argument("--title", metavar="T", help="a line for listings; without it the first of the prompt")
    several: dict[str, Any] = {"metavar": "PATH", "action": "append"}
    parser.add_argument("--depends-on", **several, help="a file that must be on claude/main before it begins")
    parser.add_argument("--artifact", **several, help="a file that must be there in the end")
    parser.add_argument("--link", **several, help="a file that it is told of")
    help = "a command that must succeed in its checkout in the end"
    parser.add_argument("--check", metavar="COMMAND", action="append", help=help)
    parser.add_argument("--reviewer", metavar="NAME", help="a worker that must approve of it")
    number, amount = (positive_int, dollars) if required else (_or_none(positive_int), _or_none(dollars))
    parser.add_argument("--max-turns", metavar="N", type=number, help="model calls")
    parser.add_argument("--max-budget-usd", metavar="USD", type=amount, help="dollars")
    parser.add_argument("--model", metavar="M", help="the model that does it, whatever its worker says")


def _or_none(read: Callable[[str], float]) -> Callable[[str], float | str]:
    """Also nothing, which takes away what is there."""
    return lambda text: read(text) if text else text


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.rpartition(" ")[2]
    if verb in ("ls", "show"):
        return _look(verb, args, screen)
    if verb == "rm":
        return _rm(args, screen)
    _refuse_alone(verb, args)
    if verb == "new":
        return _new(args, screen)
    id = commission_id(args.id)
    changes = _changes(args) if verb == "edit" else {}

    async def edit(client: HallClient, frame: Frame) -> Commission:
        named = await _named_anew(id, changes, client)
        return await client.commissions.edit(id, {**changes, **named}, frame)

    async def work(client: HallClient, frame: Frame) -> int:
        does: dict[str, Callable[[], Awaitable[Commission]]] = {
            "edit": lambda: edit(client, frame),
            "dispatch": lambda: client.commissions.dispatch(id, frame),
            "redispatch": lambda: client.commissions.redispatch(id, frame),
            "cancel": lambda: client.commissions.cancel(id, reason=args.reason),
            "abandon": lambda: client.commissions.abandon(id, reason=args.reason),
        }

        async def done() -> int:
            return await _told(await does[verb](), args, client, screen)

        async def look() -> Trusting:
            return await client.trust.inspect(frame, worker=(await client.commissions.get(id)).commission.worker)

        return await once_trusted(done, look, client, screen)

    return with_hall(work, screen)


def _rm(args: argparse.Namespace, screen: Screen) -> int:
    id = commission_id(args.id)

    async def work(client: HallClient, frame: Frame) -> int:
        await client.commissions.delete(id)
        screen.json({"commission": id, "deleted": True}) if args.json else screen.result(f"{id} deleted")
        return exit_codes.DONE

    return with_hall(work, screen)


def _refuse_alone(verb: str, args: argparse.Namespace) -> None:
    """Where this command is the hall itself, nothing goes on after it."""
    if verb == "new" and args.wait and not args.dispatch:
        raise UsageError("commission new: --wait needs --dispatch", hint="It begins only when it is dispatched.")
    begins = verb in ("dispatch", "redispatch") or (verb == "new" and args.dispatch)
    if begins and not args.wait and is_embedded(os.environ):
        raise UsageError(
            f"commission {verb}: nothing would keep it going: this command is the hall itself",
            hint="Wait for it with --wait, or unset GUILDHALL_EMBEDDED.",
        )


def _look(verb: str, args: argparse.Namespace, screen: Screen) -> int:
    id = commission_id(args.id) if verb == "show" else ""

    async def work(client: HallClient, frame: Frame) -> int:
        if verb == "show":
            shown = await client.commissions.get(id)
            if args.json:
                screen.json(shown.as_dict())
            else:
                print_commission(shown, screen)
                await warn_if_stopped(shown, client, screen)
            return exit_codes.DONE
        found = await client.commissions.list(project=args.project, status=args.status)
        if args.json:
            screen.json({"commissions": [one.as_dict() for one in found]})
        elif found:
            screen.table([commission_row(one, screen) for one in found])
        else:
            screen.note('There are none. `guild commission new --worker NAME "..."` makes one.')
        return exit_codes.DONE

    return with_look(work, screen)


def _new(args: argparse.Namespace, screen: Screen) -> int:
    from guildhall.projects.commissions.model import Draft

    prompt = text_of(args.prompt, "prompt")
    if not prompt.strip():
        raise UsageError("prompt: it is empty", hint='Say what is to be done: guild commission new --worker NAME "..."')
    draft = Draft(title=_label(prompt), worker="", prompt=prompt).edit(_given(args))

    async def work(client: HallClient, frame: Frame) -> int:
        made: list[Commission] = []  # once, also where it is tried again

        async def make() -> int:
            if not made:
                made.append(await client.commissions.create(draft, frame, project=args.project))
            (new,) = made
            if not args.dispatch:
                return await _told(new, args, client, screen)
            if new.status == "blocked":  # it cannot begin, and is there all the same
                await _told(new, args, client, screen)
                return exit_codes.NEEDS_YOU
            return await _told(await client.commissions.dispatch(new.id, frame), args, client, screen)

        try:
            return await once_trusted(make, lambda: client.trust.inspect(frame, worker=draft.worker), client, screen)
        except (GuildError, asyncio.CancelledError) as error:
            for one in made:
                _say_it_is_there(one, args, screen, interrupted=not isinstance(error, GuildError))
            raise

    return with_hall(work, screen)


def _say_it_is_there(one: Commission, args: argparse.Namespace, screen: Screen, *, interrupted: bool) -> None:
    """Something went wrong after it was made: whoever has asked for it knows which one it is, and makes no second."""
    screen.json(one.as_dict()) if args.json else screen.result(one.id)
    if interrupted:
        alone = is_embedded(os.environ)
        screen.note(
            f"Continue it: guild resume {one.id}" if alone else f"It continues in the background: guild wait {one.id}"
        )
    else:
        screen.note(f"{one.id} was created and is pending. Then: guild commission dispatch {one.id}")


def _label(prompt: str) -> str:
    lines = [line for line in prompt.splitlines() if line.strip()]
    return one_line(lines[0].strip(), _LABEL) if lines else ""


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """What was named on the command line, by the names of a draft."""
    words = {name: getattr(args, name) for name in _WORDS}
    lists = {field: getattr(args, name) for name, field in _LISTS.items()}
    return {
        **{name: value for name, value in words.items() if value is not None},
        **{name: value for name, value in lists.items() if value is not None},
    }


def _changes(args: argparse.Namespace) -> dict[str, Any]:
    """What is to be changed. Given empty, what need not be there is taken away."""
    changes = {name: _or_nothing(name, value) for name, value in _given(args).items()}
    if args.prompt is not None:
        changes["prompt"] = text_of(args.prompt, "prompt")
    if not changes:
        names = ("title", "prompt", "worker", *_LISTS, "reviewer", "model", "max_turns", "max_budget_usd")
        hint = f"Name what: {', '.join('--' + name.replace('_', '-') for name in names)}."
        raise UsageError("nothing is to be changed", hint=hint)
    return changes


def _or_nothing(name: str, value: Any) -> Any:
    if name in _LISTS.values():
        return [] if value == [""] else value
    return None if value == "" and name not in ("title", "worker") else value


async def _named_anew(id: str, changes: dict[str, Any], client: HallClient) -> dict[str, str]:
    """The title that a new prompt gives it, where the old one was made of the old prompt."""
    if "prompt" not in changes or "title" in changes:
        return {}
    before = (await client.commissions.get(id)).commission.draft
    title = _label(changes["prompt"])
    return {"title": title} if title and before.title == _label(before.prompt) else {}


async def _told(one: Commission, args: argparse.Namespace, client: HallClient, screen: Screen) -> int:
    """How it stands; with --wait once it has ended."""
    if getattr(args, "wait", False) and one.status in ("dispatched", "in_progress"):
        screen.note(f"{one.id} is {one.status}. Ctrl-C stops waiting, not the work: guild wait {one.id}", "dim")
        code, shown = await wait_idle(one.id, client)
        screen.json(shown.as_dict()) if args.json else print_commission(shown, screen)
        return code
    if args.json:
        screen.json(one.as_dict())
    else:
        screen.result(f"{one.id} is {one.status}" if args.command != "commission new" else one.id)
        await _print_warnings(one, client, screen)
        _print_next(one, args.command, screen)
    return _code(one, args)


async def _print_warnings(one: Commission, client: HallClient, screen: Screen) -> None:
    if one.draft.linked and one.status in ("pending", "blocked"):
        for warning in (await client.commissions.get(one.id)).warnings:
            screen.note(screen.one_line(warning, 300), "yellow")


def _code(one: Commission, args: argparse.Namespace) -> int:
    if args.command == "commission cancel":
        return exit_codes.DONE if one.status == "cancelled" else exit_codes.FAILED
    if getattr(args, "wait", False) and one.status in ("pending", "blocked"):
        return exit_codes.NEEDS_YOU
    tried = args.command != "commission edit" or args.wait
    return exit_codes.FAILED if one.status == "failed" and tried else exit_codes.DONE


def _print_next(one: Commission, command: str, screen: Screen) -> None:
    again = f"Try again: guild commission redispatch {one.id}"
    said = {
        "pending": f"Start it: guild commission dispatch {one.id}",
        "blocked": f"It is {one.reason}. Then: guild commission dispatch {one.id}",
        "dispatched": f"It is queued: guild wait {one.id}",
        "in_progress": f"It runs in the background: guild show {one.id}, guild wait {one.id}",
        "failed": again if command == "commission edit" else f"It failed: {screen.exactly(one.reason or '')}\n{again}",
        "cancelled": again,
    }
    if command == "commission cancel" and one.status != "cancelled":
        screen.note(f"Not cancelled: it had already ended or submitted its result: guild show {one.id}")
    if one.status in said:
        screen.note(said[one.status], "dim")
