"""The client side of a hall: the interface, its wire format, and the client of a hall in another process.

The command line imports this package in every command.
Does not import SQLAlchemy, pydantic or any other slow module.
Does not implement operations: `hall.services` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.client.discovery import Address as Address
    from guildhall.hall.client.discovery import find_hall as find_hall
    from guildhall.hall.client.discovery import find_or_start as find_or_start
    from guildhall.hall.client.interface import SERVICES as SERVICES
    from guildhall.hall.client.interface import VERBS as VERBS
    from guildhall.hall.client.interface import HallClient as HallClient
    from guildhall.hall.client.openapi import openapi_document as openapi_document
    from guildhall.hall.client.remote import RemoteHall as RemoteHall

__getattr__, __dir__ = lazy_exports(__name__, __file__)
