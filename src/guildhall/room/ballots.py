"""Proposals of a room: creates proposals, counts votes, decides results and applies them.

A vote decides a proposal as soon as the quorum and the rule (plurality, majority or unanimous) are met. A proposal
also ends at its timeout, or when the team is idle. The result of a binding proposal is a role, a task, opened tools and
documents, or a decision that cannot be proposed again.
Does not ask agents for votes (`workflow/document_owner_election.py`) or watch timeouts (`workflow/team.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from guildhall.core.clock import parse_stamp, stamp
from guildhall.core.config import parse_duration
from guildhall.core.errors import Conflict, NotFound, Refused, UsageError
from guildhall.core.ids import PROPOSAL, fingerprint
from guildhall.core.text_checks import did_you_mean
from guildhall.room import records
from guildhall.room.channel import next_hops, post
from guildhall.room.document_stores import check_path
from guildhall.room.model import (
    PERSON,
    SYSTEM,
    MessageKind,
    MessageText,
    Outcome,
    Proposal,
    ProposalType,
    Resolution,
    TieBreak,
    check_line,
)
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import announcement_text, outcome_text, proposal_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

Ending = Literal["vote", "timeout", "idle"]  # idle: no agent can move
DOCUMENT_OWNER = "document owner"  # title of the election of the document owner
_OWNER_TITLES = frozenset({"document owner", "documents owner", "documentowner", "owner of the documents"})
_MAX_OPTIONS = 20
_MAX_GUARDS = 20
_MAX_OPEN_PROPOSALS = 20
_MAX_TIMEOUT_S = 30 * 24 * 3600.0
_RULE_TEXTS = {"plurality": "ahead", "majority": "chosen by more than half of all", "unanimous": "chosen by all"}
# Agents need these tools to vote and to receive messages.
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
    """Open a vote. All agents are notified and vote with proposal_vote, including you.

    Args:
        type: election (who gets the role in the title), decision (which option), approval (whether it may be done),
            assignment (who does the task in the title).
        title: The question, the role or the task, in one line.
        options: The options to choose from. Default: the agents of the team, or approve and reject. The first option of
            an approval approves.
        resolution: plurality (most votes), majority (more than half of all agents), unanimous (all agents).
        binding: true: the room carries out the result. false: the room only records it.
        quorum: The minimum number of votes. Default: all agents.
        timeout: The time to vote, such as 10m or 600 (seconds). Default: until all have voted or no agent can vote.
        tie_break: first (of the tied options), random, creator (your vote decides).
        guards: Only for a binding approval: documents (notes.md, plan/) and tools that stay closed until it passes.
    """
    title = check_line(title, "the title")
    _check_choices(type=(type, ProposalType), resolution=(resolution, Resolution), tie_break=(tie_break, TieBreak))
    _check_may_propose(turn, type, title, binding=binding)
    agents = records.agent_names(turn.connection, turn.room.id)
    chosen = _check_options(type, options or (), agents)
    guarded = _check_guards(guards or (), guardable=type == "approval" and binding)
    quorum = len(agents) if quorum is None else quorum
    if not 1 <= quorum <= len(agents):
        hint = f"Pass 1 to {len(agents)}, or omit it to require all votes."
        raise UsageError(f"invalid quorum: {quorum} (the team has {len(agents)} agents)", hint=hint)
    timeout_s = None if timeout is None else parse_duration(timeout)
    if timeout_s is not None and not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise UsageError(f"invalid timeout: {timeout_s:g} s (must be more than 0 and at most 30 days)")
    proposal = Proposal(
        number=records.count_proposals(turn.connection, turn.room.id) + 1,
        type=type,
        title=title,
        options=chosen,
        resolution=resolution,
        binding=binding,
        quorum=quorum,
        tie_break=tie_break,
        guards=guarded,
        eligible=tuple(agents),
        creator=turn.actor.name,
        hops=next_hops(turn),
        created_at=turn.at,
        expires_at=None if timeout_s is None else stamp(parse_stamp(turn.at) + timedelta(seconds=timeout_s)),
    )
    records.add_proposal(turn.connection, turn.room.id, proposal)
    voters = [name for name in agents if name != turn.actor.name] if turn.actor.name != SYSTEM else []
    post(turn, MessageText.quote(announcement_text(proposal)), kind="proposal", to=voters, hops=proposal.hops)
    turn.add_event("proposal", **proposal.as_dict())
    return {"text": f"Opened {proposal.id}. Vote on it yourself, too.", "id": proposal.id}


@operation(WRITES, changes_access=True)
def proposal_vote(turn: Turn, proposal: str, choice: str, reason: str | None = None) -> dict[str, Any]:
    """Vote on a proposal. You can change your vote while it is open.

    Args:
        proposal: The id of the proposal, such as p-1.
        choice: One of its options.
        reason: The reason, in one line.
    """
    found = _get_open(turn, proposal)
    if turn.actor.name not in found.eligible:
        message = f"you cannot vote on {found.id}: only {', '.join(found.eligible)} can vote"
        raise Refused(message, hint="Send them your opinion with channel_send.")
    choice = choice.strip()
    option = next((option for option in found.options if option.lower() == choice.lower()), None)
    if option is None:
        raise UsageError(f"unknown option {choice[:80]!a} of {found.id}", hint=did_you_mean(choice, found.options))
    reason = None if reason is None or not reason.strip() else check_line(reason, "the reason")
    records.put_vote(turn.connection, turn.room.id, found.number, option, reason, turn.actor, turn.at)
    turn.add_event("vote", id=found.id, choice=option, reason=reason)
    return {"text": outcome_text(found, _end_if_decided(turn, found, "vote")), "id": found.id}


@operation(READS)
def proposal_status(turn: Turn, proposal: str | None = None) -> dict[str, Any]:
    """Show a proposal with its votes, or all proposals.

    Args:
        proposal: The id of a proposal, such as p-1. Default: all proposals.
    """
    room = turn.room.id
    if proposal is not None:
        proposals = [get_proposal(turn.connection, room, proposal)]
    else:
        proposals = records.list_proposals(turn.connection, room)
    texts = [proposal_text(shown, records.list_votes(turn.connection, room, shown.number)) for shown in proposals]
    return {"text": "\n\n".join(texts) or "No proposals."}


@operation(WRITES, changes_access=True)
def proposal_cancel(turn: Turn, proposal: str) -> dict[str, Any]:
    """Cancel a proposal that you created.

    Args:
        proposal: The id of the proposal, such as p-1.
    """
    found = _get_open(turn, proposal)
    if turn.actor.name not in (found.creator, PERSON, SYSTEM):
        hint = f"Ask @{found.creator}, or vote against it."
        raise Refused(f"you cannot cancel {found.id}: only {found.creator} can", hint=hint)
    values = {"status": "cancelled", "ended_at": turn.at}
    records.change_proposal(turn.connection, turn.room.id, found.number, **values)
    post(turn, MessageText.quote(f"{found.id} {found.title!r} was cancelled."), kind="system", hops=found.hops)
    turn.add_event("proposal", **{**found.as_dict(), **values})
    return {"text": f"Cancelled {found.id}."}


# Operations of the hall


@operation(changes_access=True)
def open_owner_election(turn: Turn, timeout_s: float | None) -> dict[str, Any]:
    """Open the election of the document owner. The hall asks the agents for votes."""
    return {"id": proposal_create(turn, "election", DOCUMENT_OWNER, timeout=timeout_s)["id"]}


@operation(changes_access=True)
def end_proposals(turn: Turn, proposal: str | None = None) -> dict[str, Any]:
    """End an open proposal, or all open proposals, with the existing votes."""
    proposals = records.open_proposals(turn.connection, turn.room.id)
    if proposal is not None:
        selected = get_proposal(turn.connection, turn.room.id, proposal)
        proposals = [selected] if selected.status == "open" else []
    return _end_all(turn, proposals, "idle")


@operation(changes_access=True)
def expire_proposals(turn: Turn) -> dict[str, Any]:
    """End every proposal whose time is up."""
    proposals = records.open_proposals(turn.connection, turn.room.id)
    return _end_all(turn, [proposal for proposal in proposals if _is_due(proposal, turn.at)], "timeout")


# The end of proposals


def next_expiry(connection: Connection, room: str) -> str | None:
    """Return the time at which the next open proposal expires, or None."""
    times = (proposal.expires_at for proposal in records.open_proposals(connection, room))
    return min((time for time in times if time is not None), default=None)


def has_decision_since(connection: Connection, room: str, at: str) -> bool:
    """Return True if a proposal got its result at this time or later."""
    decided = (proposal for proposal in records.list_proposals(connection, room) if proposal.result is not None)
    return any((proposal.ended_at or "") >= at for proposal in decided)


def _is_due(proposal: Proposal, at: str) -> bool:
    return proposal.expires_at is not None and proposal.expires_at <= at


def _end_all(turn: Turn, proposals: Sequence[Proposal], ending: Ending) -> dict[str, Any]:
    for proposal in proposals:
        _end_if_decided(turn, proposal, ending)
    return {"ended": [proposal.id for proposal in proposals]}


def _end_if_decided(turn: Turn, proposal: Proposal, ending: Ending) -> Outcome | None:
    """Record, post and apply the outcome of a proposal, and return it. Return None if the proposal stays open."""
    votes = {vote.agent: vote.choice for vote in records.list_votes(turn.connection, turn.room.id, proposal.number)}
    outcome = decide(proposal, votes, ending, turn.at)
    if outcome is None:
        return None
    values = {**vars(outcome), "ended_at": turn.at}
    records.change_proposal(turn.connection, turn.room.id, proposal.number, **values)
    turn.add_event("proposal", **{**proposal.as_dict(), **values})
    kind = "expired" if outcome.status == "expired" else "resolved"
    text = f"[{kind.upper()}] {proposal.id} {proposal.title!r}: {outcome.result or 'no result'} ({outcome.reason})"
    is_notified = proposal.creator in proposal.eligible and proposal.creator != turn.actor.name
    _post_result(turn, proposal, kind, text, to=[proposal.creator] if is_notified else [])
    if proposal.binding and outcome.result is not None:
        _apply_result(turn, proposal, outcome.result)
    return outcome


def _apply_result(turn: Turn, proposal: Proposal, result: str) -> None:
    if proposal.type == "election":
        # Another election in this turn may have changed `turn.room`.
        current = records.find_room(turn.connection, turn.room.id) or turn.room
        roles = {**current.roles, _normalise_title(proposal.title): result}
        records.change_room(turn.connection, turn.room.id, roles=roles)
        if _normalise_title(proposal.title) in _OWNER_TITLES:
            records.change_room(turn.connection, turn.room.id, owner=result)
    elif proposal.type == "assignment" and result in records.agent_names(turn.connection, turn.room.id):
        records.change_agent(turn.connection, turn.room.id, result, turn.at, task=proposal.title)
        text = f"{proposal.title}\nThis task was assigned to you by {proposal.id}."
        _post_result(turn, proposal, "assignment", text, to=[result])


def _post_result(turn: Turn, proposal: Proposal, kind: MessageKind, text: str, *, to: Sequence[str]) -> None:
    """Post a message about a result. Its hops exceed those of an agent's proposal and of the deciding turn."""
    hops = next_hops(turn)
    if proposal.creator not in (PERSON, SYSTEM):
        hops = max(proposal.hops + 1, hops)
    post(turn, MessageText.quote(text), kind=kind, to=to, sender=SYSTEM, hops=hops)


# Decisions


def decide(proposal: Proposal, votes: Mapping[str, str], ending: Ending, at: str) -> Outcome | None:
    """Return the outcome of a proposal with these votes, or None if it stays open.

    A vote decides as soon as the quorum is reached and the rule is met, or rejects as soon as the rule cannot be met.
    At a timeout, the proposal expires. If no agent can move, the existing votes decide. An election without a winner
    falls back to the option with the most votes, then to the first name.
    """
    counts = Counter(dict.fromkeys(proposal.options, 0))
    counts.update(choice for agent, choice in votes.items() if agent in proposal.eligible)
    vote_count, voter_count = counts.total(), len(proposal.eligible)
    turnout = f"{vote_count} of {voter_count} voted"
    has_quorum = vote_count >= proposal.quorum
    if has_quorum or (ending == "idle" and vote_count):
        winner = _find_winner(proposal, counts, voter_count, votes, at)
        if winner is not None:
            return Outcome(status="resolved", result=winner, reason=turnout)
        if has_quorum and not _can_still_win(proposal, counts, voter_count - vote_count, voter_count):
            reason = f"no option was {_RULE_TEXTS[proposal.resolution]}"
            return Outcome(status="rejected", result=None, reason=f"{reason}; {turnout}")
    if ending == "vote":
        return None
    reason = "the time to vote was up" if ending == "timeout" else "no agent could vote any more"
    if proposal.type == "election":
        most_votes = max(counts.values())
        fallback = next(option for option in proposal.options if counts[option] == most_votes)
        rule = "the most votes" if most_votes else "the first name"
        return Outcome(status="expired", result=fallback, reason=f"{reason}, so {rule} decided; {turnout}")
    return Outcome(status="expired", result=None, reason=f"{reason}; {turnout}")


def _find_winner(
    proposal: Proposal, counts: Counter[str], voter_count: int, votes: Mapping[str, str], at: str
) -> str | None:
    most_votes = max(counts.values())
    leading = [option for option in proposal.options if counts[option] == most_votes]
    if proposal.resolution == "majority":
        return leading[0] if 2 * most_votes > voter_count else None
    if proposal.resolution == "unanimous":
        return leading[0] if most_votes == voter_count else None
    if len(leading) == 1 or proposal.tie_break == "first":
        return leading[0]
    if proposal.tie_break == "creator":
        choice = votes.get(proposal.creator)
        return choice if choice in leading else leading[0]
    # The seed makes a replay choose the same option.
    return random.Random(fingerprint([proposal.title, sorted(votes.items()), at])).choice(leading)


def _can_still_win(proposal: Proposal, counts: Counter[str], missing_votes: int, voter_count: int) -> bool:
    """Return True if the missing votes can still make an option win."""
    possible_votes = max(counts.values()) + missing_votes
    return 2 * possible_votes > voter_count if proposal.resolution == "majority" else possible_votes == voter_count


# Guards


def find_guard(connection: Connection, room: str, tool: str, path: str | None = None) -> Proposal | None:
    """Return the proposal that keeps a tool or a document closed, or None.

    A binding approval closes its guards until it passes. A rejected approval keeps its guards closed.
    """
    closed: dict[str, Proposal] = {}
    for proposal in records.list_proposals(connection, room):
        if proposal.type != "approval" or not proposal.binding or proposal.status == "cancelled":
            continue
        for guard in proposal.guards:
            if proposal.has_passed:
                closed.pop(guard, None)
            else:
                closed[guard] = proposal
    for guard, proposal in closed.items():
        is_path_closed = path is not None and (path == guard or (guard.endswith("/") and path.startswith(guard)))
        if guard == tool or is_path_closed:
            return proposal
    return None


def closed_error(proposal: Proposal, subject: str) -> Refused:
    """Return the error for a call of a closed tool or a change of a closed document."""
    if proposal.status == "open":
        hint = f"Vote with proposal_vote, and wait for {proposal.id} to pass."
    else:
        hint = f"{proposal.id} was {proposal.status}. Propose it again with the same guards."
    return Refused(f"{subject} is closed until {proposal.id} {proposal.title!r} passes", hint=hint)


# Lookups and checks


def get_proposal(connection: Connection, room: str, id: str) -> Proposal:
    """Return a proposal by its id (`p-3` or `3`). Raise NotFound if it does not exist."""
    digits = id.strip().lower().removeprefix(f"{PROPOSAL}-")
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0
    found = records.find_proposal(connection, room, number)
    if found is None:
        known = [proposal.id for proposal in records.list_proposals(connection, room)]
        raise NotFound(f"unknown proposal {id[:80]!a}", hint=did_you_mean(id[:80], known))
    return found


def _get_open(turn: Turn, id: str) -> Proposal:
    proposal = get_proposal(turn.connection, turn.room.id, id)
    if proposal.status == "open" and _is_due(proposal, turn.at):
        raise Conflict(f"{proposal.id} has expired", hint="Propose it again with proposal_create.")
    if proposal.status != "open":
        ended = f"{proposal.status}: {proposal.result}" if proposal.result else proposal.status
        raise Conflict(f"{proposal.id} is not open ({ended})", hint="See the open proposals with proposal_status.")
    return proposal


def _check_choices(**arguments: tuple[str, Any]) -> None:
    """Raise UsageError for a value that is not in its Literal type."""
    for name, (value, choices) in arguments.items():
        if value not in get_args(choices):
            hint = f"Use one of: {', '.join(get_args(choices))}."
            raise UsageError(f"unknown {name} {str(value)[:80]!a}", hint=hint)


def _check_may_propose(turn: Turn, type: ProposalType, title: str, *, binding: bool) -> None:
    """Raise if too many proposals are open, the question is decided, or the workflow file sets the document owner."""
    proposals = records.list_proposals(turn.connection, turn.room.id)
    if sum(proposal.status == "open" for proposal in proposals) >= _MAX_OPEN_PROPOSALS:
        hint = "Vote on the open proposals, or cancel some with proposal_cancel."
        raise Conflict(f"too many open proposals (limit: {_MAX_OPEN_PROPOSALS})", hint=hint)
    if type == "decision":
        for earlier in proposals:
            is_decided = earlier.type == "decision" and earlier.binding and earlier.status == "resolved"
            if is_decided and _normalise_title(earlier.title) == _normalise_title(title):
                hint = "A binding decision cannot be proposed again. Use another title for another question."
                raise Refused(f"{earlier.id} has decided {earlier.title!r}: {earlier.result}", hint=hint)
    elects_owner = type == "election" and binding and _normalise_title(title) in _OWNER_TITLES
    if elects_owner and turn.room.settings.get("owner_fixed"):
        message = f"cannot elect a document owner: the workflow file sets the document owner to {turn.room.owner}"
        raise Refused(message, hint="Use another title for another role.")


def _check_options(type: ProposalType, given: Sequence[str], agents: Sequence[str]) -> tuple[str, ...]:
    options = tuple(check_line(option, "an option") for option in given)
    chooses_agent = type in ("election", "assignment")
    if not options:
        if type == "decision":
            raise UsageError("missing options: a decision needs at least two", hint='Pass options=["yes", "no"].')
        options = tuple(agents) if chooses_agent else ("approve", "reject")
    if len({option.lower() for option in options}) != len(options):
        raise UsageError("invalid options: two of them are equal", hint="Rename one of them. Case does not count.")
    if chooses_agent:
        for option in options:
            if option not in agents:
                raise NotFound(f"unknown agent {option[:80]!a}", hint=did_you_mean(option, agents))
    elif len(options) < 2:
        raise UsageError("too few options: 1", hint="Pass at least two.")
    if len(options) > _MAX_OPTIONS:
        raise UsageError(f"too many options: {len(options)} (limit: {_MAX_OPTIONS})")
    return options


def _check_guards(given: Sequence[str], *, guardable: bool) -> tuple[str, ...]:
    if given and not guardable:
        message = "invalid guards: only a binding approval can have guards"
        raise UsageError(message, hint='Omit the guards, or use type="approval" and binding=true.')
    if len(given) > _MAX_GUARDS:
        raise UsageError(f"too many guards: {len(given)} (limit: {_MAX_GUARDS})")
    return tuple(dict.fromkeys(map(_normalise_guard, given)))


def _normalise_guard(text: str) -> str:
    """Return the normal form of a guard: a tool name, a document path, or a folder of documents with a final slash."""
    guard = check_line(text, "a guard")
    if "/" in guard or "." in guard:
        is_folder = guard.endswith("/")
        return check_path(guard.rstrip("/")) + ("/" if is_folder else "")
    if guard.startswith(_NEVER_GUARDED):
        message = f"invalid guard {guard!r}: agents need this tool to vote or to receive messages"
        raise UsageError(message, hint="Guard a document or another tool.")
    return guard


def _normalise_title(title: str) -> str:
    return " ".join(title.lower().replace("_", " ").replace("-", " ").split())
