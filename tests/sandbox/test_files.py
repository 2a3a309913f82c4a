"""Sandbox files: no path, link, name or swap reads or writes outside of the folders of a run."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guildhall.core.errors import GuildError, NotFound, Refused
from guildhall.sandbox.files import SandboxFiles, has_suffix, resolve_view
from guildhall.sandbox.path_walk import translate_os_errors
from guildhall.sandbox.view import Folder, View

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

CANARY = b"CANARY: this lies outside"
CANARY_NAME = "canary-name"


class Place:
    """A folder `in` that a run may use, and files around it that it may not touch."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "in"
        self.ro = base / "ro"
        self.outside = base / "outside"
        self.private = self.root / "private"
        for folder in (self.root / "a" / "b", self.ro, self.outside / "deep", self.private / "deep", base / "in2"):
            folder.mkdir(parents=True)
        self.canaries = [
            base / "canary.txt",
            self.outside / f"{CANARY_NAME}.txt",
            self.outside / "c.txt",
            self.outside / "deep" / "c.txt",
            self.private / "c.txt",
            self.private / f"{CANARY_NAME}.txt",
            self.private / "deep" / "c.txt",
            base / "in2" / "c.txt",
        ]
        for canary in self.canaries:
            canary.write_bytes(CANARY)
        (self.root / "a" / "b" / "c.txt").write_text("inside")
        (self.ro / "c.txt").write_text("to be read")

    @property
    def view(self) -> View:
        return View(
            cwd=self.root,
            folders=(Folder(path=self.root, is_writable=True), Folder(path=self.ro, name="ro")),
            hidden=(self.private,),
        )

    def link(self, name: str, target: str | Path) -> None:
        path = self.root / name
        if not path.is_symlink():
            path.symlink_to(target)

    def check_untouched(self) -> None:
        assert all(canary.read_bytes() == CANARY for canary in self.canaries)
        assert (self.ro / "c.txt").read_text() == "to be read"
        files = {path for path in self.base.rglob("*") if path.is_file() and not path.is_symlink()}
        strays = {
            path for path in files - set(self.canaries) - {self.ro / "c.txt"} if not path.is_relative_to(self.root)
        }
        assert not strays
        assert {path for path in files if path.is_relative_to(self.private)} <= set(self.canaries)


@contextmanager
def temporary_place() -> Generator[Place]:
    with tempfile.TemporaryDirectory(prefix="rooted-") as base:
        yield Place(Path(base).resolve())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def try_call(act: Callable[[], Any]) -> Any:
    """Return the result of a call, or None if it was refused. Other errors fail the test."""
    try:
        return act()
    except GuildError as error:
        str(error).encode("utf-8", "surrogatepass")
        return None


# fmt: off
PIECES = st.sampled_from([
    "", ".", "..", "...", "a", "b", "A", "B", "c.txt", "C.TXT", "c.txt.", "c.txt ", "l0", "l1", "l2", "l3", "in", "in2",
    "outside", "deep", "private", "PRIVATE", "ro", f"{CANARY_NAME}.txt", "canary.txt", "new", "~", "proc", "self",
    "root", "%2e%2e", "..%2f", "..\\", "\u2025", "\uff0e\uff0e", "\u2215", "a\u0301", "\u00e1", "\u202e", "\ud800",
    "\udcff", "x" * 255, "y" * 256, "a\0b", "\n", "-rf", "*",
])
TARGETS = st.sampled_from([
    "..", ".", "../outside", "../outside/c.txt", "../../../../../../../..", "OUTSIDE", "ROOT", "ROOT/private",
    "private", "private/c.txt", "l0", "l1", "l2", "l3", "a", "a/b", "a/b/c.txt", "a/../../outside", "../in",
    "../in/a", "/", "/proc/self/root", "../ro", "l1/../l2", "l2/deep", "l3/c.txt", "nowhere", "nowhere/../../outside",
])
# fmt: on
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=8)
TAILS = st.lists(PIECES | ANY, max_size=8).map("/".join)
HEADS = st.sampled_from(
    ["", "", "", "/", "//", "BASE/", "ROOT/", "/ROOT/", "ROOT/../", "RO/", "/proc/self/cwd/", "/proc/self/root/"]
)


def expand(place: Place, text: str) -> str:
    names = {"BASE": place.base, "ROOT": place.root, "OUTSIDE": place.outside, "RO/": f"{place.ro}/"}
    for name, path in names.items():
        text = text.replace(name, str(path))
    return text


@pytest.mark.req("DO-4")
@settings(max_examples=300, deadline=None)
@given(head=HEADS, tail=TAILS, targets=st.lists(TARGETS, min_size=4, max_size=4))
@example(head="", tail="l0/c.txt", targets=["l1", "l2", "l3", "../outside"])
@example(head="", tail="a/l0/../../outside/c.txt", targets=["..", "..", "..", ".."])
@example(head="ROOT/../", tail="outside/c.txt", targets=["..", "..", "..", ".."])
@example(head="", tail="private/c.txt", targets=["private", "..", "..", ".."])
@example(head="", tail="l0/deep/c.txt", targets=["private", "..", "..", ".."])
@example(head="", tail="new/../../outside/c.txt", targets=["private", "..", "..", ".."])
def test_no_path_reads_or_writes_outside(head: str, tail: str, targets: list[str]) -> None:
    with temporary_place() as place:
        for number, target in enumerate(targets):
            place.link(f"l{number}", expand(place, target))
        rooted = SandboxFiles(place.view)
        path = expand(place, head) + tail
        contents = try_call(lambda: rooted.read(rooted.locate(path)).data)
        assert contents is None or CANARY not in contents
        listed = try_call(lambda: [name for name, _ in rooted.list_files(rooted.locate(path))]) or []
        assert not any(CANARY_NAME in name for name in listed)
        try_call(lambda: rooted.write(rooted.locate(path), b"written"))
        place.check_untouched()
        folder = rooted.find_sandbox("ro")
        contents = try_call(lambda: rooted.read(rooted.locate_in(folder, tail)).data)
        assert contents in (None, b"to be read")
        assert try_call(lambda: rooted.write(rooted.locate_in(folder, tail), b"written")) is None
        place.check_untouched()


@pytest.mark.parametrize("path", ["", "  ", "a\0b", "x" * 5000, "a/" * 3000 + "b", "\ud800", "y" * 300, "../" * 60])
@pytest.mark.req("DO-4")
def test_invalid_paths_are_refused(place: Place, path: str) -> None:
    rooted = SandboxFiles(place.view)
    with pytest.raises(GuildError):
        rooted.read(rooted.locate(path))
    with pytest.raises(GuildError):
        rooted.write(rooted.locate(path), b"x")
    with pytest.raises(GuildError):
        rooted.write(rooted.locate_in(rooted.find_sandbox("ro"), path), b"x")
    place.check_untouched()


def test_files_inside_are_read_in_every_spelling(place: Place) -> None:
    place.link("inside", "a/b")
    place.link("round", "inside/../b/./c.txt")
    (place.root / "a" / "up").symlink_to("../a/b/c.txt")
    rooted = SandboxFiles(place.view)
    for path in [
        "a/b/c.txt",
        "./a//b/../b/c.txt",
        "inside/c.txt",
        "round",
        "a/up",
        "../in/a/b/c.txt",
        "nowhere/../a/b/c.txt",
    ]:
        if path.startswith("nowhere"):
            with pytest.raises(NotFound):
                rooted.read(rooted.locate(path))
            continue
        assert rooted.read(rooted.locate(path)).data == b"inside", path
        assert rooted.read(rooted.locate(f"{place.root}/{path}")).data == b"inside", path
    assert rooted.read(rooted.locate("../ro/c.txt")).data == b"to be read"
    assert rooted.read(rooted.locate(f"{place.root}/../ro/c.txt")).data == b"to be read"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/etc/passwd", "cannot access /etc/passwd: outside the folders of this run\nUse a path inside: "),
        ("../outside/c.txt", "outside the folders"),
        ("out/c.txt", "is a link to an absolute path"),
        ("up/outside/c.txt", "leads out of the folder"),
        ("loop", "more than 40 symbolic links\nThe links may form a loop. Use the path of the target."),
        ("a", "is a folder, not a file"),
        ("a/b/c.txt/d", "'c.txt' is not a folder"),
        ("a/b/d.txt", "a/b/d.txt does not exist\nDid you mean 'c.txt'?"),
        ("private/c.txt", "Guildhall hides it from workers"),
        ("d/" * 110 + "x", "more than 100 nested folders"),
        ("y" * 300, "a name in the path is too long"),
    ],
)
def test_refusals_name_the_reason(place: Place, path: str, message: str) -> None:
    place.link("out", place.outside)
    place.link("up", "..")
    place.link("loop", "loop")
    deep = place.root
    for _ in range(101):
        deep = deep / "d"
        deep.mkdir()
    with pytest.raises(GuildError) as caught:
        SandboxFiles(place.view).read(SandboxFiles(place.view).locate(path))
    assert message in str(caught.value)


def test_a_run_without_folders_reads_nothing(place: Place) -> None:
    rooted = SandboxFiles(View(cwd=place.root))
    with pytest.raises(Refused, match="has no folders"):
        rooted.locate("a/b/c.txt")
    with pytest.raises(NotFound, match="unknown sandbox 'x'"):
        rooted.find_sandbox("x")
    with pytest.raises(NotFound, match=r"Known: ro\."):
        SandboxFiles(place.view).find_sandbox("r0")
    with pytest.raises(Refused, match="relative to the sandbox"):
        SandboxFiles(place.view).locate_in(place.view.folders[1], "/c.txt")


# Races


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step, so that neither is ever missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2):
        raise OSError(ctypes.get_errno(), "renameat2")


@contextmanager
def swap_folder(place: Place, target: str | Path) -> Generator[None]:
    """Keep exchanging in/d with a link while the block runs."""
    done = threading.Event()
    here, link = place.root / "d", place.root / "link"
    here.mkdir()
    (here / "c.txt").write_text("inside")
    link.symlink_to(target)

    def swap() -> None:
        while not done.is_set():
            exchange(here, link)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


@pytest.mark.req("DO-4")
@pytest.mark.parametrize("target", ["../outside", "OUTSIDE", "private"])
def test_a_link_that_replaces_a_folder_after_the_check_is_not_followed(place: Place, target: str) -> None:
    rooted = SandboxFiles(place.view)
    read = written = 0
    with swap_folder(place, expand(place, target)):
        for attempt in range(2000):
            contents = try_call(lambda: rooted.read(rooted.locate("d/c.txt")).data)
            assert contents is None or CANARY not in contents
            read += contents is not None
            if attempt % 4 == 0:
                written += try_call(lambda: rooted.write(rooted.locate("d/c.txt"), b"inside")) is not None
                names = try_call(lambda: [name for name, _ in rooted.list_files(rooted.locate("."))]) or []
                assert not any(CANARY_NAME in name for name in names)
    assert read
    assert written
    place.check_untouched()


@pytest.mark.req("DO-4")
def test_a_link_that_replaces_a_file_after_the_check_is_not_followed(place: Place) -> None:
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            other = place.root / "other"
            other.symlink_to(place.outside / "c.txt")
            other.replace(place.root / "f.txt")
            other.write_text("inside")
            other.replace(place.root / "f.txt")

    thread = threading.Thread(target=swap)
    thread.start()
    rooted = SandboxFiles(place.view)
    try:
        for _ in range(1000):
            contents = try_call(lambda: rooted.read(rooted.locate("f.txt")).data)
            assert contents is None or CANARY not in contents
            try_call(lambda: rooted.write(rooted.locate("f.txt"), b"inside"))
    finally:
        done.set()
        thread.join(5)
    place.check_untouched()


# Special files


@pytest.mark.req("DO-4")
def test_special_and_huge_files_are_refused(place: Place) -> None:
    os.mkfifo(place.root / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(place.root)  # the path of a socket must be short
        bound.bind("socket")
    os.chdir("/")
    with (place.root / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    names = ["pipe", "socket"]
    if os.geteuid() == 0:
        try:
            os.mknod(place.root / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
            names.append("zero")
        except PermissionError:
            pass
    rooted = SandboxFiles(place.view)
    for name in names:
        for act in (lambda n=name: rooted.read(rooted.locate(n)), lambda n=name: rooted.write(rooted.locate(n), b"x")):
            with pytest.raises(Refused, match="not a regular file"):
                act()
    with pytest.raises(Refused, match="permits 10,000,000 bytes"):
        rooted.read(rooted.locate("huge"))
    assert [name for name, _ in rooted.list_files(rooted.locate("."))] == ["a/b/c.txt", "huge"]


def test_devices_are_refused() -> None:
    rooted = SandboxFiles(View(cwd=Path("/dev"), folders=(Folder(path=Path("/dev"), is_writable=True),)))
    for name in ("zero", "null", "tty"):
        with pytest.raises(GuildError):
            rooted.read(rooted.locate(name))
        with pytest.raises(GuildError):
            rooted.write(rooted.locate(name), b"x")


def test_the_size_limit_applies_to_files_without_a_size() -> None:
    proc = Folder(path=Path("/proc/sys/kernel"), max_bytes=3)
    rooted = SandboxFiles(View(cwd=proc.path, folders=(proc,)))
    with pytest.raises(Refused, match="permits 3 bytes"):
        rooted.read(rooted.locate("ostype"))


def run_unprivileged(act: Callable[[], None]) -> int:
    """Run a function in a child process without root privileges, and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_unreadable_files_are_refused_and_not_listed() -> None:
    base = Path(tempfile.mkdtemp(prefix="rooted-")).resolve()
    base.chmod(0o755)
    try:
        (base / "open.txt").write_text("x")
        (base / "closed.txt").write_text("x")
        (base / "closed").mkdir()
        (base / "closed" / "in.txt").write_text("x")
        (base / "unlisted").mkdir()
        (base / "unlisted" / "in.txt").write_text("x")
        (base / "closed.txt").chmod(0)
        (base / "closed").chmod(0)
        (base / "unlisted").chmod(0o711)

        def act() -> None:
            rooted = SandboxFiles(View(cwd=base, folders=(Folder(path=base, is_writable=True),)))
            for path in ("closed.txt", "closed/in.txt"):
                with pytest.raises(Refused, match="permission denied"):
                    rooted.read(rooted.locate(path))
            assert rooted.read(rooted.locate("unlisted/in.txt")).data == b"x"
            with pytest.raises(Refused, match="permission denied"):
                rooted.write(rooted.locate("new.txt"), b"x")
            with pytest.raises(NotFound, match="unlisted/on"):
                rooted.read(rooted.locate("unlisted/on.txt"))
            found = [name for name, _ in rooted.list_files(rooted.locate("."))]
            assert found == ["closed.txt", "open.txt"]

        assert run_unprivileged(act) == 0
    finally:
        (base / "closed").chmod(0o700)
        shutil.rmtree(base)


# Hidden paths


@pytest.mark.req("DO-4")
def test_a_hidden_folder_is_hidden_under_every_path(place: Place) -> None:
    other = place.root / "other"
    other.mkdir()
    (other / "way").symlink_to("../private/deep")
    place.link("p", "private")
    view = View(
        cwd=place.base,
        folders=(
            Folder(path=place.base, is_writable=True),
            Folder(path=place.private / "deep", name="deep", is_writable=True),
        ),
        hidden=(place.root / "p", place.base / "later"),
    )
    rooted = SandboxFiles(view)
    for path in (
        "in/private/c.txt",
        "in/p/c.txt",
        "in/private/deep/c.txt",
        "in/other/way/c.txt",
        f"{place.private}/c.txt",
    ):
        with pytest.raises(Refused, match="Guildhall hides"):
            rooted.read(rooted.locate(path))
        with pytest.raises(Refused, match="Guildhall hides"):
            rooted.write(rooted.locate(path), b"x")
    with pytest.raises(Refused, match="Guildhall hides"):
        rooted.read(rooted.locate_in(rooted.find_sandbox("deep"), "c.txt"))
    for path in ("later", "later/x"):
        with pytest.raises(Refused, match="Guildhall hides"):
            rooted.write(rooted.locate(path), b"x")
    (place.base / "later").mkdir()
    (place.base / "later" / "x").write_text("came later")
    (place.base / "by-link").symlink_to("later")
    with pytest.raises(Refused, match="Guildhall hides"):
        rooted.read(rooted.locate("by-link/x"))
    names = [name for name, _ in rooted.list_files(rooted.locate("."))]
    assert "in/a/b/c.txt" in names
    assert not [name for name in names if "private" in name or "later" in name or "way" in name]


def test_a_hidden_file_is_hidden_under_every_name(place: Place) -> None:
    secret = place.root / "secret.txt"
    secret.write_bytes(CANARY)
    (place.root / "same.txt").hardlink_to(secret)
    place.link("link.txt", "secret.txt")
    rooted = SandboxFiles(View(cwd=place.root, folders=place.view.folders, hidden=(secret,)))
    for name in ("secret.txt", "same.txt", "link.txt"):
        with pytest.raises(Refused, match="Guildhall hides"):
            rooted.read(rooted.locate(name))
    for name in ("secret.txt", "same.txt"):
        with pytest.raises(Refused, match="Guildhall hides"):
            rooted.write(rooted.locate(name), b"x")
    names = [name for name, _ in rooted.list_files(rooted.locate("a/.."))]
    assert not {"secret.txt", "same.txt", "link.txt"} & set(names)
    assert list(rooted.list_files(rooted.locate("same.txt"))) == []


# Folders


def test_the_rules_of_the_innermost_folder_apply_also_through_a_link(place: Place) -> None:
    (place.root / "way").symlink_to("a")
    view = View(
        cwd=place.root,
        folders=(
            Folder(path=place.root, is_writable=True),
            Folder(path=place.root),
            Folder(path=place.root / "a", name="a", allowed_suffixes=(".md",)),
            Folder(path=place.root / "a" / "b", name="b", is_writable=True, max_bytes=8),
            Folder(path=place.root / "unmade", name="unmade"),
        ),
    )
    rooted = SandboxFiles(view)
    for path in ("a/x.md", "way/x.md"):
        with pytest.raises(
            Refused,
            match=r"cannot write .*: the sandbox 'a' is read-only\nWrite to the folder .* or the sandbox 'b'",
        ):
            rooted.write(rooted.locate(path), b"x")
    with pytest.raises(NotFound, match="unmade does not exist"):
        rooted.write(rooted.locate("unmade/x.md"), b"x")
    (place.root / "dot").symlink_to(".")
    with pytest.raises(Refused, match="the sandbox 'unmade' is read-only"):
        rooted.write(rooted.locate("dot/unmade/x.md"), b"x")
    assert not (place.root / "unmade").exists()
    assert rooted.write(rooted.locate("way/b/x.txt"), b"12345678")
    with pytest.raises(Refused, match=r"it has 9 bytes, and .* permits 8 bytes"):
        rooted.write(rooted.locate("way/b/x.txt"), b"123456789")
    assert rooted.read(rooted.locate("a/b/x.txt")).folder.name == "b"
    assert rooted.read(rooted.locate_in(rooted.find_sandbox("a"), "b/x.txt")).folder.name == "b"


def test_of_two_folders_with_the_same_path_the_named_one_applies(place: Place) -> None:
    named = Folder(path=place.root, name="all", is_writable=True)
    rooted = SandboxFiles(View(cwd=place.root, folders=(Folder(path=place.root), named)))
    assert rooted.locate("x").folder is named
    rooted = SandboxFiles(View(cwd=place.base, folders=(Folder(path=place.base), Folder(path=place.root), named)))
    (place.base / "way").symlink_to("in/a")
    assert rooted.write(rooted.locate("in/x"), b"x")


def test_a_folder_reached_through_a_link_is_refused_until_the_view_is_resolved(place: Place) -> None:
    (place.base / "way").symlink_to("in")
    view = View(
        cwd=place.base / "way",
        folders=(
            Folder(path=place.base / "way" / "a"),
            Folder(path=place.base / "gone"),
            Folder(path=place.ro / "c.txt"),
        ),
        hidden=(place.base / "way" / "private",),
    )
    rooted = SandboxFiles(view)
    with pytest.raises(Refused, match=r"/way is a link"):
        rooted.read(rooted.locate("a/b/c.txt"))
    with pytest.raises(NotFound, match="gone does not exist"):
        rooted.read(rooted.locate("../gone/x"))
    with pytest.raises(Refused, match=r"cannot open the folder .*c\.txt: Not a directory"):
        rooted.read(rooted.locate(f"{place.ro}/c.txt/x"))
    plain = resolve_view(view)
    assert plain.cwd == place.root
    assert plain.hidden == (place.private,)
    rooted = SandboxFiles(plain)
    assert rooted.read(rooted.locate("a/b/c.txt")).data == b"inside"


def test_hidden_files_stay_hidden_if_the_folder_is_the_root(place: Place) -> None:
    rooted = SandboxFiles(View(cwd=Path("/"), folders=(Folder(path=Path("/")),), hidden=(place.private,)))
    assert rooted.read(rooted.locate(f"{place.root}/a/b/c.txt")).data == b"inside"
    with pytest.raises(Refused, match="Guildhall hides"):
        rooted.read(rooted.locate(f"//{place.private}/c.txt"))
    assert rooted.display_path(rooted.locate("/a/b")) == "a/b"


def test_paths_are_displayed_as_the_tools_accept_them(place: Place) -> None:
    rooted = SandboxFiles(place.view)
    assert rooted.display_path(rooted.locate("a/./b/../b/c.txt")) == "a/b/c.txt"
    assert rooted.display_path(rooted.locate(".")) == "."
    assert rooted.display_path(rooted.locate("../ro/c.txt")) == f"{place.ro}/c.txt"


# Write


def test_write_creates_and_replaces_files_and_keeps_their_mode(place: Place) -> None:
    rooted = SandboxFiles(place.view)
    assert rooted.write(rooted.locate("new/deep/x.txt"), b"one") is True
    file = place.root / "new" / "deep" / "x.txt"
    file.chmod(0o4640)
    assert rooted.write(rooted.locate("new/deep/x.txt"), b"two") is False
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(file.parent.iterdir()) == [file]
    file.chmod(0o444)
    with pytest.raises(Refused, match="its mode is read-only"):
        rooted.write(rooted.locate("new/deep/x.txt"), b"three")
    assert file.read_bytes() == b"two"


@pytest.mark.req("DO-4")
def test_write_follows_neither_symbolic_nor_hard_links(place: Place) -> None:
    place.link("s.txt", "../outside/c.txt")
    place.link("i.txt", "a/b/c.txt")
    (place.root / "h.txt").hardlink_to(place.outside / "c.txt")
    rooted = SandboxFiles(place.view)
    for name in ("s.txt", "i.txt"):
        with pytest.raises(Refused, match="not a regular file"):
            rooted.write(rooted.locate(name), b"x")
    assert rooted.write(rooted.locate("h.txt"), b"x") is False
    assert (place.root / "h.txt").read_bytes() == b"x"
    place.check_untouched()


def test_a_refused_write_creates_nothing(place: Place) -> None:
    folder = Folder(path=place.root, name="notes", is_writable=True, text_suffixes=(".md",), max_bytes=3)
    rooted = SandboxFiles(View(cwd=place.root, folders=(folder,)))
    with pytest.raises(Refused, match=r"permits text only in files ending in \.md"):
        rooted.write(rooted.locate("n/x.txt"), b"x")
    with pytest.raises(Refused, match="4 bytes"):
        rooted.write(rooted.locate("n/x.md"), b"1234")
    with pytest.raises(NotFound, match=r"without '\.\.'"):
        rooted.write(rooted.locate_in(folder, "n/../x.md"), b"x")
    with pytest.raises(Refused, match="is a folder"):
        rooted.write(rooted.locate("a"), b"x")
    with pytest.raises(Refused, match="is a folder"):
        rooted.write(rooted.locate_in(folder, "q/.."), b"x")
    assert not (place.root / "q").exists()
    assert not (place.root / "n" / "x.md").exists()


def test_a_failed_write_leaves_nothing_behind(place: Place) -> None:
    rooted = SandboxFiles(place.view)
    with pytest.raises(Refused, match="too long"):
        rooted.write(rooted.locate("a/" + "z" * 256), b"x")
    assert {path.name for path in (place.root / "a").iterdir()} == {"b"}


def test_a_failed_rename_leaves_nothing_behind(place: Place) -> None:
    """Replace the name by a folder while the file is written."""
    done = threading.Event()
    target = place.root / "t"

    def swap() -> None:
        while not done.is_set():
            with suppress(OSError):
                target.mkdir()
            with suppress(OSError):
                target.rmdir()
            target.is_dir() or target.unlink(missing_ok=True)

    thread = threading.Thread(target=swap)
    thread.start()
    rooted = SandboxFiles(place.view)
    try:
        for _ in range(300):
            try_call(lambda: rooted.write(rooted.locate("t"), b"x"))
    finally:
        done.set()
        thread.join(5)
    assert not list(place.root.glob(".*.guild-tmp"))


# List


def test_listing_is_bounded_in_depth_and_number(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = place.root / "d"
    for _ in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    rooted = SandboxFiles(place.view)
    listing = rooted.list_files(rooted.locate("d"))
    assert list(listing) == []
    assert listing.is_truncated
    monkeypatch.setattr("guildhall.sandbox.files._MAX_VISITED_FILES", 5)
    many = place.root / "many"
    many.mkdir()
    for number in range(20):
        (many / str(number)).write_text("x")
    listing = rooted.list_files(rooted.locate("many"))
    assert len(list(listing)) == 5
    assert listing.is_truncated


def test_listing_follows_only_links_to_files_inside(place: Place) -> None:
    place.link("dir", "a")
    place.link("file.txt", "a/b/c.txt")
    place.link("bad.txt", "../outside/c.txt")
    place.link("gone.txt", "nowhere")
    (place.root / ".git").mkdir()
    (place.root / ".git" / "x").write_text("x")
    rooted = SandboxFiles(place.view)
    assert [name for name, _ in rooted.list_files(rooted.locate("."), skip=frozenset({".git"}))] == [
        "a/b/c.txt",
        "file.txt",
    ]
    assert [name for name, _ in rooted.list_files(rooted.locate("dir"))] == ["b/c.txt"]
    assert [name for name, _ in rooted.list_files(rooted.locate("a/b/c.txt"))] == ["c.txt"]
    for name, spot in rooted.list_files(rooted.locate("dir")):
        assert name
        assert rooted.read(spot).data == b"inside"
    with pytest.raises(NotFound, match="Did you mean 'dir'"):
        list(rooted.list_files(rooted.locate("dirr")))


# Suffixes


@pytest.mark.req("DO-4")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x.md", True),
        ("X.MD", True),
        ("x.tar.gz", True),
        ("x.tar", False),
        ("x.md.exe", False),
        ("x.md.", False),
        ("x.md ", False),
        ("x.md\u200b", False),
        ("x.\uff4dd", False),
        ("x\u2024md", False),
        ("x.\u212aey", False),
        ("x.key", True),
        (".md", False),
        ("md", False),
        ("x.\u00e1", True),
        ("x.a\u0301", True),
        ("x.\u00c1", True),
    ],
)
def test_suffixes_ignore_case_and_nothing_else(name: str, expected: bool) -> None:
    assert has_suffix(name, (".md", "tar.gz", ".key", ".\u00e1")) is expected
    assert has_suffix(name, ())


@pytest.mark.req("DO-4")
def test_a_link_and_its_target_must_both_have_an_allowed_suffix(place: Place) -> None:
    place.link("looks.md", "a/b/c.txt")
    (place.root / "n.md").write_text("note")
    place.link("note.exe", "n.md")
    folder = Folder(path=place.root, name="docs", allowed_suffixes=(".md",))
    rooted = SandboxFiles(View(cwd=place.root, folders=(folder,), hidden=(place.private,)))
    for path in ("looks.md", "note.exe", "a/b/c.txt"):
        with pytest.raises(Refused, match=r"permits only files ending in \.md"):
            rooted.read(rooted.locate(path))
    assert [name for name, _ in rooted.list_files(rooted.locate("."))] == ["n.md"]


def test_os_errors_are_translated() -> None:
    for number, message in [
        (errno.ENOENT, "x does not exist"),
        (errno.EROFS, "x: read-only file system"),
        (errno.EPERM, "permission denied"),
    ]:
        with pytest.raises(GuildError, match=message), translate_os_errors("x"):
            raise OSError(number, "")
