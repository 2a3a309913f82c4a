"""Closing: notes, one commit on the integration branch, nothing left behind; and what a crash leaves is made good."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import GuildError, MergeConflict
from guildhall.hall.composition.recovery import Recovery
from guildhall.projects.meetings import records
from guildhall.projects.meetings.states import Closing, next_step
from guildhall.runs.record.entries import ModelAsked, ToolEnded
from tests.projects.meetings.parlour import call, say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.conftest import Guild
    from tests.projects.meetings.parlour import Parlour


def notes(parlour: Parlour, meeting: Meeting) -> str:
    return parlour.repo.at("claude/main", f".lore/meetings/{meeting.id}.md")


def test_notes_are_written_without_a_summary_and_say_so(parlour: Parlour) -> None:
    parlour.script([call("summarize_progress", summary="Half way."), say("ok")], summary=None)

    async def work() -> None:
        meeting = await parlour.opened()
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        assert "No summary: " in notes(parlour, meeting)
        assert "Half way." in notes(parlour, meeting)

    parlour.inside(work)


def test_the_summary_is_a_run_of_its_own_without_tools(parlour: Parlour) -> None:
    parlour.script([say("Parquet.")])

    async def work() -> None:
        meeting = await parlour.opened("Which form?")
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        (run,) = [one for one in parlour.hall.history.recent() if one.worker == "meeting-summariser"]
        asked = parlour.hall.history.journal(run.id).all(ModelAsked)
        assert len(asked) == 1
        assert parlour.hall.history.entries(run.id)[0].data.tools == []
        assert "| Which form?" in parlour.told(run.id)
        assert "| Parquet." in parlour.told(run.id)
        assert "meeting-summariser" not in parlour.told(meeting.run)

    parlour.inside(work)


def test_closed_before_anybody_came(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.client.meetings.open("architect", "never mind", parlour.frame)
        closed = await parlour.client.meetings.close(meeting.id, parlour.frame)
        assert closed.status == "closed"
        assert "the user did not join" in notes(parlour, meeting)
        parlour.repo.fsck()

    parlour.inside(work)


def test_a_conflict_keeps_it_open_and_names_the_files(parlour: Parlour) -> None:
    parlour.worker(checkout="full")
    parlour.script([call("Write", file_path="src/cart.py", content="total = 2\n"), say("changed")])

    async def work() -> None:
        meeting = await parlour.opened()
        await parlour.quiet()
        branches = parlour.hall.project_services.branches(parlour.hall.projects.get("shop"))
        await asyncio.to_thread(branches.write, {"src/cart.py": b"total = 3\n"}, "Another", "somebody")
        with pytest.raises(MergeConflict) as refused:
            await parlour.client.meetings.close(meeting.id, parlour.frame)
        assert refused.value.files == ("src/cart.py",)
        assert meeting.id in (refused.value.hint or "")
        assert parlour.meetings.get(meeting.id).status == "open"
        assert next_step(parlour.meetings.get(meeting.id)) == "restore_checkout", "the close is not repeated"
        assert parlour.repo.git("branch", "--list", "claude/meeting/*")
        await asyncio.to_thread(branches.write, {"src/cart.py": b"total = 1\n"}, "Taken back", "somebody")
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        assert parlour.repo.at("claude/main", "src/cart.py") == "total = 2"
        parlour.repo.fsck()

    parlour.inside(work)


@pytest.mark.req("MTG-20")
def test_what_cannot_be_merged_is_left_on_its_branch_and_the_meeting_is_over(
    parlour: Parlour, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parlour.repo.path)
    parlour.worker(checkout="full")
    parlour.script([call("Write", file_path="src/cart.py", content="total = 2\n"), say("changed")])
    id = guild("meet", "architect", "The total", "--output", "json").json["meeting"]
    parlour.repo.commit({"src/cart.py": "total = 3\n"})
    refused = guild("meet", "--close", id, "--no-summary")
    assert (refused.code, f"guild meet {id} --close --leave-work" in refused.err) == (1, True)
    assert guild("meet", "--close", id, "--no-summary", "--leave-work").code == 0
    text = parlour.repo.at("claude/main", f".lore/meetings/{id}.md")
    assert f"Not merged. It is on the branch claude/meeting/{id}." in text
    assert parlour.repo.at("claude/main", "src/cart.py") == "total = 3"
    assert parlour.repo.at(f"claude/meeting/{id}", "src/cart.py") == "total = 2"
    assert guild("project", "rm", "shop").code == 0


def test_what_was_being_closed_is_closed_at_the_next_start(parlour: Parlour) -> None:
    meeting = parlour.inside(parlour.opened)

    async def recovers() -> None:
        store, now = parlour.hall.store, parlour.meetings.context.now()
        await store.write(lambda c: records.change(c, meeting.id, now, closing=Closing()))
        await Recovery(parlour.hall).resume_runs()
        await parlour.until(lambda: parlour.meetings.get(meeting.id).status == "closed")
        await parlour.until(lambda: not parlour.meetings.has_pending_resume)
        assert "They talked." in notes(parlour, meeting)
        assert parlour.repo.git("branch", "--list", "claude/meeting/*") == ""

    parlour.inside(recovers)


def test_a_message_withdraws_an_interrupted_close(parlour: Parlour) -> None:
    parlour.script([say("one"), say("two")])
    meeting = parlour.inside(parlour.opened)

    async def continues() -> None:
        store, now = parlour.hall.store, parlour.meetings.context.now()
        await store.write(lambda c: records.change(c, meeting.id, now, closing=Closing()))
        await parlour.said(meeting.id, "Wait, one more thing.")
        await parlour.quiet()

    parlour.inside(continues)

    async def recovers() -> None:
        await Recovery(parlour.hall).resume_runs()
        await parlour.until(lambda: not parlour.meetings.has_pending_resume)
        found = parlour.meetings.get(meeting.id)
        assert (found.status, found.closing) == ("open", None)
        assert parlour.answers(meeting.id)[-1] == ("Wait, one more thing.", "two")

    parlour.inside(recovers)


def test_a_close_that_fails_is_repeated_at_the_next_start(parlour: Parlour) -> None:
    """Unlike a merge conflict: something outside of the meeting is wrong."""
    meeting = parlour.inside(parlour.opened)
    parlour.repo.git("checkout", "-q", "claude/main")  # nobody else can move it now

    async def fails() -> None:
        with pytest.raises(GuildError):
            await parlour.client.meetings.close(meeting.id, parlour.frame, leave_work=True, summarise=False)
        found = parlour.meetings.get(meeting.id)
        assert (found.status, next_step(found)) == ("open", "close")

    parlour.inside(fails)
    parlour.repo.git("checkout", "-q", "main")

    async def recovers() -> None:
        await Recovery(parlour.hall).resume_runs()
        await parlour.until(lambda: parlour.meetings.get(meeting.id).status == "closed")
        await parlour.until(lambda: parlour.meetings.get(meeting.id).cleaned_up_at)
        assert parlour.meetings.get(meeting.id).is_work_left, "it is closed as the user asked for"
        assert parlour.repo.git("branch", "--list", "claude/meeting/*")

    parlour.inside(recovers)


def test_while_it_answers_it_can_be_closed(parlour: Parlour) -> None:
    parlour.script([say("one"), {"sleep": 30, "say": "never"}])

    async def work() -> None:
        meeting = await parlour.opened()
        talking = asyncio.create_task(parlour.said(meeting.id, "go"))
        await parlour.until(lambda: len(parlour.hall.history.journal(meeting.run).all(ModelAsked)) == 2)
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        await talking
        assert parlour.hall.history.get(meeting.run).status == "completed"

    parlour.inside(work)


def test_two_who_close_at_once(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        closing = (parlour.client.meetings.close(meeting.id, parlour.frame) for _ in range(2))
        came = await asyncio.gather(*closing, return_exceptions=True)
        assert sorted(type(one).__name__ for one in came) == ["Conflict", "Meeting"]
        assert parlour.repo.git("log", "--format=%s", "claude/main").count("Meeting with architect: ") == 1

    parlour.inside(work)


def test_what_cannot_be_linked(parlour: Parlour) -> None:
    paths = ["", "plan.md", ".lore", "../x", ".lore/../x", "/etc/passwd", ".lore/none.md", "a\0b"]
    parlour.script([*(call("link_artifact", path=path) for path in paths), say("no")])

    async def work() -> None:
        meeting = await parlour.opened()
        assert parlour.shown(meeting.id).meeting.linked == ()
        ended = parlour.hall.history.journal(meeting.run).all(ToolEnded)
        assert [entry.data.result["is_error"] for entry in ended] == [True] * len(paths)

    parlour.inside(work)


@pytest.mark.req("SYS-38")
def test_a_checkout_that_is_gone_is_there_again_at_the_next_start(parlour: Parlour) -> None:
    parlour.script([call("Write", file_path=".lore/new.md", content="new"), say("one"), say("two")])

    async def gone() -> Meeting:
        meeting = await parlour.opened()
        await parlour.quiet()
        place = parlour.hall.projects.get("shop")
        await asyncio.to_thread(parlour.hall.project_services.worktrees.commit, place, meeting.id, "kept", "architect")
        shutil.rmtree(parlour.hall.project_services.worktrees.path(place, meeting.id))
        return meeting

    meeting = parlour.inside(gone)

    async def back() -> None:
        await Recovery(parlour.hall).resume_runs()
        await parlour.until(lambda: not parlour.meetings.has_pending_resume)
        path = parlour.hall.project_services.worktrees.path(parlour.hall.projects.get("shop"), meeting.id)
        assert (path / ".lore/new.md").read_text() == "new"
        shutil.rmtree(path)
        await parlour.said(meeting.id, "still there?")
        assert (path / ".lore/new.md").read_text() == "new"

    parlour.inside(back)


def test_what_git_ignores_of_a_meeting_is_kept_and_named(parlour: Parlour) -> None:
    parlour.repo.commit({".gitignore": "*.draft\n"})
    parlour.script([call("Write", file_path="export.draft", content="Export\n"), say("Written.")])

    async def work() -> None:
        meeting = await parlour.opened()
        await parlour.quiet()
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        kept = f"refs/guildhall/kept/ignored/meeting/{meeting.id}"
        assert parlour.repo.at(kept, "export.draft") == "Export"
        last = parlour.shown(meeting.id).timeline[-1].reason
        assert last.endswith(f"kept at {kept}: export.draft")

    parlour.inside(work)
