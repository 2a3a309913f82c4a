"""The fixture of the commission tests, for the manager."""

from __future__ import annotations

from tests.projects.commissions.conftest import harness

__all__ = ["harness"]
