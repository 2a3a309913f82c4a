"""Models: answer model calls from providers, scripts and recordings, behind the door that every call passes.

Above: runs, which gives the door its ledger. Also hall, workflow, projects and cli, for model names, keys and scripts.
Below: core.
Does not read worker files: callers pass in a model name and messages.
Does not import the sibling runtimes, which reaches a model only through the door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.models.catalog import RecordingSource as RecordingSource
    from guildhall.models.catalog import create_source as create_source
    from guildhall.models.credentials import Login as Login
    from guildhall.models.door import ModelDoor as ModelDoor
    from guildhall.models.door import ModelLedger as ModelLedger
    from guildhall.models.model import Query as Query
    from guildhall.models.model import Source as Source
    from guildhall.models.model import Upstream as Upstream
    from guildhall.models.provider_source import create_provider_source as create_provider_source

__getattr__, __dir__ = lazy_exports(__name__, __file__)
