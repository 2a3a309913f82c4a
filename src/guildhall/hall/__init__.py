"""The hall: composes all packages into the process that owns a home, and defines the interface that callers use.

Above: the command line (`cli`) and the Python library (`guildhall`), which are clients of the interface.
Below: every other package. The hall passes each package the objects that it needs.
Does not contain domain logic: the packages below do.

Flow of a call: `client` -> `server` (in another process) -> `services` -> `composition` -> the packages below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient as HallClient
    from guildhall.hall.client.remote import RemoteHall as RemoteHall
    from guildhall.hall.composition.hall import Hall as Hall
    from guildhall.hall.python_api import RunResult as RunResult
    from guildhall.hall.python_api import Worker as Worker
    from guildhall.hall.python_member import Member as Member
    from guildhall.hall.services.embedded import EmbeddedHall as EmbeddedHall
    from guildhall.hall.services.embedded import open_hall as open_hall

__getattr__, __dir__ = lazy_exports(__name__, __file__)
