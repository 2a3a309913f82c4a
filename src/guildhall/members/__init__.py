"""Members: plug-ins that run as separate processes and offer tools, workers or both over HTTP.

A member is a folder in `guild-members` with a manifest, `guild-member.json`. The hall starts a member on first use and
stops all members on exit.

Above: hall, which gives workers the members that they declare, and cli.
Below: jobs and activities (the types of jobs), runs (the tools of a worker), workers (trust), tools (MCP), rpc, core.
Does not store the jobs of members: each member stores its own.

Invariant: responses of members are limited in size and time, and checked before use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.members.jobs import MemberJobs as MemberJobs
    from guildhall.members.manifest import Manifest as Manifest
    from guildhall.members.model import ActiveJob as ActiveJob
    from guildhall.members.model import Member as Member
    from guildhall.members.model import MemberDetails as MemberDetails
    from guildhall.members.registry import MemberRegistry as MemberRegistry
    from guildhall.members.service import Members as Members

__getattr__, __dir__ = lazy_exports(__name__, __file__)
