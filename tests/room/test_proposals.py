"""Proposals: decided by their resolution, applied if binding, announced to all agents and archived."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import Refused
from guildhall.room import ballots, records
from guildhall.room.ballots import decide
from guildhall.room.model import Actor, Proposal
from guildhall.room.service import Rooms, RoomSettings, perform_in
from tests.room.conftest import PERSON, TEAM, RecordingListener, TickingClock, agent
from tests.room.tool_calls import ToolCaller, count_unread, end_proposals, unread_mail, vote

if TYPE_CHECKING:
    from guildhall.room.service import Room
    from guildhall.store.engine import Store

VOTERS = ("a", "b", "c", "d")


def make_proposal(**values: Any) -> Proposal:
    given: dict[str, Any] = {
        "number": 1,
        "type": "decision",
        "title": "which",
        "options": ("x", "y", "z"),
        "resolution": "plurality",
        "binding": True,
        "quorum": 4,
        "tie_break": "first",
        "guards": (),
        "eligible": VOTERS,
        "creator": "b",
        "created_at": "now",
    }
    return Proposal(**{**given, **values})


def parse_votes(text: str) -> dict[str, str]:
    """Return the votes of a text: in `xy.z`, a votes for x, b for y, c not yet, d for z."""
    return {name: choice for name, choice in zip(VOTERS, text, strict=False) if choice != "."}


@pytest.mark.req("AW-10")
@pytest.mark.parametrize(
    ("resolution", "quorum", "cast", "ending", "status", "result"),
    [
        ("plurality", 4, "xxy.", "vote", None, None),
        ("plurality", 4, "xyyz", "vote", "resolved", "y"),
        ("plurality", 4, "zzyy", "vote", "resolved", "y"),
        ("plurality", 2, "z.z.", "vote", "resolved", "z"),
        ("plurality", 4, "z...", "idle", "resolved", "z"),
        ("plurality", 4, "....", "idle", "expired", None),
        ("plurality", 4, "zzz.", "timeout", "expired", None),
        ("majority", 4, "xxx.", "vote", None, None),
        ("majority", 3, "xxx.", "vote", "resolved", "x"),
        ("majority", 4, "xxyy", "vote", "rejected", None),
        ("majority", 4, "xxyx", "vote", "resolved", "x"),
        ("majority", 2, "xy..", "vote", None, None),
        ("majority", 3, "xyz.", "vote", "rejected", None),
        ("majority", 4, "xxx.", "idle", "resolved", "x"),
        ("majority", 4, "xx..", "idle", "expired", None),
        ("majority", 4, "xxx.", "timeout", "expired", None),
        ("unanimous", 4, "xxxx", "vote", "resolved", "x"),
        ("unanimous", 4, "xxx.", "vote", None, None),
        ("unanimous", 4, "xxxy", "vote", "rejected", None),
        ("unanimous", 2, "xy..", "vote", "rejected", None),
        ("unanimous", 2, "xx..", "vote", None, None),
        ("unanimous", 4, "xxx.", "idle", "expired", None),
        ("unanimous", 4, "xxx.", "timeout", "expired", None),
    ],
)
def test_each_resolution_decides_by_its_rule(
    resolution: str, quorum: int, cast: str, ending: Any, status: str | None, result: str | None
):
    outcome = decide(make_proposal(resolution=resolution, quorum=quorum), parse_votes(cast), ending, "now")
    assert (outcome.status, outcome.result) == (status, result) if outcome else status is None


@pytest.mark.req("AW-10")
@pytest.mark.parametrize(("tie_break", "result"), [("first", "x"), ("creator", "z")])
def test_a_tie_is_broken(tie_break: str, result: str):
    outcome = decide(make_proposal(tie_break=tie_break), parse_votes("xzzx"), "vote", "now")
    assert outcome is not None
    assert outcome.result == result
    tied = decide(make_proposal(tie_break=tie_break, creator="person"), parse_votes("xzzx"), "vote", "now")
    assert tied is not None
    assert tied.result == "x"


def test_a_random_tie_break_is_fair_and_repeatable():
    drawn = [decide(make_proposal(tie_break="random"), parse_votes("xzzx"), "vote", f"{n}") for n in range(60)]
    assert drawn == [decide(make_proposal(tie_break="random"), parse_votes("xzzx"), "vote", f"{n}") for n in range(60)]
    assert {outcome.result for outcome in drawn if outcome} == {"x", "z"}


@pytest.mark.req("AW-9")
@pytest.mark.parametrize("ending", ["idle", "timeout"])
@pytest.mark.parametrize(("cast", "result"), [("....", "x"), ("z...", "z"), ("zy.y", "y"), ("zy..", "y")])
def test_an_expired_election_falls_back_to_the_most_votes_and_then_to_the_first_option(
    ending: Any, cast: str, result: str
):
    for resolution in ("plurality", "majority", "unanimous"):
        outcome = decide(make_proposal(type="election", resolution=resolution), parse_votes(cast), ending, "now")
        assert outcome is not None
        assert outcome.result == result


# In a room


@pytest.fixture
def room(rooms: Rooms) -> Room:
    return asyncio.run(rooms.open("/project", "review", "main", TEAM, RoomSettings()))


def cast_votes(room: Room, id: str, **choices: str) -> str:
    return [ToolCaller(room, name)("proposal_vote", proposal=id, choice=choice) for name, choice in choices.items()][-1]


def read_channel(room: Room) -> list[tuple[str, str, str]]:
    return [(message.kind, message.sender, message.content.partition("\n")[0]) for message in room.list_messages()]


@pytest.mark.req("AW-10", "AW-19")
def test_a_proposal_is_announced_voted_on_resolved_and_archived(room: Room, listener: RecordingListener):
    coder = ToolCaller(room, "coder")
    made = coder("proposal_create", type="decision", title="Which parser", options=["hand", "regex"])
    assert made == "Opened p-1. Vote on it yourself, too."
    assert listener.woken_agents == [{"coordinator", "reviewer"}]
    assert "still open" in cast_votes(room, "p-1", coder="regex", reviewer="hand")
    assert "Not voted yet: coordinator" in coder("proposal_status", proposal="p-1")
    assert cast_votes(room, "p-1", coordinator="HAND") == "Vote recorded. p-1 has ended: hand (3 of 3 voted)."
    assert read_channel(room) == [
        ("proposal", "coder", "[PROPOSAL] p-1 'Which parser' (decision, plurality, binding)"),
        ("resolved", "system", "[RESOLVED] p-1 'Which parser': hand (3 of 3 voted)"),
    ]
    assert listener.woken_agents[-1] == {"coder"}  # the creator is notified
    archive = coder("document_read", file="decisions.md")
    assert "## p-1 Which parser\n\n- Result: **hand** (resolved, 3 of 3 voted)" in archive
    assert "- regex: coder" in archive
    assert room.list_proposals()[0].archived
    assert "is not open" in coder.call_refused("proposal_vote", proposal="p-1", choice="hand")


def test_a_vote_may_be_changed_while_it_is_open(room: Room):
    ToolCaller(room, "coder")("proposal_create", type="decision", title="q", options=["x", "y"])
    cast_votes(room, "p-1", coder="x", reviewer="y")
    cast_votes(room, "p-1", coder="y")
    assert "has ended: y" in cast_votes(room, "p-1", coordinator="x")
    assert [vote.choice for vote in room.list_votes(room.list_proposals()[0])] == ["y", "x", "y"]


@pytest.mark.req("AW-10")
def test_a_binding_decision_is_not_reopened_and_an_advisory_one_is(room: Room):
    coder = ToolCaller(room, "coder")
    given: dict[str, Any] = {"type": "decision", "options": ["x", "y"], "quorum": 1}
    coder("proposal_create", title="Which  way", **given)
    cast_votes(room, "p-1", coder="y")
    assert "p-1 has decided 'Which  way': y" in coder.call_refused("proposal_create", title="which-way", **given)
    coder("proposal_create", title="advice", binding=False, **given)
    cast_votes(room, "p-2", coder="x")
    coder("proposal_create", title="advice", binding=False, **given)


@pytest.mark.req("AW-10")
def test_a_binding_election_assigns_the_role_and_an_advisory_one_does_not(room: Room):
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="election", title="Release manager", quorum=2)
    cast_votes(room, "p-1", coder="reviewer", reviewer="reviewer")
    assert room.read_record().roles == {"release manager": "reviewer"}
    assert "@reviewer (release manager)" in coder("team_list")
    coder("proposal_create", type="election", title="chair", quorum=1, binding=False)
    cast_votes(room, "p-2", coder="coder")
    assert "chair" not in room.read_record().roles
    coder("proposal_create", type="election", title="document-owner", quorum=1)
    cast_votes(room, "p-3", coder="coder")
    assert room.read_record().owner == "coder"
    assert "only the document owner coder can change" in ToolCaller(room, "reviewer").call_refused(
        "document_write", content="x"
    )


@pytest.mark.req("AW-10")
@pytest.mark.parametrize("binding", [True, False])
def test_a_binding_assignment_is_posted_to_the_assigned_agent(room: Room, listener: RecordingListener, binding: bool):
    coordinator = ToolCaller(room, "coordinator")
    coordinator("proposal_create", type="assignment", title="fix line 3", quorum=1, binding=binding)
    cast_votes(room, "p-1", reviewer="coder")
    mail = [mail for mail in unread_mail(room, "coder") if mail.message.kind == "assignment"]
    assert bool(mail) is binding
    if binding:
        assert mail[0].urgency == "high"
        assert mail[0].message.content == "fix line 3\nThis task was assigned to you by p-1."
        assert "coder" in listener.woken_agents[-1]
        assert "task: fix line 3" in coordinator("team_list")


@pytest.mark.req("AW-10")
def test_a_binding_approval_closes_its_guards_until_it_passes(room: Room):
    coder = ToolCaller(room, "coder")
    guards = ["release/", "notes.md", "Bash"]
    coder("proposal_create", type="approval", title="release", guards=guards, resolution="unanimous")
    for file in ("notes.md", "release/1.md", "release/a/b.md"):
        message = coder.call_refused("document_write", file=file, content="x")
        assert "is closed until p-1 'release' passes" in message
    coder("document_write", file="other.md", content="x")
    assert coder("document_list")
    guard = room.find_guard("Bash")
    assert guard is not None
    assert "Bash is closed until p-1" in str(ballots.closed_error(guard, "Bash"))
    cast_votes(room, "p-1", coder="approve", reviewer="approve", coordinator="reject")
    assert room.list_proposals()[0].status == "rejected"
    assert "was rejected" in coder.call_refused("document_write", content="x")  # a rejected proposal keeps it closed
    coder("proposal_create", type="approval", title="release, again", guards=guards)
    cast_votes(room, "p-2", coder="approve", reviewer="approve", coordinator="reject")
    coder("document_write", content="x")
    assert room.find_guard("Bash") is None
    coder("proposal_create", type="approval", title="once more", guards=["document_write"])
    assert "document_write is closed" in coder.call_refused("document_write", content="y")
    coder("document_append", content="y")
    coder("proposal_cancel", proposal="p-3")
    coder("document_read")
    coder("document_write", content="y")


def test_an_approval_opens_nothing_if_its_first_option_does_not_win(room: Room):
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="approval", title="x", options=["go", "no-go"], guards=["notes.md"], quorum=1)
    cast_votes(room, "p-1", reviewer="no-go")
    assert room.list_proposals()[0].status == "resolved"
    assert "is closed until p-1" in coder.call_refused("document_append", content="x")


def test_only_the_creator_cancels_a_proposal(room: Room):
    ToolCaller(room, "coder")("proposal_create", type="approval", title="x")
    reviewer = ToolCaller(room, "reviewer")
    assert "cannot cancel p-1: only coder can" in reviewer.call_refused("proposal_cancel", proposal="p-1")
    assert ToolCaller(room, "coder")("proposal_cancel", proposal="1") == "Cancelled p-1."
    assert "(cancelled)" in ToolCaller(room, "coder").call_refused("proposal_cancel", proposal="p-1")
    assert read_channel(room)[-1] == ("system", "coder", "p-1 'x' was cancelled.")


@pytest.mark.req("AW-10")
def test_a_proposal_expires_at_its_timeout(room: Room, clock: TickingClock, store: Store):
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="decision", title="q", options=["x", "y"], timeout="1h")
    coder("proposal_create", type="election", title="chair", timeout=60)
    coder("proposal_create", type="approval", title="no end")
    assert asyncio.run(end_proposals(room, "expire_proposals")) == []
    assert store.read(lambda c: ballots.next_expiry(c, room.id)) == room.list_proposals()[1].expires_at
    clock.at += timedelta(hours=2)
    assert "p-1 has expired" in coder.call_refused("proposal_vote", proposal="p-1", choice="x")
    ended = asyncio.run(end_proposals(room, "expire_proposals"))
    assert [(one.id, one.status, one.result) for one in ended] == [
        ("p-1", "expired", None),
        ("p-2", "expired", TEAM[0]),
    ]
    assert room.read_record().roles == {"chair": TEAM[0]}
    assert [text for kind, _, text in read_channel(room) if kind == "expired"] == [
        "[EXPIRED] p-1 'q': no result (the time to vote was up; 0 of 3 voted)",
        f"[EXPIRED] p-2 'chair': {TEAM[0]} (the time to vote was up, so the first name decided; 0 of 3 voted)",
    ]
    assert "p-2 chair" in coder("document_read", file="decisions.md")
    assert "p-1" not in coder("document_read", file="decisions.md")


@pytest.mark.req("AW-10")
def test_open_proposals_are_resolved_in_the_transaction_of_the_caller(
    room: Room, store: Store, listener: RecordingListener
):
    ToolCaller(room, "coder")("proposal_create", type="decision", title="q", options=["x", "y"])
    cast_votes(room, "p-1", reviewer="y")

    async def settle_in_transaction() -> None:
        turns: list[Any] = []

        def settle(connection: Any) -> list[str]:
            performed = perform_in(connection, room.id, "end_proposals", Actor.system(), room.now())
            turns.append(performed.turn)
            return [one.status for one in records.list_proposals(connection, room.id)]

        assert await store.write(settle) == ["resolved"]
        assert listener.woken_agents == [{"coordinator", "reviewer"}]  # no agent is woken before the commit
        await room.announce(turns[0])

    asyncio.run(settle_in_transaction())
    assert listener.woken_agents[-1] == {"coder"}
    assert "**y**" in ToolCaller(room, "coder")("document_read", file="decisions.md")
    assert asyncio.run(end_proposals(room, "end_proposals")) == []
    assert store.read(lambda c: records.open_proposals(c, room.id)) == []


def test_two_elections_that_end_together_both_assign_their_role(room: Room):
    for title in ("chair", "scribe"):
        ToolCaller(room, "coder")("proposal_create", type="election", title=title)
    asyncio.run(end_proposals(room, "end_proposals"))
    assert room.read_record().roles == {"chair": TEAM[0], "scribe": TEAM[0]}


@pytest.mark.req("AW-9")
def test_the_election_of_an_owner_wakes_no_agent(room: Room, listener: RecordingListener):
    election = asyncio.run(room.elect_owner(Actor.system(), timeout_s=60))
    assert (election.title, election.options, election.creator) == ("document owner", TEAM, "system")
    for name, choice in {"coordinator": "coder", "reviewer": "coder", "coder": "reviewer"}.items():
        election = asyncio.run(vote(room, election.id, choice, agent(name)))
    assert (election.status, election.result) == ("resolved", "coder")
    assert room.read_record().owner == "coder"
    assert listener.wakes == []
    assert count_unread(room) == {}


@pytest.mark.req("AW-9")
def test_an_election_without_votes_elects_the_first_agent_of_the_file(room: Room):
    asyncio.run(room.elect_owner(Actor.system()))
    (ended,) = asyncio.run(end_proposals(room, "end_proposals"))
    assert (ended.status, ended.result) == ("expired", TEAM[0])
    assert room.read_record().owner == TEAM[0]


def test_the_owner_set_in_the_file_is_not_voted_out(rooms: Rooms):
    room = asyncio.run(rooms.open("/project", "review", "main", TEAM, RoomSettings(owner="coder")))
    assert "sets the document owner" in ToolCaller(room, "reviewer").call_refused(
        "proposal_create", type="election", title="Document Owner"
    )
    with pytest.raises(Refused):
        asyncio.run(room.elect_owner(Actor.system()))


@pytest.mark.parametrize(
    "given",
    [
        {"type": "decision", "title": "q"},
        {"type": "decision", "title": "q", "options": ["one"]},
        {"type": "decision", "title": "q", "options": ["x", "X"]},
        {"type": "decision", "title": "q", "options": ["x", ""]},
        {"type": "decision", "title": "q", "options": ["x", "a\nb"]},
        {"type": "decision", "title": "q", "options": ["x", "y" * 501]},
        {"type": "decision", "title": "q", "options": [f"{n}" for n in range(21)]},
        {"type": "decision", "title": "", "options": ["x", "y"]},
        {"type": "decision", "title": "a\nb", "options": ["x", "y"]},
        {"type": "decision", "title": "a\u202eb", "options": ["x", "y"]},
        {"type": "decision", "title": "q", "options": ["x", "y"], "quorum": 0},
        {"type": "decision", "title": "q", "options": ["x", "y"], "quorum": 4},
        {"type": "decision", "title": "q", "options": ["x", "y"], "timeout": "0s"},
        {"type": "decision", "title": "q", "options": ["x", "y"], "timeout": -5},
        {"type": "decision", "title": "q", "options": ["x", "y"], "timeout": "31d"},
        {"type": "decision", "title": "q", "options": ["x", "y"], "timeout": "soon"},
        {"type": "decision", "title": "q", "options": ["x", "y"], "guards": ["notes.md"]},
        {"type": "approval", "title": "q", "guards": ["notes.md"], "binding": False},
        {"type": "approval", "title": "q", "guards": ["../x.md"]},
        {"type": "approval", "title": "q", "guards": ["proposal_vote"]},
        {"type": "approval", "title": "q", "guards": ["channel_send"]},
        {"type": "approval", "title": "q", "guards": [f"{n}.md" for n in range(21)]},
        {"type": "election", "title": "chair", "options": ["nobody", "coder"]},
        {"type": "assignment", "title": "task", "options": ["person"]},
        {"type": "coup", "title": "q"},
        {"type": "decision", "title": "q", "options": ["x", "y"], "resolution": "force"},
        {"type": "decision", "title": "q", "options": ["x", "y"], "tie_break": "last"},
    ],
)
def test_invalid_proposals_are_refused(room: Room, given: dict[str, Any]):
    ToolCaller(room, "coder").call_refused("proposal_create", **given)
    assert room.list_proposals() == []
    assert room.list_messages() == []


@pytest.mark.parametrize("id", ["p-2", "", "x", "p-", "-1", "p-9999999999999", "\0", "\ud800", "p-1 OR 1=1", "٣"])
def test_an_unknown_proposal_is_refused(room: Room, id: str):
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="approval", title="x")
    for name, more in {"proposal_vote": {"choice": "approve"}, "proposal_status": {}, "proposal_cancel": {}}.items():
        coder.call_refused(name, proposal=id, **more)


def test_invalid_votes_are_refused(room: Room, rooms: Rooms):
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="approval", title="x")
    assert "Did you mean 'approve'?" in coder.call_refused("proposal_vote", proposal="p-1", choice="aprove")
    coder.call_refused("proposal_vote", proposal="p-1", choice="approve", reason="a\nb")
    asyncio.run(rooms.open("/project", "review", "main", (*TEAM, "late")))
    assert "you cannot vote" in ToolCaller(room, "late").call_refused("proposal_vote", proposal="p-1", choice="approve")
    assert room.list_votes(room.list_proposals()[0]) == []
    with pytest.raises(Refused):
        asyncio.run(vote(room, "p-1", "approve", PERSON))


def test_a_room_has_a_maximum_of_open_proposals(room: Room):
    coder = ToolCaller(room, "coder")
    for number in range(20):
        coder("proposal_create", type="approval", title=f"{number}")
    assert "too many open proposals (limit: 20)" in coder.call_refused(
        "proposal_create", type="approval", title="one more"
    )


def test_names_in_a_title_are_not_mentions(room: Room, listener: RecordingListener):
    ToolCaller(room, "coder")("proposal_create", type="decision", title="@nobody or @reviewer", options=["@coder", "y"])
    assert listener.woken_agents == [{"coordinator", "reviewer"}]


def test_a_result_that_a_crash_left_unarchived_is_archived_when_the_room_is_opened(
    room: Room, rooms: Rooms, store: Store
):
    """The result is committed. The process dies before the archive is written, or before that is recorded."""
    coder = ToolCaller(room, "coder")
    coder("proposal_create", type="decision", title="q", options=["x", "y"], quorum=1)

    def crash(connection: Any) -> None:
        perform_in(connection, room.id, "proposal_vote", agent("reviewer"), room.now(), proposal="p-1", choice="x")

    store.submit(crash).result(5)
    assert coder("document_list") == "No documents."
    asyncio.run(rooms.open("/project", "review", "main", TEAM))
    store.submit(
        lambda c: c.exec_driver_sql("UPDATE proposals SET archived = 0")  # the second crash, one step later
    ).result(5)
    asyncio.run(rooms.open("/project", "review", "main", TEAM))
    assert coder("document_read", file="decisions.md").count("## p-1 q") == 1
