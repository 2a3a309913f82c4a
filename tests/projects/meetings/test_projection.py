"""The row is what counts: an artifact that is behind is written again, a missing row is made from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from guildhall.hall.composition.recovery import Recovery
from guildhall.store.tables import meeting_messages, meetings, timeline
from tests.projects.meetings.harness import call, say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.projects.meetings.harness import MeetingProject


async def recovered(harness: MeetingProject) -> None:
    await Recovery(harness.hall).resume_runs()
    await harness.wait_until(lambda: not harness.meetings.has_pending_resume)


class Broken:
    """A meeting that never was one."""

    id = "t-7k2m9x4qpw"


async def put(harness: MeetingProject, meeting: Meeting | type[Broken], text: str | None) -> None:
    branches = harness.hall.project_services.branches(harness.hall.projects.get("shop"))
    files = {f".lore/meetings/{meeting.id}.md": text.encode() if text is not None else None}
    await asyncio.to_thread(branches.write_records, files, "By hand", "Ada")


def artifact(harness: MeetingProject, meeting: Meeting) -> str:
    return harness.repo.at("guildhall/records", f".lore/meetings/{meeting.id}.md")


def test_a_status_that_was_written_by_hand_is_told_and_not_obeyed(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        await put(harness, meeting, artifact(harness, meeting).replace("status: open", "status: closed"))
        (warning,) = (await harness.client.meetings.get(meeting.id)).warnings
        assert "was edited by hand to 'closed'" in warning
        await recovered(harness)
        assert harness.meetings.get(meeting.id).status == "open"
        assert "status: closed" in artifact(harness, meeting), "what a hand has written stays"

    harness.run_in_hall(work)


def test_an_artifact_that_is_missing_or_behind_is_written_again(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        before = artifact(harness, meeting)
        await put(harness, meeting, None)
        await recovered(harness)
        assert artifact(harness, meeting) == before.strip()
        await put(harness, meeting, before.replace("revision: 1", "revision: 0").replace("open", "requested"))
        await recovered(harness)
        assert artifact(harness, meeting) == before.strip()

    harness.run_in_hall(work)


@pytest.mark.req("MTG-20")
def test_notes_that_never_came_are_made_again(harness: MeetingProject) -> None:
    harness.script([call("record_decision", question="Which form?", decision="Parquet", reasoning="small"), say("So.")])

    async def work() -> None:
        meeting = await harness.open_meeting()
        before = artifact(harness, meeting)
        await harness.wait_idle()
        await harness.client.meetings.close(meeting.id, harness.frame)
        notes = artifact(harness, meeting)
        await put(harness, meeting, before)
        await recovered(harness)
        assert "Parquet" in notes
        assert artifact(harness, meeting) == notes
        changed = notes.replace("Parquet", "Parquet, says Ada")
        await put(harness, meeting, changed)
        await recovered(harness)
        assert artifact(harness, meeting) == changed, "what a hand has written stays"

    harness.run_in_hall(work)


def test_a_project_that_is_written_wrongly_keeps_no_other_from_it(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        before = artifact(harness, meeting)
        await put(harness, meeting, None)
        settings = harness.home.settings
        right = settings.read_text()
        wrong = '"another": {"path": "/nowhere", "max_meetings": "lots"}'
        settings.write_text(right.replace('"shop":', f'{wrong}, "shop":'))
        await recovered(harness)
        assert artifact(harness, meeting) == before.strip()
        settings.write_text("projects: [")
        await harness.meetings.recover()
        settings.write_text(right)

    harness.run_in_hall(work)


def test_a_worker_opens_no_meeting_by_writing_a_file(harness: MeetingProject) -> None:
    async def work() -> None:
        await harness.open_meeting()
        await put(harness, Broken, "---\ntitle: mine\nstatus: open\nworker: architect\n---\n")
        await recovered(harness)
        assert len(harness.meetings.list_meetings()) == 1

    harness.run_in_hall(work)


def test_a_row_that_is_missing_is_made_from_its_artifact(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting, other = (
            await harness.open_meeting("Which form?"),
            await harness.open_meeting("Which name?"),
        )
        await harness.wait_idle()
        await harness.client.meetings.close(other.id, harness.frame)
        await harness.hall.store.write(
            lambda c: [c.execute(delete(each)) for each in (meeting_messages, meetings, timeline)]
        )
        await put(harness, Broken, "---\nstatus: open\ntitle: [x\n---\n")
        await recovered(harness)
        again, over = (harness.meetings.get(one.id) for one in (meeting, other))
        assert (again.status, again.topic, again.worker) == ("open", "Which form?", "architect")
        assert (again.by, over.by) == ("artifact", "artifact"), "whose it is is not taken from a file"
        assert (over.status, over.notes) == ("closed", f".lore/meetings/{other.id}.md")
        harness.script([say("Where were we?")])
        await harness.collect(harness.client.meetings.join(again.id, harness.frame))
        assert harness.answers(again.id) == [("", "Where were we?")]
        assert "The conversation so far is lost" in harness.model_input(harness.meetings.get(again.id).run)

    harness.run_in_hall(work)


def test_one_that_was_taken_off_the_record_stays_off_it(harness: MeetingProject) -> None:
    async def work() -> None:
        meeting = await harness.open_meeting()
        await harness.wait_idle()
        await harness.client.meetings.close(meeting.id, harness.frame)
        await harness.client.meetings.delete(meeting.id)
        await recovered(harness)
        assert harness.meetings.list_meetings() == []
        assert "They talked." in artifact(harness, meeting)

    harness.run_in_hall(work)
