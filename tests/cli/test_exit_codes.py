"""One number for each way to end."""

from __future__ import annotations

import pytest

from guildhall.cli import exit_codes
from guildhall.core import errors


def every_error() -> list[type[errors.GuildError]]:
    found = [errors.GuildError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


def test_each_error_has_its_number_and_none_is_left_over() -> None:
    assert set(exit_codes.OF_ERROR) == {kind.code for kind in every_error()}
    assert set(exit_codes.OF_ERROR.values()) | {exit_codes.DONE} == set(exit_codes.MEANING)


def test_an_error_of_tomorrow_is_a_failure() -> None:
    assert exit_codes.of_error("unheard_of") == exit_codes.FAILED


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("completed", None, 0),
        ("waiting", None, 4),
        ("parked", None, 130),
        ("lost", None, 1),
        ("cancelled", None, 1),
        ("failed", None, 1),
        ("failed", "model_failed", 1),
        ("failed", "limit_reached", 5),
        ("failed", "timed_out", 6),
        ("failed", "refused", 4),
        ("failed", "invalid_file", 1),
        ("failed", "not_found", 1),
    ],
)
def test_a_run_ends_its_command(status: str, error: str | None, code: int) -> None:
    assert exit_codes.of_run(status, error) == code
