"""Attachments: names, types, limits and suffixes, and no file from outside of the sandboxes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guildhall.core.errors import GuildError, InvalidFile, NotFound, Refused, UsageError
from guildhall.runs.assembly.attachments import (
    MEDIA_TYPES,
    check_policy,
    format_size,
    read_sandbox_files,
    read_user_files,
)
from guildhall.runtimes.model import Attachment
from guildhall.sandbox.view import Folder, View
from guildhall.workers.definition import AttachmentPolicy

CANARY = b"CANARY: this lies outside"
PDF = b"%PDF-1.7\n<< /Type /Page >>\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
CONTENT = {
    "application/pdf": PDF,
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0" + bytes(8),
    "image/gif": b"GIF89a" + bytes(8),
    "image/webp": b"RIFF\x00\x00\x00\x00WEBP" + bytes(8),
}
ANY = AttachmentPolicy(max_attachments=1000, max_total_bytes=10**9)


def policy(**fields: object) -> AttachmentPolicy:
    return AttachmentPolicy.model_validate({"max_attachments": 1000, **fields})


class Place:
    """The folders of a caller: two sandboxes in its working directory, and files outside of them."""

    def __init__(self, base: Path) -> None:
        self.base = base.resolve()
        self.input = self.base / "work" / "input"
        self.open = self.base / "work" / "open"
        self.outside = self.base / "outside"
        for folder in (self.input / "deep", self.open, self.outside):
            folder.mkdir(parents=True)
        (self.outside / "c.txt").write_bytes(CANARY)
        (self.base / "work" / "c.txt").write_bytes(CANARY)
        (self.input / "a.txt").write_text("inside")
        (self.input / "deep" / "d.md").write_text("# deep")
        (self.input / "deck.pdf").write_bytes(PDF)

    @property
    def view(self) -> View:
        return View(
            cwd=self.base / "work",
            folders=(
                Folder(path=self.base / "work"),
                Folder(path=self.input, name="input", attachment_suffixes=(".txt", ".md", ".pdf"), max_bytes=1_000),
                Folder(path=self.open, name="open"),
            ),
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# Names and types


def test_a_worker_attaches_files_of_its_sandboxes(place: Place) -> None:
    read = read_sandbox_files(["input/a.txt", "input/deep/d.md", "input:deck.pdf"], place.view, ANY)
    assert [(file.name, file.media_type, file.data) for file in read] == [
        ("input/a.txt", "text/plain", b"inside"),
        ("input/deep/d.md", "text/markdown", b"# deep"),
        ("input/deck.pdf", "application/pdf", PDF),
    ]
    assert [file.is_text for file in read] == [True, True, False]
    assert read[2].label == f"[application/pdf, {len(PDF)} bytes] input/deck.pdf"


@pytest.mark.parametrize(("suffix", "kind"), MEDIA_TYPES.items())
def test_the_content_must_match_the_type_of_the_suffix(place: Place, suffix: str, kind: str) -> None:
    (place.open / f"file{suffix.upper()}").write_bytes(CONTENT.get(kind, b"words"))
    assert read_sandbox_files([f"open/file{suffix.upper()}"], place.view, ANY)[0].media_type == kind
    (place.open / f"wrong{suffix}").write_bytes(b"words \xff" if kind not in CONTENT else b"words")
    with pytest.raises(InvalidFile):
        read_sandbox_files([f"open/wrong{suffix}"], place.view, ANY)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jpg", PNG, "expected the content to be image/jpeg, got image/png"),
        ("a.pdf", b"", "got another type"),
        ("a.png", PDF, "got application/pdf"),
        ("a.txt", PNG, "not UTF-8 text"),
        ("a.docx", b"PK\x03\x04\x00\xff", "not UTF-8 text"),
        ("noted", b"a\0b", "not UTF-8 text"),
        ("half.txt", "ä".encode()[:1], "not UTF-8 text"),
    ],
)
def test_a_file_of_another_type_is_rejected_with_a_hint(place: Place, name: str, data: bytes, message: str) -> None:
    (place.open / name).write_bytes(data)
    with pytest.raises(InvalidFile, match=message) as raised:
        read_sandbox_files([f"open/{name}"], place.view, ANY)
    assert raised.value.where == f"open/{name}"
    assert raised.value.hint


def test_a_pdf_may_follow_a_byte_order_mark_and_a_text_may_contain_its_signature(place: Place) -> None:
    (place.open / "late.pdf").write_bytes(b"\xef\xbb\xbf\n" + PDF)
    (place.open / "about.txt").write_bytes(b"%PDF-1.7 is how they begin")
    (place.open / "empty.txt").write_bytes(b"")
    kinds = [
        file.media_type
        for file in read_sandbox_files(["open/late.pdf", "open/about.txt", "open/empty.txt"], place.view, ANY)
    ]
    assert kinds == ["application/pdf", "text/plain", "text/plain"]


@given(data=st.binary(max_size=200), text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_a_stored_attachment_is_restored_byte_for_byte(data: bytes, text: str) -> None:
    for file in (
        Attachment(name="a.png", media_type="image/png", data=data),
        Attachment(name="a.txt", media_type="text/plain", data=text.encode()),
    ):
        assert Attachment.from_dict(file.as_dict()) == file


# The policy


NAMES = ["a.txt", "b.TXT", "c.md", "d.pdf", "e.csv", "plain", ".txt", "two.txt.md"]
SUFFIXES = [".txt", ".md", ".pdf", ".csv"]


def has_suffix(name: str, suffixes: list[str]) -> bool:
    return Path(name).suffix.lower() in suffixes


@given(
    sizes=st.lists(st.integers(0, 40), min_size=len(NAMES), max_size=len(NAMES)),
    named=st.lists(st.sampled_from(NAMES), unique=True),
    max_files=st.integers(0, 6),
    total_bytes=st.integers(1, 120),
    allowed=st.lists(st.sampled_from(SUFFIXES), unique=True),
    denied=st.lists(st.sampled_from(SUFFIXES), unique=True),
    sandbox_suffixes=st.lists(st.sampled_from(SUFFIXES), unique=True),
    max_file_bytes=st.integers(1, 60),
)
@example([10] * 8, ["a.txt", "c.md"], 2, 20, [], [], [], 10)  # exactly at the limit
@example([10] * 8, ["a.txt", "c.md"], 2, 19, [], [], [], 10)  # one byte above the limit
def test_files_are_accepted_if_and_only_if_they_obey_the_policy(
    sizes: list[int],
    named: list[str],
    max_files: int,
    total_bytes: int,
    allowed: list[str],
    denied: list[str],
    sandbox_suffixes: list[str],
    max_file_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, size in zip(NAMES, sizes, strict=True):
            data = PDF[:8] + b"\n" * (size - 8) if name == "d.pdf" and size >= 8 else b"x" * size
            Path(folder, name).write_bytes(data)
        sandbox = Folder(
            path=Path(folder).resolve(), name="s", attachment_suffixes=tuple(sandbox_suffixes), max_bytes=max_file_bytes
        )
        limits = policy(
            max_attachments=max_files, max_total_bytes=total_bytes, allowed_suffixes=allowed, denied_suffixes=denied
        )
        lengths = [sizes[NAMES.index(name)] for name in named]
        permitted = (
            len(named) <= max_files
            and sum(lengths) <= total_bytes
            and all(length <= max_file_bytes for length in lengths)
            and all(has_suffix(name, allowed) or not allowed for name in named)
            and not any(has_suffix(name, denied) for name in named)
            and all(has_suffix(name, sandbox_suffixes) or not sandbox_suffixes for name in named)
        )
        broken = any(name == "d.pdf" and length < 8 for name, length in zip(named, lengths, strict=True))
        try:
            read = read_sandbox_files(
                [f"s/{name}" for name in named], View(cwd=sandbox.path, folders=(sandbox,)), limits
            )
        except Refused:
            assert not permitted
        except InvalidFile:
            assert broken
        else:
            assert permitted
            assert [file.name for file in read] == [f"s/{name}" for name in named]
            assert [len(file.data) for file in read] == lengths
            check_policy(read, limits)


def test_errors_name_the_violated_limit(place: Place) -> None:
    for limits, message in [
        (policy(max_attachments=0), r"too many attachments: 2 \(the worker accepts at most 0\)"),
        (policy(max_attachments=1), r"too many attachments: 2 \(the worker accepts at most 1\)"),
        (policy(max_total_bytes=11), "the worker accepts at most 11 bytes in total"),
        (policy(allowed_suffixes=[".md"]), r"input/a.txt: the worker accepts only .md"),
        (policy(denied_suffixes=["txt"]), r"input/a.txt: the worker does not accept .txt"),
    ]:
        with pytest.raises(Refused, match=message) as raised:
            read_sandbox_files(["input/a.txt", "input/deep/d.md"], place.view, limits, where="w.yaml")
        assert raised.value.where == "w.yaml"
        assert "attachment_policy." in (raised.value.hint or "")


def test_the_policy_is_checked_for_files_that_were_read_before() -> None:
    files = [Attachment(name="a.pdf", media_type="application/pdf", data=PDF)] * 2
    check_policy(files, ANY)
    for limits in (
        policy(max_attachments=1),
        policy(max_total_bytes=2 * len(PDF) - 1),
        policy(allowed_suffixes=[".md"]),
        policy(denied_suffixes=[".pdf"]),
    ):
        with pytest.raises(Refused):
            check_policy(files, limits)


def test_no_policy_allows_more_bytes_than_a_run_accepts(place: Place) -> None:
    with (place.open / "huge.txt").open("wb") as huge:
        huge.truncate(2**40)  # a sparse terabyte: reading it would not end
    sandbox = Folder(path=place.open, name="open", max_bytes=2**50)
    with pytest.raises(Refused, match="a run accepts at most 50,000,000 bytes in total"):
        read_sandbox_files(["open/huge.txt"], View(cwd=place.open, folders=(sandbox,)), policy(max_total_bytes=10**12))


# Files outside of the sandboxes

HOSTILE_PARTS = [
    "..",
    ".",
    "",
    "a.txt",
    "c.txt",
    "deep",
    "out.txt",
    "dir",
    "home",
    "work",
    "outside",
    "input",
    "open",
    "loop.txt",
    "fifo.txt",
    "hard.txt",
    "~",
    "A.TXT",
    "a.txt ",
    "a.txt\0",
    "a\nb.txt",
    "\udc80.txt",
    "....",
]


@given(
    sandbox=st.sampled_from(["input", "open", "", "..", "/", "~", "INPUT", "work", "."]),
    parts=st.lists(st.sampled_from(HOSTILE_PARTS), max_size=6),
)
@example(sandbox="input", parts=["out.txt"])
@example(sandbox="input", parts=["dir", "c.txt"])
@example(sandbox="input", parts=["..", "c.txt"])
@example(sandbox="input", parts=["home", "c.txt"])
@example(sandbox="open", parts=["..", "..", "outside", "c.txt"])
@example(sandbox="", parts=["etc", "passwd"])
def test_no_name_leads_out_of_the_sandboxes(sandbox: str, parts: list[str]) -> None:
    base = Path(tempfile.mkdtemp())
    try:
        place = Place(base)
        (place.input / "out.txt").symlink_to(place.outside / "c.txt")
        (place.input / "dir").symlink_to(place.outside)
        (place.input / "home").symlink_to(place.base / "work")
        (place.input / "loop.txt").symlink_to("loop.txt")
        os.mkfifo(place.input / "fifo.txt")
        for name in ("/".join([sandbox, *parts]), f"{sandbox}:{'/'.join(parts)}"):
            with suppress(GuildError):
                assert all(CANARY not in file.data for file in read_sandbox_files([name], place.view, ANY))
    finally:
        shutil.rmtree(base)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a.txt", UsageError),
        ("/etc/passwd", UsageError),
        ("~/c.txt", UsageError),
        ("./a.txt", UsageError),
        ("../c.txt", UsageError),
        ("input", UsageError),
        ("input/", UsageError),
        ("  ", UsageError),
        ("inputs/a.txt", NotFound),
        ("INPUT/a.txt", NotFound),
        ("input/none.txt", NotFound),
        ("input/deep", Refused),
        ("input/../c.txt", Refused),
        ("input//etc/passwd", Refused),
        ("input/link.txt", Refused),
        ("input/fifo.txt", Refused),
        ("input/large.txt", Refused),
    ],
)
def test_a_worker_may_not_attach_files_outside_of_its_sandboxes(
    place: Place, name: str, error: type[GuildError]
) -> None:
    (place.input / "link.txt").symlink_to(place.outside / "c.txt")
    (place.input / "large.txt").write_bytes(b"x" * 1_001)
    os.mkfifo(place.input / "fifo.txt")
    with pytest.raises(error):
        read_sandbox_files([name], place.view, ANY)


def test_a_link_and_its_target_must_both_have_a_permitted_suffix(place: Place) -> None:
    (place.input / "secret.env").write_text("KEY=1")
    (place.input / "notes.txt").symlink_to("secret.env")
    with pytest.raises(Refused, match=r"permits only \.txt, \.md, \.pdf"):
        read_sandbox_files(["input/notes.txt"], place.view, ANY)
    (place.open / "secret.env").write_text("KEY=1")
    (place.open / "notes.txt").symlink_to("secret.env")
    assert read_sandbox_files(["open/notes.txt"], place.view, ANY)[0].data == b"KEY=1"
    for limits in (policy(denied_suffixes=[".env"]), policy(allowed_suffixes=[".txt"])):
        with pytest.raises(Refused, match=r"open/notes\.txt: the worker (accepts only \.txt|does not accept \.env)"):
            read_sandbox_files(["open/notes.txt"], place.view, limits)


def test_a_file_may_not_be_attached_twice(place: Place) -> None:
    with pytest.raises(UsageError, match="duplicate attachment: "):
        read_sandbox_files(["input/a.txt", "input/a.txt"], place.view, ANY)


# Files of the user


def test_the_user_attaches_sandbox_files_project_files_and_absolute_paths(place: Place) -> None:
    work = place.base / "work"
    (work / "own.txt").write_text("own")
    (work / "input.txt").write_text("beside")
    names = ["input/a.txt", "own.txt", "./input/deck.pdf", "input.txt", str(place.outside / "c.txt")]
    read = read_user_files(names, place.view, ANY, root=work)
    assert [file.data for file in read] == [b"inside", b"own", PDF, b"beside", CANARY]
    assert [file.name for file in read] == names


def test_a_relative_path_may_not_leave_the_project(place: Place) -> None:
    work = place.base / "work"
    (work / "link.txt").symlink_to(place.outside / "c.txt")
    (work / "sub").mkdir()
    view = View(cwd=work / "sub", folders=place.view.folders)
    assert read_user_files(["../c.txt"], view, ANY, root=work)[0].data == CANARY
    for name in ("../../outside/c.txt", "../link.txt"):
        with pytest.raises(Refused):
            read_user_files([name], view, ANY, root=work)


def test_files_of_the_home_are_not_attached(place: Place) -> None:
    home = place.base / "hall"
    home.mkdir()
    (home / "notes.txt").write_bytes(CANARY)
    view = View(cwd=place.base / "work", folders=place.view.folders, hidden=(home,))
    with pytest.raises(GuildError):
        read_user_files([str(home / "notes.txt")], view, ANY, root=place.base / "work")
    with pytest.raises(GuildError):
        read_user_files(["hall/notes.txt"], View(cwd=place.base, hidden=(home,)), ANY, root=place.base)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("none.txt", NotFound),
        ("/none/at/all.txt", NotFound),
        ("/", GuildError),
        ("/etc", Refused),
        ("~nobody-of-that-name/x.txt", GuildError),
        ("/dev/null", Refused),
        ("/dev/zero", Refused),
        (f"/{'x' * 300}", UsageError),
        ("x" * 5_000, Refused),
        (".", Refused),
        ("a\0b", UsageError),
        ("input/none.txt", NotFound),
    ],
)
def test_the_user_cannot_attach_missing_or_special_files(place: Place, name: str, error: type[GuildError]) -> None:
    with pytest.raises(error):
        read_user_files([name], place.view, ANY, root=place.base / "work")


def test_sizes_are_formatted_with_units() -> None:
    assert [format_size(size) for size in (0, 999, 1_000, 12_345, 1_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "12.3 kB",
        "1 MB",
    ]
