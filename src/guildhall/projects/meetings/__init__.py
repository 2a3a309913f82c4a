"""Meetings: conversations of the user with a worker in a project. Start with states.py.

A meeting has one run for each session, and a separate checkout. A message of the user is recorded before the run
receives it. The run resumes from its journal whenever the user returns.
Does not execute conversations (`runs`) or print them (`cli`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.projects.meetings.context import MeetingContext as MeetingContext
    from guildhall.projects.meetings.model import Exchange as Exchange
    from guildhall.projects.meetings.model import Meeting as Meeting
    from guildhall.projects.meetings.model import MeetingDetails as MeetingDetails
    from guildhall.projects.meetings.service import Meetings as Meetings
    from guildhall.projects.meetings.service import recorded_session_hooks as recorded_session_hooks
    from guildhall.projects.meetings.states import MeetingStatus as MeetingStatus

__getattr__, __dir__ = lazy_exports(__name__, __file__)
