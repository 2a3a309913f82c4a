"""The pages of a PDF, counted near enough: plain, packed, hidden, and in files that want to be a burden."""

from __future__ import annotations

import zlib

import pytest

from guildhall.models.door import count_pages

PACKED = b"<< /Type /ObjStm /N 3 /Filter /FlateDecode >>\nstream\n%s\nendstream\n"


def test_pages_are_counted_and_the_tree_of_pages_is_not_one() -> None:
    assert count_pages(b"%PDF-1.4\n/Type /Pages\n/Type /Page\n/Type/Page>>") == 2


def test_pages_in_packed_objects_are_counted_too() -> None:
    two = PACKED % zlib.compress(b"<< /Type /Page >> << /Type /Page >>")
    assert count_pages(b"%PDF-1.7\n" + two + two + PACKED % b"no deflate" + b"/Type /Page ") == 5


@pytest.mark.parametrize(("size", "expected"), [(0, 1), (100, 1), (20_000, 10), (9_000_000, 100)])
def test_where_none_can_be_seen_the_size_must_do(size: int, expected: int) -> None:
    assert count_pages(b"x" * size) == expected


def test_a_small_file_that_unpacks_to_a_huge_one_is_looked_at_in_part() -> None:
    bomb = PACKED % zlib.compress(b"/Type /Page " * 10_000_000)
    assert 1_000_000 < count_pages(bomb * 5) < 2_000_000


def test_many_streams_that_never_end_take_no_long_time() -> None:
    assert count_pages(b"/ObjStm stream\n" * 100_000) == 100
