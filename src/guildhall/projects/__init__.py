"""Projects: the user's git repositories that workers change, through commissions and meetings.

Workers work in checkouts below the home. Their work is merged into the integration branch `claude/main`. The user
merges `claude/main` into the user's own branch.

Above: hall and cli, which offer the operations and commands. Below: activities (questions, contracts), runs (the run of
a commission or meeting), models, workers, tools, sandbox, store, core.
Does not execute workers (`runs`).

Invariant: the hall executes no code of a repository, and does not change the user's branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.projects.artifacts import Artifacts as Artifacts
    from guildhall.projects.commissions.service import Commissions as Commissions
    from guildhall.projects.meetings.service import Meetings as Meetings
    from guildhall.projects.model import Artifact as Artifact
    from guildhall.projects.model import Project as Project
    from guildhall.projects.model import ProjectSettings as ProjectSettings
    from guildhall.projects.registry import Projects as Projects
    from guildhall.projects.repository_identity import Identities as Identities
    from guildhall.projects.workspace import WorkerChecks as WorkerChecks
    from guildhall.projects.workspace import Workspace as Workspace

__getattr__, __dir__ = lazy_exports(__name__, __file__)
