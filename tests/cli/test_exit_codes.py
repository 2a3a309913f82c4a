"""Exit codes: one number for each way in which a command can end."""

from __future__ import annotations

import pytest

from guildhall.cli import exit_codes
from guildhall.cli.format.runs import RESUME_HINTED
from guildhall.core import errors
from guildhall.runs.execution.segment import RESUME_HINTS


def every_error() -> list[type[errors.GuildError]]:
    found = [errors.GuildError]
    for kind in found:
        found.extend(kind.__subclasses__())
    return [kind for kind in found if kind.__module__ == errors.__name__]


EXIT_CODES = {number for name, number in vars(exit_codes).items() if name.isupper() and isinstance(number, int)}


def test_each_exit_code_is_that_of_success_or_of_an_error() -> None:
    assert {kind.exit_code for kind in every_error()} | {exit_codes.DONE} == EXIT_CODES


def test_an_exit_code_is_inherited() -> None:
    assert not {"exit_code", "http_status"} & vars(errors.UnknownJob).keys()
    assert (errors.UnknownJob.exit_code, errors.UnknownJob.http_status) == (exit_codes.NOT_FOUND, 404)


def test_an_unknown_code_is_a_failure() -> None:
    assert errors.error_class("unheard_of").exit_code == exit_codes.FAILED
    assert exit_codes.run_exit_code("failed", "unheard_of") == exit_codes.FAILED


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        ("completed", None, 0),
        ("waiting", None, 4),
        ("paused", None, 130),
        ("interrupted", None, 1),
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
def test_the_exit_code_follows_from_the_status_of_the_run(status: str, error: str | None, code: int) -> None:
    assert exit_codes.run_exit_code(status, error) == code


def test_errors_with_a_resume_hint_are_listed() -> None:
    """`guild run` adds `guild resume` to the hint of every other error, by this list."""
    hinted = {kind.code for kind in RESUME_HINTS} | {errors.LimitReached.code}
    assert set(RESUME_HINTED) == hinted
    assert all("guild resume {root}" in hint for hint in RESUME_HINTS.values())
