"""Voting: creates proposals, counts votes, decides results and carries them out.

A vote decides a proposal as soon as the quorum and the rule (plurality, majority or unanimous) are met. A proposal
also ends at its timeout, or when the team is quiet. The room carries out the result of a binding proposal: a role, a
task, opened tools and documents, or a decision that cannot be proposed again.
Does not ask agents for votes (`workflow/election.py`) and does not watch timeouts (`workflow/scheduler.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.clock import parse_stamp, stamp
from guildhall.core.config import parse_duration
from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.core.ids import PROPOSAL, fingerprint
from guildhall.core.text import did_you_mean
from guildhall.room import records
from guildhall.room.channel import hops_of, post
from guildhall.room.document_stores import check_path
from guildhall.room.model import (
    PERSON,
    SYSTEM,
    Outcome,
    Proposal,
    ProposalType,
    Resolution,
    Said,
    TieBreak,
    check_line,
)
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import announcement, outcome_text, proposal_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection


Ending = Literal["vote", "timeout", "quiet"]  # somebody voted; its time is up; nobody can move any more
DOCUMENT_OWNER = "document owner"  # the title of the election that gives the documents an owner
_OWNERS = frozenset({"document owner", "documents owner", "documentowner", "owner of the documents"})
_MAX_OPTIONS = 20
_MAX_GUARDS = 20
_MAX_OPEN = 20
_MAX_TIMEOUT_S = 30 * 24 * 3600.0
_RULES = {"plurality": "ahead", "majority": "chosen by more than half of all", "unanimous": "chosen by all"}
# Without these nobody could vote any more, or be told.
_NEVER_GUARDED = ("proposal_", "inbox_", "channel_", "no_action", "team_list", "status_set")


# Operations of agents


def _normalise_draft(arguments: dict[str, Any]) -> dict[str, Any]:
    timeout = arguments["timeout"]
    return {
        **arguments,
        "options": arguments["options"] or [],
        "timeout": None if timeout is None else parse_duration(timeout),
        "guards": arguments["guards"] or [],
    }


@operation(WRITES, normalise=_normalise_draft, changes_access=True)
def proposal_create(
    turn: Turn,
    type: ProposalType,
    title: str,
    options: list[str] | None = None,
    resolution: Resolution = "plurality",
    binding: bool = True,
    quorum: int | None = None,
    timeout: str | float | None = None,
    tie_break: TieBreak = "first",
    guards: list[str] | None = None,
) -> dict[str, Any]:
    """Put something to the vote of the team. Everybody is told and votes with proposal_vote; so do you.

    Args:
        type: election (who has a role; the title names it), decision (which way), approval (may it be done),
            assignment (who does it; the title is the task).
        title: What is put to the vote, in a line.
        options: What can be chosen. Left out: the agents of the team, or approve and reject. The first option of an
            approval is the one that gives it.
        resolution: plurality (most votes), majority (more than half of all agents), unanimous (all agents).
        binding: Whether the room carries it out; false only records it.
        quorum: How many votes are needed at least; left out: everybody's.
        timeout: How long it is open, such as 10m or 600; left out: until all have voted or nobody can any more.
        tie_break: first (of the tied options), random, creator (your vote decides).
        guards: For a binding approval: documents (notes.md, plan/) and tools that are closed until it passes.
    """
    title = check_line(title, "the title")
    _check_choices(type=(type, ProposalType), resolution=(resolution, Resolution), tie_break=(tie_break, TieBreak))
    _check_not_decided(turn, type, title, binding=binding)
    seated = records.agents_of(turn.connection, turn.room.id)
    chosen = _options(type, options or (), seated)
    guarded = _guards(guards or (), guardable=type == "approval" and binding)
    quorum = len(seated) if quorum is None else quorum
    if not 1 <= quorum <= len(seated):
        raise UsageError(f"a quorum of {quorum} is impossible with {len(seated)} agents", hint="Leave it out for all.")
    seconds = None if timeout is None else parse_duration(timeout)
    if seconds is not None and not 0 < seconds <= _MAX_TIMEOUT_S:
        raise UsageError(f"a timeout of {seconds:g} seconds cannot be", hint="More than 0, at most 30 days.")
    proposal = Proposal(
        number=records.count(turn.connection, turn.room.id) + 1,
        type=type,
        title=title,
        options=chosen,
        resolution=resolution,
        binding=binding,
        quorum=quorum,
        tie_break=tie_break,
        guards=guarded,
        eligible=tuple(seated),
        creator=turn.actor.name,
        hops=hops_of(turn),
        created_at=turn.at,
        expires_at=None if seconds is None else stamp(parse_stamp(turn.at) + timedelta(seconds=seconds)),
    )
    records.add(turn.connection, turn.room.id, proposal)
    voters = [name for name in seated if name != turn.actor.name] if turn.actor.name != SYSTEM else []
    post(turn, Said.quote(announcement(proposal)), kind="proposal", to=voters, hops=proposal.hops)
    turn.add_event("proposal", **proposal.as_dict())
    return {"text": f"{proposal.id} is open. Vote on it yourself, too.", "id": proposal.id}


@operation(WRITES, changes_access=True)
def proposal_vote(turn: Turn, proposal: str, choice: str, reason: str | None = None) -> dict[str, Any]:
    """Vote on a proposal. While it is open you may vote otherwise.

    Args:
        proposal: Its id, such as p-1.
        choice: One of its options.
        reason: Why, in a line.
    """
    found = _open_one(turn, proposal)
    if turn.actor.name not in found.eligible:
        raise Refused(f"you have no vote on {found.id}", hint=f"Those who have: {', '.join(found.eligible)}.")
    wanted = choice.strip()
    option = next((option for option in found.options if option.lower() == wanted.lower()), None)
    if option is None:
        raise UsageError(f"{choice[:80]!a} is no option of {found.id}", hint=did_you_mean(wanted, found.options))
    why = None if reason is None or not reason.strip() else check_line(reason, "the reason")
    records.put_vote(turn.connection, turn.room.id, found.number, option, why, turn.actor, turn.at)
    turn.add_event("vote", id=found.id, choice=option, reason=why)
    return {"text": outcome_text(found, _end(turn, found, "vote")), "id": found.id}


@operation(READS)
def proposal_status(turn: Turn, proposal: str | None = None) -> dict[str, Any]:
    """Show a proposal with its votes, or all proposals.

    Args:
        proposal: Its id, such as p-1; left out: all of them.
    """
    room = turn.room.id
    if proposal is not None:
        found = [proposal_in(turn.connection, room, proposal)]
    else:
        found = records.all_of(turn.connection, room)
    texts = [proposal_text(one, records.votes_of(turn.connection, room, one.number)) for one in found]
    return {"text": "\n\n".join(texts) or "There are no proposals."}


@operation(WRITES, changes_access=True)
def proposal_cancel(turn: Turn, proposal: str) -> dict[str, Any]:
    """Take back a proposal that you made.

    Args:
        proposal: Its id, such as p-1.
    """
    found = _open_one(turn, proposal)
    if turn.actor.name not in (found.creator, PERSON, SYSTEM):
        hint = f"Ask @{found.creator} to, or vote against it."
        raise Refused(f"only {found.creator} can take {found.id} back", hint=hint)
    values = {"status": "cancelled", "ended_at": turn.at}
    records.change(turn.connection, turn.room.id, found.number, **values)
    post(turn, Said.quote(f"{found.id} {found.title!r} was taken back."), kind="system", hops=found.hops)
    turn.add_event("proposal", **{**found.as_dict(), **values})
    return {"text": f"{found.id} was taken back."}


# Operations of the hall


@operation(changes_access=True)
def elect(turn: Turn, within: float | None) -> dict[str, Any]:
    """Open the election of the document owner. It wakes nobody: the hall asks the agents for their votes.

    `within` is the time to vote in seconds.
    """
    return {"id": proposal_create(turn, "election", DOCUMENT_OWNER, timeout=within)["id"]}


@operation(changes_access=True)
def settle(turn: Turn, proposal: str | None = None) -> dict[str, Any]:
    """End an open proposal, or all of them, with the votes that there are."""
    if proposal is None:
        ending = records.open_ones(turn.connection, turn.room.id)
    else:
        ending = [one for one in [proposal_in(turn.connection, turn.room.id, proposal)] if one.status == "open"]
    return _end_all(turn, ending, "quiet")


@operation(changes_access=True)
def expire(turn: Turn) -> dict[str, Any]:
    """End every proposal whose time is up."""
    due = [one for one in records.open_ones(turn.connection, turn.room.id) if _is_due(one, turn.at)]
    return _end_all(turn, due, "timeout")


# How proposals end


def next_end(connection: Connection, room: str) -> str | None:
    """When the next open proposal runs out of time."""
    return min((one.expires_at for one in records.open_ones(connection, room) if one.expires_at), default=None)


def decided_since(connection: Connection, room: str, at: str) -> bool:
    """Whether a proposal has got its result since then."""
    decided = (one for one in records.all_of(connection, room) if one.result is not None)
    return any((one.ended_at or "") >= at for one in decided)


def _is_due(proposal: Proposal, at: str) -> bool:
    return proposal.expires_at is not None and proposal.expires_at <= at


def _end_all(turn: Turn, ending: Sequence[Proposal], how: Ending) -> dict[str, Any]:
    for proposal in ending:
        _end(turn, proposal, how)
    return {"ended": [proposal.id for proposal in ending]}


def _end(turn: Turn, proposal: Proposal, how: Ending) -> Outcome | None:
    cast = records.votes_of(turn.connection, turn.room.id, proposal.number)
    votes = {vote.agent: vote.choice for vote in cast}
    outcome = decide(proposal, votes, how, turn.at)
    if outcome is None:
        return None
    values = {"status": outcome.status, "result": outcome.result, "reason": outcome.reason, "ended_at": turn.at}
    records.change(turn.connection, turn.room.id, proposal.number, **values)
    turn.add_event("proposal", **{**proposal.as_dict(), **values})
    mark = "EXPIRED" if outcome.status == "expired" else "RESOLVED"
    told = [proposal.creator] if proposal.creator in proposal.eligible and proposal.creator != turn.actor.name else []
    post(
        turn,
        Said.quote(f"[{mark}] {proposal.id} {proposal.title!r}: {outcome.result or 'no result'} ({outcome.reason})"),
        kind="expired" if outcome.status == "expired" else "resolved",
        to=_seated(turn, told),
        sender=SYSTEM,
        hops=_onward(turn, proposal),
    )
    if proposal.binding and outcome.result is not None:
        _carry_out(turn, proposal, outcome.result)
    return outcome


def _carry_out(turn: Turn, proposal: Proposal, result: str) -> None:
    if proposal.type == "election":
        now = records.room(turn.connection, turn.room.id) or turn.room  # another may have ended in this very turn
        roles = {**now.roles, _role(proposal.title): result}
        records.change_room(turn.connection, turn.room.id, roles=roles)
        if _role(proposal.title) in _OWNERS:
            records.change_room(turn.connection, turn.room.id, owner=result)
    elif proposal.type == "assignment" and _seated(turn, [result]):
        records.change_seat(turn.connection, turn.room.id, result, turn.at, task=proposal.title)
        text = f"{proposal.title}\nThis task was assigned to you by {proposal.id}."
        post(turn, Said.quote(text), kind="assignment", to=[result], sender=SYSTEM, hops=_onward(turn, proposal))


def _onward(turn: Turn, proposal: Proposal) -> int:
    """What follows from a proposal is further on than the proposal, and than whoever ended it."""
    return max(proposal.hops + 1, hops_of(turn)) if proposal.creator not in (PERSON, SYSTEM) else hops_of(turn)


# How votes decide


def decide(proposal: Proposal, votes: Mapping[str, str], ending: Ending, at: str) -> Outcome | None:
    """What comes of a proposal with these votes; None: it stays open.

    With every vote: decided once the quorum is there and the rule is met, rejected once it can be met no more. At the
    end of its time it expires. When nobody can move any more the votes that there are decide. An election that would
    end without a winner falls back to the most votes, then to the first name.
    """
    counts = Counter(dict.fromkeys(proposal.options, 0))
    counts.update(choice for agent, choice in votes.items() if agent in proposal.eligible)
    cast = counts.total()
    everyone = len(proposal.eligible)
    told = f"{cast} of {everyone} voted"
    complete = cast >= proposal.quorum
    if complete or (ending == "quiet" and cast):
        winner = _winner(proposal, counts, everyone, votes, at)
        if winner is not None:
            return Outcome(status="resolved", result=winner, reason=told)
        if complete and not _attainable(proposal, counts, everyone - cast, everyone):
            return Outcome(
                status="rejected", result=None, reason=f"no option was {_RULES[proposal.resolution]}; {told}"
            )
    if ending == "vote":
        return None
    why = "its time was up" if ending == "timeout" else "nobody could vote any more"
    if proposal.type == "election":
        most = max(counts.values())
        fallback = next(option for option in proposal.options if counts[option] == most)
        how = "the most votes" if most else "the first name"
        return Outcome(status="expired", result=fallback, reason=f"{why}, so {how} decided; {told}")
    return Outcome(status="expired", result=None, reason=f"{why}; {told}")


def _winner(proposal: Proposal, counts: Counter[str], everyone: int, votes: Mapping[str, str], at: str) -> str | None:
    most = max(counts.values())
    leading = [option for option in proposal.options if counts[option] == most]
    if proposal.resolution == "majority":
        return leading[0] if 2 * most > everyone else None
    if proposal.resolution == "unanimous":
        return leading[0] if most == everyone else None
    if len(leading) == 1 or proposal.tie_break == "first":
        return leading[0]
    if proposal.tie_break == "creator":
        wish = votes.get(proposal.creator)
        return wish if wish in leading else leading[0]
    # By lot, and yet the same when it is replayed.
    return random.Random(fingerprint([proposal.title, sorted(votes.items()), at])).choice(leading)


def _attainable(proposal: Proposal, counts: Counter[str], left: int, everyone: int) -> bool:
    """Whether those who have not voted yet could still make one of the options win."""
    best = max(counts.values()) + left
    return 2 * best > everyone if proposal.resolution == "majority" else best == everyone


# Guards


def guard_of(connection: Connection, room: str, tool: str, path: str | None = None) -> Proposal | None:
    """Return the proposal that keeps a tool or a document closed, or None.

    A binding approval closes its guards until it passes. A rejected one keeps them closed.
    """
    closed: dict[str, Proposal] = {}
    for proposal in records.all_of(connection, room):
        if proposal.type != "approval" or not proposal.binding or proposal.status == "cancelled":
            continue
        for guard in proposal.guards:
            if proposal.passed:
                closed.pop(guard, None)
            else:
                closed[guard] = proposal
    for guard, proposal in closed.items():
        below = path is not None and (path == guard or (guard.endswith("/") and path.startswith(guard)))
        if guard == tool or below:
            return proposal
    return None


def closed_by(proposal: Proposal, what: str) -> Refused:
    """What whoever tries it all the same is told."""
    if proposal.status == "open":
        hint = f"Vote with proposal_vote, and wait for {proposal.id} to pass."
    else:
        hint = f"{proposal.id} was {proposal.status}. Propose it again with the same guards."
    return Refused(f"{what} is closed until {proposal.id} {proposal.title!r} passes", hint=hint)


# Looking


def proposal_in(connection: Connection, room: str, id: str) -> Proposal:
    """A proposal by its id, `p-3`; `3` will do."""
    digits = id.strip().lower().removeprefix(f"{PROPOSAL}-")
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    found = records.find(connection, room, number)
    if found is None:
        known = [proposal.id for proposal in records.all_of(connection, room)]
        raise NotFound(f"there is no proposal {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return found


def _open_one(turn: Turn, id: str) -> Proposal:
    proposal = proposal_in(turn.connection, turn.room.id, id)
    if proposal.status == "open" and _is_due(proposal, turn.at):
        raise Conflict(f"the time of {proposal.id} is up")
    if proposal.status != "open":
        ended = f"{proposal.status}: {proposal.result}" if proposal.result else proposal.status
        raise Conflict(f"{proposal.id} is not open any more ({ended})")
    return proposal


def _seated(turn: Turn, names: Sequence[str]) -> list[str]:
    seated = records.agents_of(turn.connection, turn.room.id)
    return [name for name in names if name in seated]


def _check_choices(**given: tuple[str, Any]) -> None:
    """Raise UsageError for a value that is not one of its Literal type."""
    for name, (value, choices) in given.items():
        if value not in get_args(choices):
            hint = f"One of: {', '.join(get_args(choices))}."
            raise UsageError(f"{name}: {str(value)[:80]!a} is unknown", hint=hint)


def _check_not_decided(turn: Turn, type: ProposalType, title: str, *, binding: bool) -> None:
    """Raise if too many proposals are open, or if the question has a binding answer already."""
    everything = records.all_of(turn.connection, turn.room.id)
    if sum(one.status == "open" for one in everything) >= _MAX_OPEN:
        hint = "Vote on them, or take some back with proposal_cancel."
        raise Conflict(f"there are {_MAX_OPEN} open proposals already", hint=hint)
    if type == "decision":
        for one in everything:
            decided = one.type == "decision" and one.binding and one.status == "resolved"
            if decided and _role(one.title) == _role(title):
                hint = "It stays decided. Put another question, if this is another."
                raise Refused(f"{one.id} has decided {one.title!r}: {one.result}", hint=hint)
    if type == "election" and binding and turn.room.settings.get("owner_fixed") and _role(title) in _OWNERS:
        raise Refused("the workflow's file names the owner of the documents", hint=f"It is {turn.room.owner}.")


def _options(type: ProposalType, given: Sequence[str], seated: Sequence[str]) -> tuple[str, ...]:
    options = tuple(check_line(option, "an option") for option in given)
    people = type in ("election", "assignment")
    if not options:
        if type == "decision":
            raise UsageError("a decision needs options to choose from", hint='Such as options=["yes", "no"].')
        options = tuple(seated) if people else ("approve", "reject")
    if len({option.lower() for option in options}) != len(options):
        raise UsageError("two of the options are the same", hint="Name each once; capitals make no difference.")
    if people:
        for option in options:
            if option not in seated:
                raise NotFound(f"{option[:80]!a} is not an agent here", hint=did_you_mean(option, seated))
    elif len(options) < 2:
        raise UsageError("there is nothing to choose with one option", hint="Name at least two.")
    if len(options) > _MAX_OPTIONS:
        raise UsageError(f"there are {len(options)} options, and at most {_MAX_OPTIONS} are taken")
    return options


def _guards(given: Sequence[str], *, guardable: bool) -> tuple[str, ...]:
    if given and not guardable:
        raise UsageError("only a binding approval guards something", hint="Leave the guards out, or make it one.")
    if len(given) > _MAX_GUARDS:
        raise UsageError(f"there are {len(given)} guards, and at most {_MAX_GUARDS} are taken")
    return tuple(dict.fromkeys(map(_guard, given)))


def _guard(text: str) -> str:
    """A tool's name, a document's path (with a dot or a slash), or a folder of documents (a slash at its end)."""
    guard = check_line(text, "a guard")
    if "/" in guard or "." in guard:
        folder = guard.endswith("/")
        return check_path(guard.rstrip("/")) + ("/" if folder else "")
    if guard.startswith(_NEVER_GUARDED):
        raise UsageError(f"{guard!r} cannot be guarded", hint="Nobody could vote or be told any more.")
    return guard


def _role(title: str) -> str:
    return " ".join(title.lower().replace("_", " ").replace("-", " ").split())
