"""The code that a worker names: where it is found, what of it is read, what is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import GuildError, InvalidFile, NotTrusted, ToolUnavailable
from guildhall.core.request_frame import Frame
from guildhall.workers.code_trust import Trust, module_code, project_toolboxes, toolbox_code, worker_code
from guildhall.workers.loader import load
from guildhall.workers.model import Pin

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workers.code_trust import Code
    from guildhall.workers.model import Worker


def frame(project: Path) -> Frame:
    return Frame(cwd=project, root=project)


def worker(project: Path, **fields: Any) -> Worker:
    (project / "workers").mkdir(exist_ok=True)
    path = project / "workers" / "clerk.yaml"
    lines = [f"{name}: {value}" for name, value in {"instructions": "x", **fields}.items()]
    path.write_text("\n".join(lines))
    return load(path)


def put(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def trusted(*codes: Code) -> Trust:
    files = {file.path: file for code in codes for file in code.files}
    return Trust({path: Pin(path=path, digest=file.digest, trusted_at="now") for path, file in files.items()})


# Toolboxes


def test_a_toolbox_of_the_project_or_of_the_home(project: Path, home: Home) -> None:
    clerk = worker(project, toolboxes="[mail, desk]")
    put(project / "toolboxes" / "mail.py")
    put(home.toolboxes / "desk.py")
    (mail, desk), wrong = worker_code(clerk, home)
    assert wrong == []
    assert (mail.is_own, [file.display_path for file in mail.files]) == (False, ["toolboxes/mail.py"])
    assert (desk.is_own, [file.display_path for file in desk.files]) == (True, ["desk.py"])
    assert not Trust({}).is_trusted(mail)
    assert Trust({}).is_trusted(desk)


def test_two_of_one_name_are_an_error(project: Path, home: Home) -> None:
    put(project / "toolboxes" / "mail.py")
    put(home.toolboxes / "mail.py")
    with pytest.raises(ToolUnavailable, match="'mail' is ambiguous"):
        toolbox_code(worker(project, toolboxes="[mail]"), "mail", home)


def test_a_link_out_of_the_project_is_refused(project: Path, home: Home, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "mail.py")
    clerk = worker(project, toolboxes="[mail]")
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "mail.py").symlink_to(tmp_path / "elsewhere" / "mail.py")
    with pytest.raises(ToolUnavailable, match=r"is a link to .* outside of the project"):
        toolbox_code(clerk, "mail", home)
    (project / "toolboxes" / "mail.py").unlink()
    (project / "toolboxes").rmdir()
    (project / "toolboxes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ToolUnavailable, match=r"is a link to .* outside of the project"):
        toolbox_code(clerk, "mail", home)
    assert ["outside of the project" in error.message for error in project_toolboxes(project)[1]] == [True]


def test_a_link_inside_is_what_it_leads_to(project: Path, home: Home) -> None:
    real = put(project / "lib" / "post.py")
    (project / "toolboxes").mkdir()
    (project / "toolboxes" / "mail.py").symlink_to("../lib/post.py")
    code = toolbox_code(worker(project, toolboxes="[mail]"), "mail", home)
    assert code.files[0].path == real.resolve()


def test_pipes_folders_and_loops_break_nothing(project: Path, home: Home) -> None:
    (project / "toolboxes").mkdir()
    os.mkfifo(project / "toolboxes" / "pipe.py")
    (project / "toolboxes" / "folder.py").mkdir()
    (project / "toolboxes" / "loop.py").symlink_to("loop.py")
    (project / "toolboxes" / "none.py").symlink_to("nowhere.py")
    found, wrong = project_toolboxes(project)
    assert found == []
    assert len(wrong) == 4
    names = "[pipe, folder, loop, none]"
    assert len(worker_code(worker(project, toolboxes=names), home)[1]) == 4


# Modules


def module(project: Path, home: Home, reference: str) -> Code:
    return module_code(worker(project, output_schema_ref=repr(reference)), home)


def test_every_module_of_the_package_counts(project: Path, home: Home) -> None:
    for name in ("__init__", "model", "deep/er", "deep/__init__", "not-a-module", "__pycache__/model"):
        put(project / "pkg" / f"{name}.py")
    put(project / "pkg" / "data.json")
    put(project / "beside.py")
    code = module(project, home, "pkg.model:Report")
    assert [file.display_path for file in code.files] == [
        "pkg/__init__.py",
        "pkg/model.py",
        "pkg/deep/__init__.py",
        "pkg/deep/er.py",
    ]
    assert [file.display_path for file in module(project, home, "beside:Report").files] == ["beside.py"]
    assert module(project, home, "pkg.deep:Report").files == code.files


def test_a_folder_without_init_is_a_package_too(project: Path, home: Home) -> None:
    put(project / "pkg" / "model.py")
    assert len(module(project, home, "pkg.model:Report").files) == 1
    put(project / "pkg.py")  # as Python has it: a file goes before a folder without __init__
    with pytest.raises(InvalidFile, match=r"unknown module pkg\.model"):
        module(project, home, "pkg.model:Report")


@pytest.mark.parametrize(
    "reference",
    [
        "os:system",
        "json.decoder:JSONDecoder",
        "guildhall.core.errors:GuildError",
        "pydantic:BaseModel",
        "..pkg.model:Report",
        "pkg..model:Report",
        "pkg/model:Report",
        "../pkg.model:Report",
        "/etc/passwd",
        "pkg.model",
        "pkg.model:",
        ":Report",
        "pkg.model:Report:More",
        "pkg.model:Report.Inner",
        "pkg.model:__import__('os')",
        "pkg.model:Repört",
        "pkg.none:Report",
        "a" * 4000 + ":B",
    ],
)
def test_a_reference_is_a_module_of_the_project_or_an_error(project: Path, home: Home, reference: str) -> None:
    put(project / "pkg" / "model.py")
    put(project / "os.py")
    with pytest.raises(InvalidFile):
        module(project, home, reference)


def test_a_package_leads_nowhere_else(project: Path, home: Home, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "model.py")
    (project / "pkg").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GuildError, match=r"is a link to .* outside of the project"):
        module(project, home, "pkg.model:Report")
    (project / "pkg").unlink()
    put(project / "pkg" / "model.py")
    (project / "pkg" / "more.py").symlink_to(tmp_path / "elsewhere" / "model.py")
    with pytest.raises(GuildError, match=r"is a link to .* outside of the project"):
        module(project, home, "pkg.model:Report")


def test_a_package_that_is_too_large_is_refused(project: Path, home: Home) -> None:
    for number in range(501):
        put(project / "pkg" / f"m{number}.py")
    with pytest.raises(ToolUnavailable, match="more than 500 modules"):
        module(project, home, "pkg.m1:Report")
    for number in range(4):
        put(project / "big" / f"m{number}.py", "#" * 1_900_000)
    with pytest.raises(ToolUnavailable, match="larger than 5,000,000 bytes"):
        module(project, home, "big.m1:Report")


def test_text_that_is_none_is_told(project: Path, home: Home) -> None:
    put(project / "pkg.py").write_bytes(b"\xff\xfe")
    with pytest.raises(ToolUnavailable, match="not UTF-8"):
        module(project, home, "pkg:Report").sources()


# Trust


def test_a_change_a_new_file_and_one_that_is_gone_ask_again(project: Path, home: Home) -> None:
    put(project / "pkg" / "__init__.py")
    put(project / "pkg" / "model.py")
    clerk = worker(project, output_schema_ref="pkg.model:Report")
    code = module_code(clerk, home)
    trust = trusted(code)
    trust.check(code, clerk, frame(project))

    def standing() -> dict[str, str]:
        now = module_code(clerk, home)
        with pytest.raises(NotTrusted) as caught:
            trust.check(now, clerk, frame(project))
        assert caught.value.hint == "Review and trust it: guild trust"
        return {seen.display_path: seen.state for seen in trust.files(now) if seen.state != "trusted"}

    put(project / "pkg" / "model.py", "x = 2\n")
    assert standing() == {"pkg/model.py": "changed"}
    put(project / "pkg" / "model.py")
    put(project / "pkg" / "more.py")
    assert standing() == {"pkg/more.py": "new"}
    (project / "pkg" / "more.py").unlink()
    (project / "pkg" / "__init__.py").unlink()
    assert standing() == {"pkg/__init__.py": "gone"}


def test_trust_is_for_a_path(project: Path, home: Home, tmp_path: Path) -> None:
    put(project / "toolboxes" / "mail.py")
    trust = trusted(toolbox_code(worker(project, toolboxes="[mail]"), "mail", home))
    copy = tmp_path / "copy"
    copy.mkdir()
    put(copy / "toolboxes" / "mail.py")
    clerk = worker(copy, toolboxes="[mail]")
    code = toolbox_code(clerk, "mail", home)
    assert not trust.is_trusted(code)
    with pytest.raises(NotTrusted) as caught:
        trust.check(code, clerk, frame(project))
    assert caught.value.hint == f"Review and trust it: guild trust {copy}/workers/clerk.yaml"
