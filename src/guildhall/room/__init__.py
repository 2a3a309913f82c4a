"""Rooms: the channel, inboxes, documents, proposals and resources that the agents of a team share.

A room belongs to a project, workflow and tag. Every change is an operation with a name, a transaction and a log entry.

Above: workflow, which starts the runs of agents when they have mail; hall and cli, for the commands of the user.
Below: workers (the names of the room tools), tools, sandbox (the files of documents), store, core.
Does not know runs or workflows: a run is only an id here. Does not start agents: it announces new mail. Does not import
memory, models or runtimes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.room.model import Actor as Actor
    from guildhall.room.model import Message as Message
    from guildhall.room.model import Proposal as Proposal
    from guildhall.room.model import RoomEvent as RoomEvent
    from guildhall.room.model import RoomListener as RoomListener
    from guildhall.room.operation import operation as operation
    from guildhall.room.replay import RoomReplay as RoomReplay
    from guildhall.room.service import Room as Room
    from guildhall.room.service import Rooms as Rooms
    from guildhall.room.service import RoomSettings as RoomSettings
    from guildhall.room.service import perform_in as perform_in
    from guildhall.room.tools import RoomTools as RoomTools
    from guildhall.room.tools import room_tools as room_tools

__getattr__, __dir__ = lazy_exports(__name__, __file__)
