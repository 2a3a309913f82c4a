"""The page count of a PDF: plain, packed and hidden pages, and hostile files."""

from __future__ import annotations

import zlib

import pytest

from guildhall.models.door import count_pages

PACKED = b"<< /Type /ObjStm /N 3 /Filter /FlateDecode >>\nstream\n%s\nendstream\n"


def test_pages_are_counted_without_the_page_tree() -> None:
    assert count_pages(b"%PDF-1.4\n/Type /Pages\n/Type /Page\n/Type/Page>>") == 2


def test_pages_in_packed_objects_are_counted() -> None:
    two = PACKED % zlib.compress(b"<< /Type /Page >> << /Type /Page >>")
    assert count_pages(b"%PDF-1.7\n" + two + two + PACKED % b"no deflate" + b"/Type /Page ") == 5


@pytest.mark.parametrize(("size", "expected"), [(0, 1), (100, 1), (20_000, 10), (9_000_000, 100)])
def test_pages_are_estimated_by_size_if_none_is_found(size: int, expected: int) -> None:
    assert count_pages(b"x" * size) == expected


def test_a_small_file_that_unpacks_to_a_huge_one_is_read_in_part() -> None:
    bomb = PACKED % zlib.compress(b"/Type /Page " * 10_000_000)
    assert 1_000_000 < count_pages(bomb * 5) < 2_000_000


def test_many_unterminated_streams_are_scanned_quickly() -> None:
    assert count_pages(b"/ObjStm stream\n" * 100_000) == 100
