"""Confinement: the mount plan of a confined program, and the real confinement, also as an ordinary user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import guildhall
from guildhall.core.errors import ToolUnavailable
from guildhall.sandbox import jail
from guildhall.sandbox import seccomp as jail_seccomp
from guildhall.sandbox.jail import Confinement, spawn, strongest_kind
from guildhall.sandbox.mounts import plan_mounts, program_paths
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    from guildhall.sandbox.jail import Kind

KINDS: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")


def run_confined(view: View, command: str, kind: Kind, **more: object) -> tuple[int, str]:
    async def main() -> tuple[int, str]:
        program = await spawn(["/bin/sh", "-c", command], Confinement(view=view, **more), kind=kind)  # type: ignore[arg-type]
        assert program.process.stdout is not None
        output = await program.process.stdout.read()
        return await program.wait(), output.decode()

    return asyncio.run(main())


def list_mounts(view: View, **more: object) -> dict[str, str]:
    plan = plan_mounts(Confinement(view=view, **more))  # type: ignore[arg-type]
    return {str(place.path): "pin" if place.is_pin else place.access for place in plan.mounts}


# Mount plan


def test_system_programs_are_mounted_but_neither_keys_nor_the_root(tmp_path):
    seen = list_mounts(View(cwd=tmp_path))
    assert seen["/usr"] == "read"
    assert seen["/etc/passwd"] == "read"
    assert not {"/", "/etc", "/etc/ssl", "/etc/shadow", "/home", "/run", "/var", "/tmp"} & seen.keys()
    assert not any("private" in path for path in seen)
    assert all(seen[str(path)] == "read" for path in program_paths() if path.exists())
    assert set(seen.values()) == {"read"}


def test_folders_have_the_access_of_the_view(tmp_path):
    for name in ("a", "b", "b/inner", "gone"):
        (tmp_path / name).mkdir()
    (tmp_path / "gone").rmdir()
    folders = (
        Folder(path=tmp_path / "a"),
        Folder(path=tmp_path / "b", is_writable=True),
        Folder(path=tmp_path / "b" / "inner"),
        Folder(path=tmp_path / "gone", is_writable=True),
    )
    seen = list_mounts(View(cwd=tmp_path, folders=folders))
    assert seen[f"{tmp_path}/a"] == "read"
    assert seen[f"{tmp_path}/b"] == "write"
    assert seen[f"{tmp_path}/b/inner"] == "read"
    assert f"{tmp_path}/gone" not in seen


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_folder_declared_twice_is_writable_if_either_is_writable(tmp_path, order):
    folders = tuple(Folder(path=tmp_path, is_writable=writable) for writable in order)
    assert list_mounts(View(cwd=tmp_path, folders=folders))[str(tmp_path)] == "write"


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/1", "/dev", "/sys/kernel", "/etc", "/run"])
def test_folders_of_the_system_are_refused(path):
    with pytest.raises(ToolUnavailable, match="cannot confine"):
        plan_mounts(Confinement(view=View(cwd=Path("/tmp"), folders=(Folder(path=Path(path)),))))


def test_hidden_paths_take_precedence(tmp_path):
    home = tmp_path / "deep" / "home"
    (home / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    folders = (Folder(path=tmp_path, is_writable=True), Folder(path=home / "inner", is_writable=True))
    seen = list_mounts(View(cwd=tmp_path, folders=folders, hidden=(tmp_path / "link",)), read_only=(home,))
    assert seen[str(home)] == "hidden"
    assert seen[str(home.parent)] == "pin"
    assert f"{home}/inner" not in seen
    assert "/usr" in seen


def test_a_folder_that_was_replaced_by_a_link_is_not_mounted(tmp_path):
    (tmp_path / "inner").symlink_to("/usr")
    folders = (Folder(path=tmp_path, is_writable=True), Folder(path=tmp_path / "inner", is_writable=True))
    assert f"{tmp_path}/inner" not in list_mounts(View(cwd=tmp_path, folders=folders))


def test_a_folder_reached_through_a_link_is_mounted_at_its_declared_path(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "named").symlink_to("real")
    plan = plan_mounts(Confinement(view=View(cwd=tmp_path / "named", folders=(Folder(path=tmp_path / "named"),))))
    (place,) = [place for place in plan.mounts if place.path == tmp_path / "named"]
    assert place.source == tmp_path / "real"
    assert plan.cwd == tmp_path / "named"


def test_the_working_folder_is_tmp_if_the_declared_one_is_not_mounted(tmp_path):
    assert plan_mounts(Confinement(view=View(cwd=tmp_path))).cwd == Path("/tmp")


def test_guildhall_inside_a_writable_folder_stays_read_only():
    package = Path(guildhall.__file__).parent
    folder = package.parent.parent
    seen = list_mounts(View(cwd=folder, folders=(Folder(path=folder, is_writable=True),)))
    assert seen[str(package.parent)] == "read"


# Git


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    git("init", "-q", str(folder))
    git("-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def git(*arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", *arguments], check=True, env=env, capture_output=True)


def test_a_linked_worktree_sees_the_shared_git_directory_read_only(repository, tmp_path):
    tree = tmp_path / "tree"
    git("-C", str(repository), "worktree", "add", "-q", str(tree))
    for writable in (True, False):
        seen = list_mounts(View(cwd=tree, folders=(Folder(path=tree, is_writable=writable),)))
        assert seen[str(repository / ".git")] == "read"
        assert seen.get(str(tree / ".git")) == ("read" if writable else None)
        assert str(repository) not in seen


@pytest.mark.parametrize("kind", KINDS)
def test_git_works_in_a_linked_worktree(repository, tmp_path, kind):
    tree = tmp_path / "tree"
    git("-C", str(repository), "worktree", "add", "-q", str(tree))
    view = View(cwd=tree, folders=(Folder(path=tree, is_writable=True),))
    code, output = run_confined(view, "git -c safe.directory='*' log --oneline; echo x > .git", kind)
    assert "first" in output
    assert code != 0
    assert (tree / ".git").read_text().startswith("gitdir:")


def test_a_forged_git_file_grants_no_access(repository, tmp_path):
    """Runs can write such a file to gain access to another folder."""
    secret = tmp_path / "secret"
    (secret / "worktrees" / "x").mkdir(parents=True)
    (secret / "objects").mkdir()
    (secret / "HEAD").touch()
    work = tmp_path / "work"
    forged = work / "worktrees" / "x"
    forged.mkdir(parents=True)
    (forged / "gitdir").write_text(str(work / ".git"))
    (forged / "commondir").write_text(str(secret))
    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),))
    for text in (
        f"gitdir: {secret}/worktrees/x",
        f"gitdir: {forged}",
        "nonsense",
        "\udcff",
        f"gitdir: {repository}/.git",
    ):
        (work / ".git").write_bytes(text.encode("utf-8", "surrogateescape"))
        seen = list_mounts(view)
        assert not any(path.startswith((str(secret), str(repository))) for path in seen), text
    (work / ".git").unlink()
    (work / ".git").symlink_to(secret)
    assert not any(path.startswith(str(secret)) for path in list_mounts(view))


def test_repositories_are_searched_to_a_limited_depth(tmp_path):
    for name in (".git", "a/.git", "a/b/c/.git", "a/b/c/d/.git", "node_modules/x/.git"):
        (tmp_path / name).mkdir(parents=True)
    seen = list_mounts(View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),)))
    found = {path.removeprefix(f"{tmp_path}/") for path in seen if path.startswith(str(tmp_path)) and ".git" in path}
    assert found == {".git", "a/.git", "a/b/c/.git"}


# Landlock rules only grant access: a folder that contains a protected path needs rules for its other entries


def rules(view: View, tmp_path: Path, **more: bool) -> dict[str, str]:
    confinement = Confinement(view=view)
    spec = jail.launcher_specification(
        confinement, plan_mounts(confinement), ["x"], namespaces=more.get("namespaces", False), scratch=tmp_path
    )
    return dict(json.loads(spec)["rules"])


def test_landlock_rules_cover_the_other_entries_beside_protected_paths(tmp_path):
    work = tmp_path / "work"
    for name in (".git", "src/deep", "deep/home"):
        (work / name).mkdir(parents=True)
    (work / "deep" / "beside").touch()
    (work / "out").symlink_to("/etc")
    view = View(cwd=work, folders=(Folder(path=work, is_writable=True),))
    granted = rules(view, tmp_path)
    assert granted[str(work)] == "read"
    assert granted[f"{work}/src"] == "write"
    assert granted[f"{work}/.git"] == "read"
    assert f"{work}/out" not in granted
    hiding = rules(View(cwd=work, folders=view.folders, hidden=(work / "deep" / "home",)), tmp_path)
    assert str(work) not in hiding
    assert f"{work}/deep" not in hiding
    assert hiding[f"{work}/deep/beside"] == "write"
    assert not any(path.startswith(f"{work}/deep/home") for path in hiding)
    assert rules(view, tmp_path, namespaces=True)[str(work)] == "write"


def test_the_number_of_rules_of_a_huge_folder_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(jail, "_MAX_ENTRIES", 3)
    work = tmp_path / "work"
    for name in (".git", "a", "b", "c", "d"):
        (work / name).mkdir(parents=True)
    granted = rules(View(cwd=work, folders=(Folder(path=work, is_writable=True),)), tmp_path)
    assert f"{work}/b" in granted
    assert f"{work}/d" not in granted


# Seccomp filter


def test_the_filter_exists_only_for_known_machines():
    closed = jail_seccomp.Filter(families=frozenset())
    x86, arm = (jail_seccomp.compile_filter(closed, machine) for machine in ("x86_64", "aarch64"))
    assert x86
    assert arm
    assert x86 != arm
    assert len(x86) % 8 == 0
    assert jail_seccomp.compile_filter(closed, "pdp11") is None
    assert len(
        jail_seccomp.compile_filter(jail_seccomp.Filter(families=frozenset(), may_change_modes=False), "x86_64") or b""
    ) > len(x86)
    assert jail_seccomp.socket_families(network=True, loopback=False) == jail_seccomp.socket_families(
        network=False, loopback=True
    )


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("names", ["_REFUSED", "_MODES"])
def test_a_refused_system_call_without_a_number_raises(names, machine, monkeypatch):
    monkeypatch.setattr(jail_seccomp, names, (*getattr(jail_seccomp, names), "new_call"))
    with pytest.raises(KeyError, match="new_call"):
        jail_seccomp.compile_filter(jail_seccomp.Filter(families=frozenset(), may_change_modes=False), machine)


@pytest.mark.parametrize("kind", KINDS)
def test_dangerous_system_calls_are_refused(kind, tmp_path):
    program = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def try_call(*arguments):
    return os.strerror(ctypes.get_errno()) if libc.syscall(*arguments) < 0 else "done"
print("unshare", try_call(272, 0x10000000))
print("keyctl", try_call(250, 0, -3, 1))
print("io_uring", try_call(425, 1, None))
print("clone3", try_call(435, None, 0))
print("clone", try_call(56, 0x10000011, None, None, None, None))
for family in (socket.AF_UNIX, socket.AF_PACKET, 40):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print("socket", family, "done")
    except OSError as error:
        print("socket", family, error.strerror)
print("fork", os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]))
import threading
thread = threading.Thread(target=print, args=("thread",))
thread.start(); thread.join()
"""
    script = tmp_path / "script.py"
    script.write_text(program)
    view = View(cwd=tmp_path, folders=(Folder(path=tmp_path),))
    _, output = run_confined(view, "python3 script.py", kind)
    refused = "Operation not permitted"
    assert output.splitlines() == [
        f"unshare {refused}", f"keyctl {refused}", f"io_uring {refused}", "clone3 Function not implemented",
        f"clone {refused}", "socket 1 Permission denied", "socket 17 Permission denied", "socket 40 Permission denied",
        "fork 0", "thread",
    ]  # fmt: skip


# Choice of the kind


def test_the_strongest_working_kind_is_used(tmp_path):
    assert strongest_kind() == "bubblewrap"
    assert strongest_kind("/nowhere") == "namespaces"
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert strongest_kind(str(tmp_path)) == "namespaces"
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "bwrap").write_text("not a program")
    (slow / "bwrap").chmod(0o755)
    assert strongest_kind(str(slow)) == "namespaces"


def test_nothing_is_started_without_confinement(monkeypatch, tmp_path):
    monkeypatch.setattr(jail, "has_landlock", lambda: False)
    assert strongest_kind(str(tmp_path)) is None
    view = View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),))

    async def main() -> None:
        await spawn(["/bin/sh", "-c", "touch made"], Confinement(view=view), path=str(tmp_path))

    with pytest.raises(ToolUnavailable, match="Install bubblewrap"):
        asyncio.run(main())
    assert not (tmp_path / "made").exists()


def test_landlock_is_detected_in_the_kernel(monkeypatch):
    assert jail.has_landlock()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not jail.has_landlock()


def test_an_old_bubblewrap_gets_no_size_option(tmp_path):
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.6.1\n")
    old.chmod(0o755)
    confinement = Confinement(view=View(cwd=tmp_path), network=True)
    argv = jail.bubblewrap_arguments(confinement, plan_mounts(confinement), str(tmp_path), None)
    assert "--size" not in argv
    assert "--share-net" in argv
    assert "--seccomp" not in argv
    assert argv[0] == str(old)


def test_no_descriptor_or_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for kind in KINDS:
        run_confined(View(cwd=tmp_path), "echo x > $HOME/file; mkdir -p $TMPDIR/a/b", kind)
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
    assert list(tmp_path.iterdir()) == []


def test_a_cancelled_start_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def main() -> None:
        for turns in (1, 3, 10, 100):
            task = asyncio.create_task(
                spawn(
                    ["/bin/true"],
                    Confinement(view=View(cwd=tmp_path)),
                    kind="landlock",
                    stdout=asyncio.subprocess.DEVNULL,
                )
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).wait()

    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(jail, "_KILL_TIMEOUT_S", 0.2)

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        await jail.ConfinedProcess(process=process, kind="landlock", _resources=contextlib.ExitStack()).kill()
        assert process.returncode == -9
        await process.stdout.read()

    asyncio.run(main())


# The launcher, without the start-up flags of Python


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 3", 3), ("kill -9 $$", 137), ("(setsid sleep 300 &) >/dev/null 2>&1; setsid sleep 300 & exit 0", 0)],
)
def test_the_launcher_returns_the_exit_code_and_leaves_no_process(namespaces, command, code, tmp_path):
    (tmp_path / "held").touch()
    done = run_launcher(f"exec 9<{tmp_path}/held; {command}", namespaces, tmp_path)
    assert done.returncode == code
    open_files = [link for process in Path("/proc").glob("[0-9]*") for link in _open_files(process)]
    assert str(tmp_path / "held") not in open_files


def test_the_launcher_starts_nothing_for_another_parent(tmp_path):
    assert run_launcher("echo started", False, tmp_path, parent=1).stdout == ""


def test_the_launcher_reports_why_it_cannot_confine(tmp_path):
    done = run_launcher("echo started", True, tmp_path, mounts=[["/not/there", "write"]])
    assert done.returncode == 126
    assert "cannot confine the program" in done.stderr
    assert "started" not in done.stdout
    done = run_launcher("echo started", False, tmp_path, seccomp="00")
    assert (done.returncode, done.stdout) == (126, "")


def test_the_launcher_ends_the_program_when_it_is_terminated(tmp_path):
    process = subprocess.Popen(**_launcher_arguments("echo ready; sleep 300", False, tmp_path), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.stdout.read() == b""  # no process has the other end open
    assert process.wait(5) == 143
    process.stdout.close()


def run_launcher(command: str, namespaces: bool, tmp_path: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        **_launcher_arguments(command, namespaces, tmp_path, **changes), capture_output=True, text=True, timeout=30
    )


def _launcher_arguments(command: str, namespaces: bool, tmp_path: Path, **changes: object) -> dict[str, object]:
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    confinement = Confinement(view=View(cwd=tmp_path, folders=(Folder(path=tmp_path, is_writable=True),)))
    argv = ["/bin/sh", "-c", command]
    spec = jail.launcher_specification(
        confinement, plan_mounts(confinement), argv, namespaces=namespaces, scratch=scratch
    )
    held = os.memfd_create("spec", 0)
    os.write(held, json.dumps({**json.loads(spec), **changes}).encode())
    os.lseek(held, 0, os.SEEK_SET)
    launcher = [sys.executable, "-m", "guildhall.sandbox.launcher", str(held)]
    return {"args": launcher, "pass_fds": [held], "stdin": subprocess.DEVNULL}


def _open_files(process: Path) -> list[str]:
    try:
        return [str(link.readlink()) for link in (process / "fd").iterdir()]
    except OSError:
        return []


# As an ordinary user


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
@pytest.mark.parametrize("kind", KINDS)
def test_confinement_works_for_an_ordinary_user(kind, tmp_path_factory):
    """Copy everything to a folder that an unprivileged user can read, and run the checks there."""
    python = shutil.which("python3", path="/usr/bin")
    if python is None or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode:
        pytest.skip("no system Python that an ordinary user can start")
    base = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        base.chmod(0o755)
        shutil.copytree(
            Path(guildhall.__file__).parent, base / "guildhall", ignore=shutil.ignore_patterns("__pycache__")
        )
        for name in ("work", "home", "out"):
            (base / name).mkdir()
            os.chown(base / name, 65534, 65534)
        (base / "home" / "token").write_text("the user's token")
        (base / "home" / "token").chmod(0o644)
        done = subprocess.run(
            [python, "-I", "-c", _ORDINARY, str(base), kind],
            user=65534, group=65534, extra_groups=[], env={"PATH": "/usr/bin:/bin"}, cwd="/", 
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.stderr == ""
        assert json.loads(done.stdout) == {
            "uid": "65534", "write inside": 0, "write outside": True, "mode outside": True, "read home": True,
            "signal hall": True, "network": True, "memory of hall": True,
        }  # fmt: skip
        assert (base / "work" / "made").read_text() == "x\n"
        assert list((base / "out").iterdir()) == []
        assert (base / "out").stat().st_mode & 0o777 == 0o755
    finally:
        shutil.rmtree(base)


_ORDINARY = """
import asyncio, json, os, signal, socket, sys
from pathlib import Path
base, kind = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(base))
from guildhall.sandbox.jail import Confinement, spawn
from guildhall.sandbox.view import Folder, View
view = View(cwd=base / "work", folders=(Folder(path=base / "work", is_writable=True),), hidden=(base / "home",))
server = socket.create_server(("127.0.0.1", 0))
async def run(command):
    program = await spawn(["/bin/bash", "-c", command], Confinement(view=view), kind=kind)
    output = (await program.process.stdout.read()).decode()
    return await program.wait(), output
async def main():
    me = os.getpid()
    print(json.dumps({
        "uid": (await run("id -u"))[1].strip(),
        "write inside": (await run("echo x > made"))[0],
        "write outside": (await run(f"echo x > {base}/out/made"))[0] != 0,
        "mode outside": (await run(f"chmod 777 {base}/out"))[0] != 0,
        "read home": (await run(f"cat {base}/home/token"))[0] != 0,
        "signal hall": (await run(f"kill -USR1 {me}"))[0] != 0,
        "network": (await run(f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"))[0] != 0,
        "memory of hall": (await run(f"cat /proc/{me}/environ"))[0] != 0,
    }))
asyncio.run(main())
"""
