"""The isolation of the tests: no network, no variables of the developer, no hidden skips."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.paths import Home
from tests.blocked.sitecustomize import is_own
from tests.conftest import inner_pytest_environment

if TYPE_CHECKING:
    from tests.conftest import Guild

ROOT = Path(__file__).parents[1]
OUTSIDE = ["192.0.2.1", "10.0.0.1", "169.254.169.254", "8.8.8.8"]


@pytest.mark.parametrize("host", OUTSIDE)
def test_other_hosts_cannot_be_reached(host: str):
    with socket.socket() as sock, pytest.raises(OSError, match="blocked in tests"):
        sock.connect((host, 80))
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        with pytest.raises(OSError, match="blocked in tests"):
            sock.sendto(b"x", (host, 53))
        with pytest.raises(OSError, match="blocked in tests"):
            sock.sendmsg([b"x"], [], 0, (host, 53))


def test_other_host_names_are_not_resolved():
    for look in (lambda: socket.getaddrinfo("example.com", 80), lambda: socket.gethostbyname("example.com")):
        with pytest.raises(socket.gaierror, match="not looked up"):
            look()


def test_the_local_host_can_be_reached(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        address = str(tmp_path / "s")
        server.bind(address)
        server.listen()
        client.connect(address)
    assert socket.getaddrinfo("localhost", 80)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", b"localhost", "", None]
)
def test_local_addresses_are_own(host: object):
    assert is_own(host)


@pytest.mark.parametrize("host", [*OUTSIDE, "::ffff:8.8.8.8", "fe80::1%eth0", "example.com", "localhost.example.com"])
def test_other_addresses_are_not_own(host: str):
    assert not is_own(host)


def test_a_python_process_of_a_test_has_no_network(guild: Guild):
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    done = subprocess.run([sys.executable, "-c", code], env=guild.environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert "blocked in tests" in done.stderr


def test_variables_of_the_developer_are_removed(home: Home, tmp_path: Path, guild: Guild):
    for name in os.environ:
        assert not name.startswith(("GIT_", "ANTHROPIC_", "OPENAI_", "PYTHONPATH")), name
        assert name in ("GUILDHALL_HOME", "GUILDHALL_EMBEDDED") or not name.startswith("GUILDHALL_"), name
    assert home == Home.locate(dict(os.environ))
    assert Path.home() == home.path.parent
    assert not home.path.exists()
    assert not home.path.is_relative_to(tmp_path)
    assert not any("KEY" in name or name.startswith("GIT_") for name in guild.environment())


def test_the_real_command_runs_with_its_input_and_environment(guild: Guild, project: Path):
    ran = guild("--help")
    assert (ran.code, ran.err) == (0, "")
    assert "guild" in ran.out
    assert guild("no-such-command").code == 2


@pytest.mark.parametrize("installed", [False, True])
def test_a_started_command_can_be_killed(guild: Guild, installed: bool):
    process = guild.start("mcp", installed=installed)
    guild.end()
    assert process.poll() is not None


@pytest.mark.parametrize(
    ("required", "outcome"), [("1", "1 failed, 1 xfailed, 2 errors"), ("", "3 skipped, 1 xfailed")]
)
def test_a_skip_fails_if_all_tests_are_required(tmp_path: Path, required: str, outcome: str):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.skip\ndef test_a(): pass\n"
        "def test_b(): pytest.skip('no reason')\n"
        "@pytest.mark.skipif(True, reason='so')\ndef test_c(): pass\n"
        "@pytest.mark.xfail(strict=True)\ndef test_d(): assert False\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            ROOT / "pyproject.toml",
            "-p",
            "pytest_timeout",
            "--rootdir",
            tmp_path,
            tmp_path,
        ],
        cwd=tmp_path,
        env=inner_pytest_environment(PYTHONPATH=str(ROOT), GUILDHALL_REQUIRE_ALL=required),
        capture_output=True,
        text=True,
    )
    assert outcome in done.stdout


def test_a_skipped_module_fails_if_all_tests_are_required(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text("import pytest\npytest.skip('no', allow_module_level=True)\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env=inner_pytest_environment(PYTHONPATH=str(ROOT), GUILDHALL_REQUIRE_ALL="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "may not be skipped" in done.stdout
