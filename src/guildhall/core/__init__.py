"""Core: the errors, events, settings, paths and file helpers that every package uses.

Above: all other packages.
Below: nothing but the standard library, pydantic and ruamel.yaml (imported late).
Not a place for general helpers. The list of modules is closed, and an addition needs a decision record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.core.clock import Clock as Clock
    from guildhall.core.clock import SystemClock as SystemClock
    from guildhall.core.config import Settings as Settings
    from guildhall.core.config import load_settings as load_settings
    from guildhall.core.errors import ErrorInfo as ErrorInfo
    from guildhall.core.errors import GuildError as GuildError
    from guildhall.core.events import Event as Event
    from guildhall.core.events import EventBus as EventBus
    from guildhall.core.paths import Home as Home
    from guildhall.core.redaction import Redactor as Redactor
    from guildhall.core.request_frame import Frame as Frame

__getattr__, __dir__ = lazy_exports(__name__, __file__)
