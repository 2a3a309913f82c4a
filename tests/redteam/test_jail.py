"""Attacks of a confined program on its jail, for every kind of confinement, as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import guildhall
from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox import mounts
from guildhall.sandbox.jail import Confinement, spawn
from guildhall.sandbox.view import Folder, View

KINDS = ("bubblewrap", "namespaces", "landlock")
PROBES = Path(__file__).with_name("jail_probes.py")
PROBE_COUNT = 29
MARKER = "guildhall-probe-marker"


def run_probes(base: Path, kind: str) -> dict[str, str | None]:
    """Run all probes in a jail of one folder, and return the successful attacks."""
    inside, outside, readable, hidden = (base / name for name in ("inside", "outside", "readable", "hidden"))
    for folder in (inside, outside, readable, hidden):
        folder.mkdir(exist_ok=True)
    (readable / "file").write_text("text")
    (hidden / "token").write_text("secret")
    shutil.copy(PROBES, inside / "probes.py")
    view = View(
        cwd=inside,
        folders=(Folder(path=inside, is_writable=True), Folder(path=readable)),
        hidden=(hidden,),
    )
    confinement = Confinement(view=view)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        name = f"guildhall-probe-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        path = inside / "socket"
        path.unlink(missing_ok=True)
        named.bind(str(path))
        named.listen()
        targets = {
            "pid": os.getpid(),
            "marker": MARKER + "=",
            "hidden": str(hidden / "token"),
            "outside": str(outside),
            "inside": str(inside),
            "readable": str(readable / "file"),
            "port": server.getsockname()[1],
            "abstract": name,
            "socket": str(path),
            "scratch_bytes": confinement.scratch_bytes,
        }

        async def main() -> bytes:
            program = await spawn(["/usr/bin/python3", "probes.py", json.dumps(targets)], confinement, kind=kind)  # type: ignore[arg-type]
            assert program.process.stdout is not None
            output = await program.process.stdout.read()
            await program.wait()
            return output

        output = asyncio.run(main())
    try:
        results = json.loads(output)
    except ValueError:
        raise AssertionError(output.decode(errors="replace")) from None
    assert len(results) >= PROBE_COUNT
    return {name: result for name, result in results.items() if result is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_on_the_jail_succeeds(kind, tmp_path, monkeypatch):
    monkeypatch.setenv(MARKER, "1")
    assert run_probes(tmp_path, kind) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="the other test already runs as an ordinary user")
@pytest.mark.parametrize("kind", KINDS)
def test_no_attack_on_the_jail_of_an_ordinary_user_succeeds(kind):
    base = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        package = Path(guildhall.__file__).parent
        shutil.copytree(package, base / "guildhall", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(Path(__file__).parent, base / "redteam", ignore=shutil.ignore_patterns("__pycache__", "test_*"))
        shutil.copy(Path(__file__), base / "redteam" / "attack.py")
        (base / "work").mkdir()
        for path in (base, base / "work"):
            path.chmod(0o755)
            os.chown(path, 65534, 65534)
        done = subprocess.run(
            ["/usr/bin/python3", "-I", "-c", _AS_USER, str(base), kind, *filter(None, sys.path)],
            user=65534, group=65534, extra_groups=[], env={"PATH": "/usr/bin:/bin", MARKER: "1"}, cwd="/",
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert (done.stderr, done.stdout.strip()) == ("", "{}")
    finally:
        shutil.rmtree(base)


_AS_USER = """
import json, sys
from pathlib import Path
base, kind, *paths = sys.argv[1:]
sys.path[:0] = [base]
sys.path += paths
from redteam.attack import run_probes
print(json.dumps(run_probes(Path(base) / "work", kind)))
"""


def test_nested_repositories_are_protected_however_many_files_there_are(tmp_path):
    marker = tmp_path / "vendor" / "lib" / ".git"
    marker.mkdir(parents=True)
    for number in range(20_500):
        (tmp_path / f"{number}").touch()
    plan = mounts.plan_mounts(Confinement(view=View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),))))
    assert any(mount.path == marker and mount.access == "read" for mount in plan.mounts)


def test_a_program_does_not_start_if_nested_repositories_cannot_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(mounts, "_MAX_NESTED_FOLDERS", 10)
    for number in range(11):
        (tmp_path / f"{number}").mkdir()
    with pytest.raises(ToolUnavailable, match="more than 10 folders"):
        mounts.plan_mounts(Confinement(view=View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),))))
