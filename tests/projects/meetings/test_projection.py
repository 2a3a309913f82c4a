"""The row is what counts: an artifact that is behind is written again, a missing row is made from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from guildhall.hall.composition.recovery import Recovery
from guildhall.store.tables import meeting_words, meetings, timeline
from tests.projects.meetings.parlour import call, say

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Meeting
    from tests.projects.meetings.parlour import Parlour


async def recovered(parlour: Parlour) -> None:
    await Recovery(parlour.hall).resume_runs()
    await parlour.until(lambda: not parlour.meetings.has_pending_resume)


class Broken:
    """A meeting that never was one."""

    id = "t-7k2m9x4qpw"


async def put(parlour: Parlour, meeting: Meeting | type[Broken], text: str | None) -> None:
    branches = parlour.hall.project_services.branches(parlour.hall.projects.get("shop"))
    files = {f".lore/meetings/{meeting.id}.md": text.encode() if text is not None else None}
    await asyncio.to_thread(branches.write, files, "By hand", "Ada")


def artifact(parlour: Parlour, meeting: Meeting) -> str:
    return parlour.repo.at("claude/main", f".lore/meetings/{meeting.id}.md")


def test_a_status_that_was_written_by_hand_is_told_and_not_obeyed(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        await put(parlour, meeting, artifact(parlour, meeting).replace("status: open", "status: closed"))
        (warning,) = (await parlour.client.meetings.get(meeting.id)).warnings
        assert "was edited by hand to 'closed'" in warning
        await recovered(parlour)
        assert parlour.meetings.get(meeting.id).status == "open"
        assert "status: closed" in artifact(parlour, meeting), "what a hand has written stays"

    parlour.inside(work)


def test_an_artifact_that_is_missing_or_behind_is_written_again(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        before = artifact(parlour, meeting)
        await put(parlour, meeting, None)
        await recovered(parlour)
        assert artifact(parlour, meeting) == before.strip()
        await put(parlour, meeting, before.replace("revision: 1", "revision: 0").replace("open", "requested"))
        await recovered(parlour)
        assert artifact(parlour, meeting) == before.strip()

    parlour.inside(work)


@pytest.mark.req("MTG-20")
def test_notes_that_never_came_are_made_again(parlour: Parlour) -> None:
    parlour.script([call("record_decision", question="Which form?", decision="Parquet", reasoning="small"), say("So.")])

    async def work() -> None:
        meeting = await parlour.opened()
        before = artifact(parlour, meeting)
        await parlour.quiet()
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        notes = artifact(parlour, meeting)
        await put(parlour, meeting, before)
        await recovered(parlour)
        assert "Parquet" in notes
        assert artifact(parlour, meeting) == notes
        changed = notes.replace("Parquet", "Parquet, says Ada")
        await put(parlour, meeting, changed)
        await recovered(parlour)
        assert artifact(parlour, meeting) == changed, "what a hand has written stays"

    parlour.inside(work)


def test_a_project_that_is_written_wrongly_keeps_no_other_from_it(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        before = artifact(parlour, meeting)
        await put(parlour, meeting, None)
        settings = parlour.home.settings
        right = settings.read_text()
        wrong = '"another": {"path": "/nowhere", "max_meetings": "lots"}'
        settings.write_text(right.replace('"shop":', f'{wrong}, "shop":'))
        await recovered(parlour)
        assert artifact(parlour, meeting) == before.strip()
        settings.write_text("projects: [")
        await parlour.meetings.recover()
        settings.write_text(right)

    parlour.inside(work)


def test_a_worker_opens_no_meeting_by_writing_a_file(parlour: Parlour) -> None:
    async def work() -> None:
        await parlour.opened()
        await put(parlour, Broken, "---\ntitle: mine\nstatus: open\nworker: architect\n---\n")
        await recovered(parlour)
        assert len(parlour.meetings.all()) == 1

    parlour.inside(work)


def test_a_row_that_is_missing_is_made_from_its_artifact(parlour: Parlour) -> None:
    async def work() -> None:
        meeting, other = await parlour.opened("Which form?"), await parlour.opened("Which name?")
        await parlour.quiet()
        await parlour.client.meetings.close(other.id, parlour.frame)
        await parlour.hall.store.write(
            lambda c: [c.execute(delete(each)) for each in (meeting_words, meetings, timeline)]
        )
        await put(parlour, Broken, "---\nstatus: open\ntitle: [x\n---\n")
        await recovered(parlour)
        again, over = (parlour.meetings.get(one.id) for one in (meeting, other))
        assert (again.status, again.topic, again.worker) == ("open", "Which form?", "architect")
        assert (again.by, over.by) == ("artifact", "artifact"), "whose it is is not taken from a file"
        assert (over.status, over.notes) == ("closed", f".lore/meetings/{other.id}.md")
        parlour.script([say("Where were we?")])
        await parlour.seen(parlour.client.meetings.join(again.id, parlour.frame))
        assert parlour.answers(again.id) == [("", "Where were we?")]
        assert "The conversation so far is lost" in parlour.told(parlour.meetings.get(again.id).run)

    parlour.inside(work)


def test_one_that_was_taken_off_the_record_stays_off_it(parlour: Parlour) -> None:
    async def work() -> None:
        meeting = await parlour.opened()
        await parlour.quiet()
        await parlour.client.meetings.close(meeting.id, parlour.frame)
        await parlour.client.meetings.delete(meeting.id)
        await recovered(parlour)
        assert parlour.meetings.all() == []
        assert "They talked." in artifact(parlour, meeting)

    parlour.inside(work)
