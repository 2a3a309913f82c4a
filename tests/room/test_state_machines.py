"""Inboxes and proposals agree with a simple model after any sequence of operations."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from guildhall.core.errors import GuildError
from guildhall.room import ballots, inbox, records
from guildhall.room.model import Actor
from guildhall.room.service import Rooms, RoomSettings
from guildhall.store.engine import Store, scratch
from guildhall.store.schema import prepare
from tests.room.conftest import RecordingListener, TickingClock
from tests.room.test_replay import first_difference
from tests.room.tool_calls import ToolCaller, count_unread, end_proposals, perform, unread_mail, vote

TEAM = ("a", "b", "c")
AGENTS = st.sampled_from(TEAM)


class RoomMachine(RuleBasedStateMachine):
    """A room on a real database. A rule replaces its process by another one."""

    empty_database: Path | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        if type(self).empty_database is None:
            type(self).empty_database = Path(tempfile.mkdtemp()) / "hall.db"
            prepare(type(self).empty_database)
        self.database = self.folder / "hall.db"
        shutil.copy(type(self).empty_database, self.database)
        self.clock = TickingClock()
        self.runner = asyncio.Runner()
        self.store: Store | None = None
        self.open()

    def open(self) -> None:
        if self.store is not None:
            self.store.close()
        self.listener = RecordingListener()
        self.store = Store(self.database)
        self.rooms = Rooms(self.store, self.clock, self.listener.room_listener)
        self.room = self.runner.run(self.rooms.open("/project", "review", "main", TEAM, RoomSettings(max_hops=3)))

    @rule()
    def restart(self) -> None:
        self.open()

    def write(self, fn: Any) -> Any:
        return self.store.submit(fn).result(5)

    def perform(self, name: str, actor: Actor, **arguments: Any) -> Any:
        return perform(self.store, self.room, name, actor, **arguments)

    def teardown(self) -> None:
        """Check that a replay of the log makes the same room."""
        with scratch() as empty:
            assert self.runner.run(first_difference(self.store, self.room.id, empty)) is None
        self.runner.close()
        self.store.close()
        shutil.rmtree(self.folder)


class InboxMachine(RoomMachine):
    """A model of the inboxes: the status of every message for every agent."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.status: dict[str, dict[int, str]] = {name: {} for name in TEAM}
        self.hops: dict[int, int] = {}
        self.shown: dict[str, int] = {}  # last shown message of each run
        self.deepest: dict[str, int | None] = {}
        self.count = 0

    def _post(self, sender: str, to: set[str], hops: int, *, run: str | None = None) -> None:
        text = " ".join(f"@{name}" for name in sorted(to)) + f" hello {self.count}"
        before = len(self.listener.wakes)
        posted = self.runner.run(self.room.send(text, Actor(name=sender, run=run)))
        self.count += 1
        assert posted.id == self.count
        self.hops[posted.id] = hops
        reached = to - {sender}
        held = hops > 3 and bool(reached)
        assert (set(posted.reached), posted.held) == (reached, held)
        for name in reached:
            self.status[name][posted.id] = "held" if held else "unread"
        assert self.listener.woken_agents[before:] == ([reached] if reached and not held else [])

    @rule(to=st.sets(AGENTS))
    def the_user_sends_a_message(self, to: set[str]) -> None:
        self._post("person", to, 0)

    @rule(target=runs, name=AGENTS, number=st.integers(1, 10**9))
    def a_run_starts(self, name: str, number: int) -> tuple[str, str]:
        run = f"r-{number}-{len(self.shown)}"
        batch = unread_mail(self.room, name)
        self.perform("inbox_shown", Actor(name=name, run=run, key="inbox"), left=0, **inbox.describe_batch(batch))
        self._note_shown(name, run)
        return name, run

    def _note_shown(self, name: str, run: str) -> None:
        unread = [number for number, status in self.status[name].items() if status == "unread"]
        self.shown[run] = max([self.shown.get(run, 0), *unread])
        depths = [self.hops[number] for number in unread]
        known = self.deepest.get(run)
        self.deepest[run] = max([*depths, *([known] if known is not None else [])], default=None)

    @rule(run=runs)
    def the_run_reads_its_inbox(self, run: tuple[str, str]) -> None:
        self.runner.run(ToolCaller(self.room, run[0], run=run[1]).call_async("inbox_read"))
        self._note_shown(*run)

    @rule(run=runs, to=st.sets(AGENTS))
    def the_run_sends_a_message(self, run: tuple[str, str], to: set[str]) -> None:
        deepest = self.deepest[run[1]]
        self._post(run[0], to, 0 if deepest is None else deepest + 1, run=run[1])

    @rule(run=runs, outcome=st.sampled_from(["done", "dead", "failed"]))
    def the_run_ends(self, run: tuple[str, str], outcome: str) -> None:
        name, id = run
        until = self.store.read(lambda c: records.shown_inbox(c, self.room.id, id)).last_message_number
        assert until == self.shown[id]
        if outcome == "done":
            self.perform("acknowledge", Actor(name=name, run=id), agent=name, until=until)
        elif outcome == "dead":
            self.perform("mark_dead", Actor.system(id), agent=name, until=until)
        if outcome != "failed":
            self._move(name, "unread", outcome, until)

    def _move(self, name: str, was: str, now: str, until: int) -> None:
        for number, status in self.status[name].items():
            if status == was and number <= until:
                self.status[name][number] = now

    @rule(name=AGENTS)
    def dead_letters_are_redelivered(self, name: str) -> None:
        self.perform("redeliver", Actor.person(), agent=name)
        self._move(name, "dead", "unread", self.count)

    @rule()
    def the_user_releases_held_messages(self) -> None:
        self.perform("release_messages", Actor.person())
        for name in TEAM:
            for number, status in self.status[name].items():
                if status == "held":
                    self.hops[number] = 0
            self._move(name, "held", "unread", self.count)

    @invariant()
    def inboxes_match_the_model(self) -> None:
        for name in TEAM:
            expected = [number for number, status in self.status[name].items() if status == "unread"]
            assert [mail.message.id for mail in unread_mail(self.room, name)] == sorted(expected)
        counts = {name: sum(s == "unread" for s in self.status[name].values()) for name in TEAM}
        assert count_unread(self.room) == {name: count for name, count in counts.items() if count}
        assert len(self.room.list_messages()) == self.count


class ProposalMachine(RoomMachine):
    """A model of proposals: the votes of open proposals, and the results of ended proposals."""

    def __init__(self) -> None:
        super().__init__()
        self.open_votes: dict[str, dict[str, str]] = {}
        self.ended: dict[str, tuple[str, str | None]] = {}
        self.made = 0

    @precondition(lambda self: self.made < 6)
    @rule(
        by=AGENTS,
        type=st.sampled_from(["election", "decision", "approval", "assignment"]),
        resolution=st.sampled_from(["plurality", "majority", "unanimous"]),
        binding=st.booleans(),
        quorum=st.none() | st.integers(1, 3),
        tie_break=st.sampled_from(["first", "random", "creator"]),
        timeout=st.none() | st.just(30.0),
    )
    def an_agent_proposes(self, by: str, **given: Any) -> None:
        self.made += 1
        options = {"decision": ("x", "y"), "approval": ()}.get(given["type"], ())
        guards = ("notes.md",) if given["type"] == "approval" and given["binding"] else ()
        values = {**given, "title": f"number {self.made}", "options": list(options), "guards": list(guards)}
        made = self.runner.run(ToolCaller(self.room, by).call_async("proposal_create", **values))
        assert made.text.startswith(f"Opened p-{self.made}.")
        self.open_votes[f"p-{self.made}"] = {}

    @precondition(lambda self: self.made)
    @rule(data=st.data(), by=AGENTS)
    def an_agent_votes(self, data: st.DataObject, by: str) -> None:
        one = data.draw(st.sampled_from(self.room.list_proposals()))
        choice = data.draw(st.sampled_from(one.options))
        try:
            after = self.runner.run(vote(self.room, one.id, choice, Actor(name=by)))
        except GuildError:
            assert one.id not in self.open_votes or (one.expires_at or "z") <= self.room.now()
            return
        self.open_votes[one.id][by] = choice
        self._check_votes(after.id)
        if after.status != "open":
            self._check_ended(after)

    @precondition(lambda self: self.open_votes)
    @rule(data=st.data())
    def several_agents_vote(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open_votes)))
        (one,) = [each for each in self.room.list_proposals() if each.id == id]
        for name in TEAM[: data.draw(st.integers(1, 3))]:
            if id in self.open_votes and (one.expires_at or "z") > self.room.now():
                choice = data.draw(st.sampled_from(one.options))
                self.open_votes[id][name] = choice
                after = self.runner.run(vote(self.room, id, choice, Actor(name=name)))
                if after.status != "open":
                    self._check_ended(after)

    def _check_votes(self, id: str) -> None:
        (one,) = [each for each in self.room.list_proposals() if each.id == id]
        assert {vote.agent: vote.choice for vote in self.room.list_votes(one)} == self.open_votes[id]

    def _check_ended(self, one: Any) -> None:
        votes = self.open_votes.pop(one.id)
        counts = {option: list(votes.values()).count(option) for option in one.options}
        if one.status == "resolved":
            assert one.result is not None
            assert counts[one.result] == max(counts.values()) > 0
            assert one.resolution != "majority" or 2 * counts[one.result] > 3
            assert one.resolution != "unanimous" or counts[one.result] == 3
        elif one.status == "rejected":
            assert one.result is None
            assert one.resolution != "plurality"
        self.ended[one.id] = (one.status, one.result)

    @rule()
    def the_timeout_passes(self) -> None:
        for one in self.runner.run(end_proposals(self.room, "expire_proposals")):
            assert one.status == "expired"
            self._check_ended(one)

    @rule()
    def no_agent_can_continue(self) -> None:
        for one in self.runner.run(end_proposals(self.room, "end_proposals")):
            self._check_ended(one)
        assert self.open_votes == {}

    @rule(data=st.data())
    @precondition(lambda self: self.open_votes)
    def the_creator_cancels_a_proposal(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open_votes)))
        (one,) = [each for each in self.room.list_proposals() if each.id == id]
        if (one.expires_at or "z") <= self.room.now():
            return
        taken = self.runner.run(ToolCaller(self.room, one.creator).call_async("proposal_cancel", proposal=id))
        assert not taken.is_error
        del self.open_votes[id]
        self.ended[id] = ("cancelled", None)

    @invariant()
    def ended_proposals_do_not_change(self) -> None:
        found = self.room.list_proposals()
        assert {one.id for one in found if one.status == "open"} == self.open_votes.keys()
        assert {one.id: (one.status, one.result) for one in found if one.status != "open"} == self.ended
        assert all(one.archived for one in found if one.result is not None)
        kinds = [message.kind for message in self.room.list_messages()]
        assert kinds.count("proposal") == self.made
        closed = [status for status, _ in self.ended.values()]
        assert kinds.count("expired") == closed.count("expired")
        assert kinds.count("resolved") == closed.count("resolved") + closed.count("rejected")

    @invariant()
    def binding_results_are_applied(self) -> None:
        last = max((one for one in self.room.list_proposals() if one.guards), key=lambda one: one.number, default=None)
        guard = self.room.find_guard("x") or self.store.read(
            lambda c: ballots.find_guard(c, self.room.id, "document_write", "notes.md")
        )
        if last is not None and last.has_passed:
            assert guard is None
        if last is not None and last.status in ("open", "rejected", "expired"):
            assert guard == last
        roles = self.room.read_record().roles
        for one in self.room.list_proposals():
            if one.type == "election" and one.result is not None:
                assert (roles.get(one.title) == one.result) is one.binding
        posted = [message for message in self.room.list_messages() if message.kind == "assignment"]
        bound = [one for one in self.room.list_proposals() if one.type == "assignment" and one.binding and one.result]
        assert len(posted) == len(bound)
        archive = self.store.read(lambda c: records.log_entries(c, self.room.id))
        assert len([row for row in archive if row.op == "archive"]) == sum(
            one.result is not None for one in self.room.list_proposals()
        )


_SETTINGS = hypothesis.settings(
    max_examples=hypothesis.settings().max_examples // 4, stateful_step_count=20, deadline=None
)
TestInboxes = pytest.mark.req("AW-6")(InboxMachine.TestCase)
TestInboxes.settings = _SETTINGS
TestVotes = pytest.mark.req("AW-10")(ProposalMachine.TestCase)
TestVotes.settings = _SETTINGS
