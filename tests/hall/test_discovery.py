"""Discovery of a hall by its lock and its address file."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall import __version__
from guildhall.core.errors import HallUnavailable
from guildhall.hall.client.discovery import Address, check_same_version, find_hall, find_or_start, is_embedded, stop
from guildhall.hall.composition.hall import Hall
from tests.hall.hall_server import serve_hall

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home

ADDRESS = Address(
    pid=os.getpid(), boot="b-2222222222", version=__version__, url="http://127.0.0.1:7420", since="2026", token="secret"
)


def test_a_hall_is_found_only_while_it_runs(home: Home) -> None:
    assert find_hall(home) is None

    async def go() -> None:
        async with serve_hall(home) as hall:
            found = find_hall(home)
            assert found == hall.address
            assert found is not None
            assert found.port == int(found.url.rpartition(":")[2])
            assert stat.S_IMODE(home.address.stat().st_mode) == 0o600
            assert sorted(path.name for path in home.path.glob("hall.json*")) == ["hall.json"]
        assert find_hall(home) is None

    asyncio.run(go())


def test_an_address_file_is_valid_only_with_the_lock_of_its_boot(home: Home) -> None:
    home.path.mkdir(mode=0o700)
    ADDRESS.write(home.address)
    assert find_hall(home) is None, "no process holds the lock"
    hall = Hall(home, environ={})
    try:
        assert find_hall(home) is None, "a command holds it"
    finally:
        hall.release()
    hall = Hall(home, environ={}, is_persistent=True)
    try:
        assert find_hall(home) is None, "a hall of another boot holds it"
        own = replace(ADDRESS, boot=hall.boot)
        own.write(home.address)
        assert find_hall(home) == own
        for wrong in (
            {"url": "http://192.0.2.1:7420"},
            {"url": "https://127.0.0.1:7420"},
            {"url": "http://127.0.0.1:x"},
            {"url": "http://127.0.0.1:7420@evil.example:80"},
            {"pid": "1"},
            {"more": 1},
        ):
            address = {**json.loads(home.address.read_text()), **wrong}
            (home.path / "draft").write_text(json.dumps(address))
            (home.path / "draft").chmod(0o600)
            (home.path / "draft").rename(home.address)
            assert find_hall(home) is None, wrong
            home.address.unlink()
            own.write(home.address)
    finally:
        hall.release()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "{}", "\udcff"])
def test_an_invalid_address_file_is_ignored(home: Home, text: str) -> None:
    hall = Hall(home, environ={}, is_persistent=True)
    try:
        home.address.write_bytes(text.encode("utf-8", "surrogateescape"))
        home.address.chmod(0o600)
        assert find_hall(home) is None
    finally:
        hall.release()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_an_address_file_open_to_other_users_is_refused(home: Home, mode: int) -> None:
    hall = Hall(home, environ={}, is_persistent=True)
    try:
        ADDRESS.write(home.address)
        home.address.chmod(mode)
        with pytest.raises(HallUnavailable, match="other users"):
            find_hall(home)
    finally:
        hall.release()


def test_a_pipe_instead_of_the_address_file_is_refused_at_once(home: Home) -> None:
    hall = Hall(home, environ={}, is_persistent=True)
    try:
        os.mkfifo(home.address, 0o600)
        with pytest.raises(HallUnavailable):
            find_hall(home)
    finally:
        hall.release()


def test_the_repr_of_an_address_has_no_token() -> None:
    assert "secret" not in repr(ADDRESS)


def test_a_hall_of_another_version_is_refused() -> None:
    assert check_same_version(ADDRESS) == ADDRESS
    with pytest.raises(HallUnavailable, match=r"version 9\.9") as caught:
        check_same_version(replace(ADDRESS, version="9.9"))
    assert "guild hall stop" in (caught.value.hint or "")


def test_stopping_an_exited_process_is_not_an_error() -> None:
    stop(2**22 - 3)


@pytest.mark.parametrize(("value", "embedded"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_guildhall_embedded_selects_the_embedded_hall(value: str | None, embedded: bool) -> None:
    assert is_embedded({} if value is None else {"GUILDHALL_EMBEDDED": value}) is embedded


def test_a_hall_that_cannot_start_shows_only_its_own_log_lines(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    home.log.write_text("a line of an earlier hall\n")
    broken_python = tmp_path / "python"
    broken_python.write_text("#!/bin/sh\necho cannot import guildhall >&2\n")
    broken_python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken_python))
    with pytest.raises(HallUnavailable, match="its process ended before it was ready") as caught:
        find_or_start(home, {})
    assert caught.value.hint == (
        "Check the installation: guild doctor\nThe last lines of the log:\ncannot import guildhall"
    )
