"""The workshop of commissions, in which the manager works."""

from __future__ import annotations

from tests.projects.commissions.conftest import workshop

__all__ = ["workshop"]
