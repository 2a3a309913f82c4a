"""The services of a hall: implement the interface of `hall.client.interface` in this process.

Above: the HTTP API, the library, members, and commands that open a hall inside their own process.
Below: `hall.testrun`, and the parts of the hall in `hall.composition`.
Does not contain domain logic: an operation of more than a few lines belongs to the package of its noun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.services.embedded import EmbeddedHall as EmbeddedHall
    from guildhall.hall.services.embedded import open_hall as open_hall

__getattr__, __dir__ = lazy_exports(__name__, __file__)
