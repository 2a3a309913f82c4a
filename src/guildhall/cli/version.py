"""Which Guildhall this is."""

from __future__ import annotations


def version() -> str:
    """The version of the installed package."""
    from importlib.metadata import version as installed

    return installed("guildhall")
