"""Passthrough: the model door for programs, which checks and forwards requests in a provider's format.

Does not know provider formats: `models.dialects` does. Does not serve HTTP: `hall.doors` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.models.passthrough.provider_connection import ConnectionPool as ConnectionPool
    from guildhall.models.passthrough.relay import PassthroughRequest as PassthroughRequest
    from guildhall.models.passthrough.session import PassthroughSession as PassthroughSession
    from guildhall.models.passthrough.session import Reply as Reply
    from guildhall.models.passthrough.session import RunContent as RunContent

__getattr__, __dir__ = lazy_exports(__name__, __file__)
