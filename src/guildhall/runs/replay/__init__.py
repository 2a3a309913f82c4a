"""Replay: uses recorded runs again, for comparison, as a fork, as answers for another run, and as a test script.

Does not call a model or execute a tool of a recorded run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.replay.fork import ForkResult as ForkResult
    from guildhall.runs.replay.fork import Forks as Forks
    from guildhall.runs.replay.portable_text import Normalizer as Normalizer
    from guildhall.runs.replay.replay import Recordings as Recordings
    from guildhall.runs.replay.replay import ReplayResult as ReplayResult
    from guildhall.runs.replay.script_export import export_script as export_script

__getattr__, __dir__ = lazy_exports(__name__, __file__)
