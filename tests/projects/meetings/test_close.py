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
from tests.projects.meetings.harness import call, say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.conftest import Guild
    from tests.projects.meetings.harness import MeetingProject


def notes(harness: MeetingProject, meeting: Meeting) -> str:
    return harness.repo.at("guildhall/records", f".lore/meetings/{meeting.id}.md")


def test_notes_name_the_file_that_a_summary_needs(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        (harness.repo.path / "answers.yaml").unlink()
        await harness.client.meetings.close(meeting.id, harness.frame)
        assert "No summary: answers.yaml: " in notes(harness, meeting)

    harness.run_in_hall(work)


def test_notes_are_written_without_a_summary_and_say_so(harness: MeetingProject) -> None:
    harness.script([call("summarize_progress", summary="Half way."), say("ok")], summary=None)

    async def work() -> None:
        meeting = await harness.open_meeting()
        await harness.client.meetings.close(meeting.id, harness.frame)
        assert "No summary: " in notes(harness, meeting)
        assert "Half way." in notes(harness, meeting)

    harness.run_in_hall(work)


def test_the_summary_is_a_run_of_its_own_without_tools(harness: MeetingProject) -> None:
    harness.script([say("Parquet.")])

    async def work() -> None:
        meeting = await harness.open_meeting("Which form?")
        await harness.client.meetings.close(meeting.id, harness.frame)
        (run,) = [one for one in harness.hall.history.recent() if one.worker == "meeting-summariser"]
        asked = harness.hall.history.journal(run.id).all(ModelAsked)
        assert len(asked) == 1
        assert harness.hall.history.entries(run.id)[0].data.tools == []
        assert "| Which form?" in harness.model_input(run.id)
        assert "| Parquet." in harness.model_input(run.id)
        assert "meeting-summariser" not in harness.model_input(meeting.run)

    harness.run_in_hall(work)


def test_closed_before_anybody_came(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.client.meetings.open("architect", "never mind", harness.frame)
        closed = await harness.client.meetings.close(meeting.id, harness.frame)
        assert closed.status == "closed"
        assert "the user did not join" in notes(harness, meeting)
        harness.repo.fsck()

    harness.run_in_hall(work)


def test_a_conflict_keeps_it_open_and_names_the_files(harness: MeetingProject) -> None:
    harness.worker(checkout="full")
    harness.script([call("Write", file_path="src/cart.py", content="total = 2\n"), say("changed")])

    async def work() -> None:
        meeting = await harness.open_meeting()
        await harness.wait_idle()
        branches = harness.hall.project_services.branches(harness.hall.projects.get("shop"))
        await asyncio.to_thread(branches.write, {"src/cart.py": b"total = 3\n"}, "Another", "somebody")
        with pytest.raises(MergeConflict) as refused:
            await harness.client.meetings.close(meeting.id, harness.frame)
        assert refused.value.files == ("src/cart.py",)
        assert meeting.id in (refused.value.hint or "")
        assert harness.meetings.get(meeting.id).status == "open"
        assert next_step(harness.meetings.get(meeting.id)) == "restore_checkout", "the close is not repeated"
        assert harness.repo.git("branch", "--list", "claude/meeting/*")
        await asyncio.to_thread(branches.write, {"src/cart.py": b"total = 1\n"}, "Taken back", "somebody")
        await harness.client.meetings.close(meeting.id, harness.frame)
        assert harness.repo.at("claude/main", "src/cart.py") == "total = 2"
        harness.repo.fsck()

    harness.run_in_hall(work)


@pytest.mark.req("MTG-20")
def test_what_cannot_be_merged_is_left_on_its_branch_and_the_meeting_is_over(
    harness: MeetingProject, guild: Guild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(harness.repo.path)
    harness.worker(checkout="full")
    harness.script([call("Write", file_path="src/cart.py", content="total = 2\n"), say("changed")])
    id = guild("meet", "architect", "The total", "--output", "json").json["meeting"]
    harness.repo.commit({"src/cart.py": "total = 3\n"})
    refused = guild("meet", "--close", id, "--no-summary")
    assert (refused.code, f"guild meet {id} --close --leave-work" in refused.err) == (1, True)
    assert guild("meet", "--close", id, "--no-summary", "--leave-work").code == 0
    text = harness.repo.at("guildhall/records", f".lore/meetings/{id}.md")
    assert f"Not merged. It is on the branch claude/meeting/{id}." in text
    assert harness.repo.at("claude/main", "src/cart.py") == "total = 3"
    assert harness.repo.at(f"claude/meeting/{id}", "src/cart.py") == "total = 2"
    assert guild("project", "rm", "shop").code == 0


def test_what_was_being_closed_is_closed_at_the_next_start(harness: MeetingProject) -> None:
    meeting = harness.run_in_hall(harness.open_meeting)

    async def recovers() -> None:
        store, now = harness.hall.store, harness.meetings.context.now()
        await store.write(lambda c: records.update_fields(c, meeting.id, now, closing=Closing()))
        await Recovery(harness.hall).resume_runs()
        await harness.wait_until(lambda: harness.meetings.get(meeting.id).status == "closed")
        await harness.wait_until(lambda: not harness.meetings.has_pending_resume)
        assert "They talked." in notes(harness, meeting)
        assert harness.repo.git("branch", "--list", "claude/meeting/*") == ""

    harness.run_in_hall(recovers)


def test_a_message_withdraws_an_interrupted_close(harness: MeetingProject) -> None:
    harness.script([say("one"), say("two")])
    meeting = harness.run_in_hall(harness.open_meeting)

    async def continues() -> None:
        store, now = harness.hall.store, harness.meetings.context.now()
        await store.write(lambda c: records.update_fields(c, meeting.id, now, closing=Closing()))
        await harness.say(meeting.id, "Wait, one more thing.")
        await harness.wait_idle()

    harness.run_in_hall(continues)

    async def recovers() -> None:
        await Recovery(harness.hall).resume_runs()
        await harness.wait_until(lambda: not harness.meetings.has_pending_resume)
        found = harness.meetings.get(meeting.id)
        assert (found.status, found.closing) == ("open", None)
        assert harness.answers(meeting.id)[-1] == ("Wait, one more thing.", "two")

    harness.run_in_hall(recovers)


def test_a_close_that_fails_is_repeated_at_the_next_start(harness: MeetingProject) -> None:
    """Unlike a merge conflict: something outside of the meeting is wrong."""
    meeting = harness.run_in_hall(harness.open_meeting)
    harness.repo.git("update-ref", "-d", "refs/guildhall/records")
    harness.repo.git("update-ref", "refs/guildhall/records/x", "main")  # the notes cannot be written now

    async def fails() -> None:
        with pytest.raises(GuildError):
            await harness.client.meetings.close(meeting.id, harness.frame, leave_work=True, summarise=False)
        found = harness.meetings.get(meeting.id)
        assert (found.status, next_step(found)) == ("open", "close")

    harness.run_in_hall(fails)
    harness.repo.git("update-ref", "-d", "refs/guildhall/records/x")

    async def recovers() -> None:
        await Recovery(harness.hall).resume_runs()
        await harness.wait_until(lambda: harness.meetings.get(meeting.id).status == "closed")
        await harness.wait_until(lambda: harness.meetings.get(meeting.id).cleaned_up_at)
        assert harness.meetings.get(meeting.id).is_work_left, "it is closed as the user asked for"
        assert harness.repo.git("branch", "--list", "claude/meeting/*")

    harness.run_in_hall(recovers)


def test_while_it_answers_it_can_be_closed(harness: MeetingProject) -> None:
    harness.script([say("one"), {"sleep": 30, "say": "never"}])

    async def work() -> None:
        meeting = await harness.open_meeting()
        talking = asyncio.create_task(harness.say(meeting.id, "go"))
        await harness.wait_until(lambda: len(harness.hall.history.journal(meeting.run).all(ModelAsked)) == 2)
        await harness.client.meetings.close(meeting.id, harness.frame)
        await talking
        assert harness.hall.history.get(meeting.run).status == "completed"

    harness.run_in_hall(work)


def test_two_who_close_at_once(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        closing = (harness.client.meetings.close(meeting.id, harness.frame) for _ in range(2))
        came = await asyncio.gather(*closing, return_exceptions=True)
        assert sorted(type(one).__name__ for one in came) == ["Conflict", "Meeting"]
        assert harness.repo.git("log", "--format=%s", "guildhall/records").count("Meeting with architect: ") == 1

    harness.run_in_hall(work)


def test_what_cannot_be_linked(harness: MeetingProject) -> None:
    paths = ["", "plan.md", ".lore", "../x", ".lore/../x", "/etc/passwd", ".lore/none.md", "a\0b"]
    harness.script([*(call("link_artifact", path=path) for path in paths), say("no")])

    async def work() -> None:
        meeting = await harness.open_meeting()
        assert harness.details(meeting.id).meeting.linked == ()
        ended = harness.hall.history.journal(meeting.run).all(ToolEnded)
        assert [entry.data.result["is_error"] for entry in ended] == [True] * len(paths)

    harness.run_in_hall(work)


@pytest.mark.req("SYS-38")
def test_a_checkout_that_is_gone_is_there_again_at_the_next_start(harness: MeetingProject) -> None:
    harness.script([call("Write", file_path=".lore/new.md", content="new"), say("one"), say("two")])

    async def gone() -> Meeting:
        meeting = await harness.open_meeting()
        await harness.wait_idle()
        place = harness.hall.projects.get("shop")
        await asyncio.to_thread(harness.hall.project_services.worktrees.commit, place, meeting.id, "kept", "architect")
        shutil.rmtree(harness.hall.project_services.worktrees.path(place, meeting.id))
        return meeting

    meeting = harness.run_in_hall(gone)

    async def back() -> None:
        await Recovery(harness.hall).resume_runs()
        await harness.wait_until(lambda: not harness.meetings.has_pending_resume)
        path = harness.hall.project_services.worktrees.path(harness.hall.projects.get("shop"), meeting.id)
        assert (path / ".lore/new.md").read_text() == "new"
        shutil.rmtree(path)
        await harness.say(meeting.id, "still there?")
        assert (path / ".lore/new.md").read_text() == "new"

    harness.run_in_hall(back)


def test_what_git_ignores_of_a_meeting_is_kept_and_named(harness: MeetingProject) -> None:
    harness.repo.commit({".gitignore": "*.draft\n"})
    harness.script([call("Write", file_path="export.draft", content="Export\n"), say("Written.")])

    async def work() -> None:
        meeting = await harness.open_meeting()
        await harness.wait_idle()
        await harness.client.meetings.close(meeting.id, harness.frame)
        kept = f"refs/guildhall/kept/ignored/meeting/{meeting.id}"
        assert harness.repo.at(kept, "export.draft") == "Export"
        last = harness.details(meeting.id).timeline[-1].reason
        assert last.endswith(f"kept at {kept}: export.draft")

    harness.run_in_hall(work)
