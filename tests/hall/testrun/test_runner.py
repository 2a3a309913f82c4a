"""`guild test`: recorded runs repeated on copies without key or network, and the reported differences."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core import yaml
from guildhall.hall.testrun import files as copying
from guildhall.hall.testrun.files import copy_project, write_files
from guildhall.models.scripted.source import Script
from tests.runs.places import DONE, OTHER, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild

DOCS = Path(__file__).parents[3] / "docs"
READ = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "a.md"}}
TOOLBOX = '''
from guildhall import tool


@tool(capabilities={"net"})
def ask_afar(question: str, times: int = 1) -> str:
    """Ask a remote person."""
    raise SystemError("the network was used")


@tool
def double(text: str) -> str:
    """The text twice."""
    return text * 2
'''


def write_test(project: Path, *answers: Mapping[str, Any], name: str = "one.yaml", **case: Any) -> Path:
    """Write a test of the worker `scribe`."""
    (project / "tests").mkdir(exist_ok=True)
    path = project / "tests" / name
    test = {"worker": "scribe", "input": "go", **case}
    path.write_text(f"test: {json.dumps(test)}\nworkers:\n  scribe:\n    - {json.dumps(answers)}\n")
    return path


def record_test(guild: Guild, project: Path, *answers: Mapping[str, Any], **fields: Any) -> Path:
    """Run the worker and write a test from its run."""
    put_worker(project, **{"tool_rules": None, **fields})
    put_script(project, *answers)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    path = project / "tests" / "one.yaml"
    assert guild("script", run, "--out", path).code == 0
    return path


def assert_failed(ran: CommandResult, *messages: str) -> None:
    assert ran.code == 1, ran
    assert "Traceback" not in ran.err
    assert "0 passed, 1 failed" in ran.out
    for message in messages:
        assert message in ran.out


def snapshot(folder: Path) -> dict[str, Any]:
    """Return the content and modification time of everything in a folder."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


# Finding tests


@pytest.mark.req("X-17")
def test_a_fresh_starter_folder_has_a_test_that_passes(guild: Guild, project: Path) -> None:
    guild("init")
    before = snapshot(project)
    tested = guild("test")
    assert (tested.code, tested.err) == (0, ""), tested
    assert tested.out.startswith("ok      tests/greeter.yaml\n1 passed, 0 failed in ")
    assert snapshot(project) == before


@pytest.mark.req("X-17")
def test_a_change_of_the_model_input_is_shown_and_can_be_recorded(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "notes" / "a.md").write_text("first\nsecond\n")
    path = record_test(guild, project, READ, DONE)
    assert guild("test").code == 0
    (project / "notes" / "a.md").write_text("first\n2nd\n")
    put_worker(project, tool_rules=None, instructions="Write what you are asked for.")
    assert_failed(
        guild("test"),
        "scribe: system prompt changed\n    -Write the requested lines.\n    +Write what you are asked for.",
        "scribe, model call 2: input of the model changed\n     first\n    -second\n    +2nd",
    )
    path.write_text(path.read_text().replace("workers:", "# mine\nworkers:"))
    updated = guild("test", "--update")
    assert updated.code == 0
    assert "updated tests/one.yaml" in updated.out
    assert "# mine\nworkers:" in path.read_text()
    again = guild("test")
    assert (again.code, again.out.splitlines()[0]) == (0, "ok      tests/one.yaml")


@pytest.mark.req("X-17")
@pytest.mark.parametrize("scope", ["global", "project", "worker"])
def test_a_run_with_memory_becomes_a_test_that_passes(guild: Guild, project: Path, scope: str) -> None:
    put_worker(project, tool_rules=None)
    worker = ["--worker", "scribe"] if scope == "worker" else []
    assert guild("memory", "write", "note", "Use metres.", "--scope", scope, *worker).code == 0
    read = {"call": "memory_read", "with": {"scope": scope, "key": "note"}}
    put_script(project, read, {"call": "memory_list", "with": {"scope": scope}}, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    assert guild("test", "add", run).code == 0
    assert guild("script", run, "--out", "tests/two.yaml").code == 0
    tested = guild("test")
    assert (tested.code, "2 passed" in tested.out) == (0, True), tested.out
    assert guild("memory", "rm", "note", "--scope", scope, *worker).code == 0
    assert guild("test").code == 0  # the test does not depend on the memory of the user


def test_a_changed_tool_description_is_a_difference(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mine.py").write_text(TOOLBOX)
    call = {"call": "double", "with": {"text": "ab"}}
    record_test(guild, project, call, DONE, toolboxes=["mine"], sandboxes=None)
    assert guild("test").code == 0
    (home.toolboxes / "mine.py").write_text(TOOLBOX.replace("twice.", "two times.").replace("text * 2", "text * 3"))
    assert_failed(guild("test"), "tools of the model changed", "-double ", "    -abab\n    +ababab")
    assert guild("test", "--update").code == 0
    assert guild("test").code == 0


def test_tests_are_found_by_file_folder_and_word(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    for name in ("one.yaml", "two.yml", "deep/three.yaml"):
        (project / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        write_test(project, DONE, name=name)
    (project / "tests" / "fixture.yaml").write_text("data: 1\n")
    (project / "tests" / "test_code.py").write_text("")
    (project / "tests" / ".hidden.yaml").write_text("test: x\n")
    assert "3 passed" in guild("test").out
    assert "1 passed" in guild("test", "-k", "TWO").out
    assert "2 passed" in guild("test", "tests/one.yaml", "tests/deep", "tests/one.yaml").out
    assert "3 passed" in guild("test", cwd=project / "workers").out
    report = guild("test", "--json").json
    assert (report["passed"], report["failed"]) == (3, 0)
    assert {test["file"] for test in report["tests"]} == {"tests/one.yaml", "tests/two.yml", "tests/deep/three.yaml"}
    named = guild("test", "tests/fixture.yaml")
    assert_failed(named, "data: unknown field")


@pytest.mark.parametrize("words", [[], ["-k", "nothing"], ["nowhere.yaml"], ["nowhere"]])
def test_a_command_that_finds_no_tests_fails(guild: Guild, project: Path, words: list[str]) -> None:
    assert guild("test", *words, "--json").json["error"]["code"] == "not_found"


def test_an_invalid_script_file_is_an_error(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    write_test(project, DONE)
    (project / "notes.txt").write_text("test: x\n")
    os.mkfifo(project / "pipe.yaml")
    for name, message in (
        ("/dev/null", "not a regular file"),
        ("/proc/self/mem", "not a test file"),
        ("pipe.yaml", "not a regular file"),
        ("notes.txt", "the name must end in .yaml"),
    ):
        ran = guild("test", "tests/one.yaml", name)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
        assert guild("test", name, "--json").json["error"]["code"] == "invalid_file"


# Invalid tests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test: 3\nworkers: {}\n", "one.yaml:1: test: expected a mapping"),
        ("workers: {}\ntest:\n  worker: scribe\n", "one.yaml:2: test: `input` is missing"),
        ("workers: {}\ntest:\n  worker: scribe\n  inptu: go\n", "one.yaml:4: test.inptu: unknown field"),
        ("workers: {}\ntest: {worker: scribe, input: go, status: fine}\n", "expected 'completed' or 'failed'"),
        (
            "workers: {}\ntest: {worker: scribe, input: go, files: {../x: a}}\n",
            "'../x' is not a path inside the project",
        ),
        ("workers: {}\ntest: {worker: scribe, input: go, files: {/etc/x: a}}\n", "not a path inside the project"),
        ("workers: {}\ntest: {worker: scribe, input: go, folder: ../..}\n", "not a path inside the project"),
        ("workers: {}\ntest: {worker: scribe, input: go, answers: [{answer: x}]}\n", "set exactly one of `tool`"),
        ("workers: {}\ntest: {worker: scribe, input: go, max_turns: -1}\n", "test.max_turns"),
        ("workers: {}\ntest: {worker: nobody, input: go}\n", "unknown worker 'nobody'"),
        ("workers: {}\ntest: {worker: scribe, input: go}\n", "the script has no answers for the worker 'scribe'"),
        ("workers: {}\ntest: {worker: scribe, input: ' '}\n", "invalid input: empty"),
        ("workers: {}\ntest: {worker: scribe, input: go, folder: gone}\n", "the script has no answers"),
        ("test: [\n", "one.yaml:"),
        ("test: &a [*a]\nworkers: {}\n", "one.yaml"),
    ],
)
def test_an_invalid_test_is_reported_with_its_line(guild: Guild, project: Path, text: str, message: str) -> None:
    put_worker(project, tool_rules=None)
    write_test(project, DONE).write_text(text)
    assert_failed(guild("test"), message)
    report = guild("test", "--json")
    assert (report.code, report.json["failed"]) == (1, 1)


def test_an_invalid_test_does_not_block_the_others(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    write_test(project, DONE, name="b.yaml")
    (project / "tests" / "a.yaml").write_text("test: x\n")
    tested = guild("test")
    assert tested.code == 1
    assert "1 passed, 1 failed" in tested.out


# Programs

SHELL = {"call": "Bash", "with": {"command": "echo ran > notes/ran; echo ran"}}
UNTRUSTED = ("the test executes programs", "is not trusted (not trusted yet)", "guild trust tests/one.yaml")


@pytest.mark.req("X-18")
@pytest.mark.parametrize("mode", ["ask", "approve_all"])
def test_a_test_with_programs_runs_only_if_it_is_trusted(guild: Guild, project: Path, mode: str) -> None:
    rules = {"Bash": {"approval_required": True}}
    put_worker(project, tools=["Bash"], tool_rules=rules)
    recorded_answers = {"answers": [{"tool": "Bash", "answer": "yes"}]} if mode == "ask" else {}
    file = write_test(project, SHELL, {"say": "done", "expect": "ran"}, mode=mode, **recorded_answers)
    write_test(project, SHELL, {"say": "done", "expect": "ran"}, mode=mode, **recorded_answers, name="two.yaml")
    put_worker(project, "quiet", tool_rules=None)
    (project / "tests" / "quiet.yaml").write_text(
        "test: {worker: quiet, input: go}\nworkers: {quiet: [[{say: done}]]}\n"
    )
    first = guild("test")
    assert (first.code, first.out.count("guild trust tests/")) == (1, 2)
    assert "1 passed, 2 failed" in first.out, "the third test is executed"
    assert_failed(guild("test", "tests/one.yaml"), *UNTRUSTED)
    shown = guild("trust")
    assert (shown.code, "tests/quiet.yaml" in shown.out) == (4, False)
    assert guild("plan", "scribe").out.rstrip() in shown.out
    assert "test, with the programs that it names, tests/one.yaml" in shown.out
    assert guild("trust", "tests/one.yaml", "--yes").code == 0
    assert guild("test", "tests/one.yaml").code == 0
    assert_failed(guild("test", "tests/two.yaml"), "not trusted yet")
    file.write_text(file.read_text().replace("echo ran >", "echo other >"))
    assert_failed(guild("test", "tests/one.yaml"), "changed since you trusted it")
    assert guild("trust", "--yes").code == 0
    assert "3 passed" in guild("test").out
    assert guild("trust", "--forget").code == 0
    assert_failed(guild("test", "tests/one.yaml"), "not trusted yet")


def test_a_test_with_a_called_worker_that_runs_programs_needs_trust(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, allow_workers=["hand"])
    put_worker(project, "hand", tools=["Bash"])
    write_test(project, DONE)
    assert_failed(guild("test"), *UNTRUSTED)
    put_worker(project, "hand", tools=["Bash"], tool_rules={"proc.exec": {"allowed": False}})
    assert guild("test").code == 0, "a forbidden tool runs no programs"


def test_a_test_with_its_own_worker_file_needs_trust(guild: Guild, project: Path) -> None:
    path = put_worker(project, tools=["Bash"], tool_rules=None)
    brought = path.read_text()
    for there in (True, False):
        put_worker(project, tool_rules=None) if there else path.unlink()
        write_test(project, SHELL, DONE, files={f"workers/{path.name}": brought})
        assert_failed(guild("test"), *UNTRUSTED)
        assert [code["kind"] for code in guild("trust", "--json").json["code"]] == ["test"]
    guild("trust", "--yes")
    assert guild("test").code == 0


@pytest.mark.req("X-17")
def test_a_test_recorded_by_the_user_is_trusted_also_after_an_update(guild: Guild, project: Path) -> None:
    file = record_test(guild, project, SHELL, DONE, tools=["Bash"])
    assert guild("test").code == 0
    put_worker(project, tools=["Bash"], tool_rules=None, instructions="Otherwise.")
    assert_failed(guild("test"), "system prompt changed")
    assert guild("test", "--update").code == 0
    assert guild("test").code == 0
    guild("trust", "--forget")
    put_worker(project, tools=["Bash"], tool_rules=None, instructions="Once more.")
    before = file.read_text()
    assert_failed(guild("test", "--update"), "not trusted yet")
    assert file.read_text() == before


def test_trust_reports_an_invalid_test_file(guild: Guild, project: Path) -> None:
    put_worker(project, tools=["Bash"], tool_rules=None)
    write_test(project, DONE).write_text("test: [\n")
    assert guild("trust").code == 0
    named = guild("trust", "tests/one.yaml")
    assert (named.code, "one.yaml:" in named.err) == (2, True)


# Differences


@pytest.mark.parametrize(
    ("case", "answers", "message"),
    [
        ({"output": "other"}, [DONE], "result changed"),
        ({"output": {"a": 1}}, [DONE], "+output: done"),
        ({"status": "failed"}, [DONE], "-status: failed\n    +status: completed"),
        ({"status": "failed", "error": "limit_reached"}, [{"fail": 401}], "-error: limit_reached"),
        ({}, [{"fail": 401}], "+because: scripted failure: HTTP 401"),
        ({}, [READ, {"expect": "never", "say": "x"}], "expected: never"),
        ({}, [DONE, DONE], "the run ended before answer 2 of 2 of the script"),
        ({}, [READ], "script exhausted"),
        ({}, [{"calls": [READ, READ]}, {"sent": "one", "say": "x"}], "    +(2)"),
        ({"shown": {"scribe": {"tools": {}}}}, [DONE], "+sandbox_list "),
        ({"answers": [{"tool": "Bash", "answer": "yes"}]}, [DONE], "no ask about Bash"),
    ],
)
def test_a_changed_result_is_a_difference(
    guild: Guild, project: Path, case: dict[str, Any], answers: list[Any], message: str
) -> None:
    put_worker(project, tool_rules=None)
    write_test(project, *answers, **case)
    assert_failed(guild("test"), message)


def test_a_missing_run_is_a_difference(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = write_test(project, DONE)
    path.write_text(path.read_text() + "  other:\n    - - say: done\n")
    assert_failed(guild("test"), "other: number of runs changed: 1 recorded, now 0")


def test_an_ask_without_a_recorded_answer_fails_the_test(guild: Guild, project: Path) -> None:
    put_worker(project)
    path = write_test(project, WRITE, DONE)
    before = path.read_text()
    for words in ([], ["--update"]):
        assert_failed(guild("test", *words), "no answer is recorded for this ask", "+path: a.md")
    assert path.read_text() == before
    write_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "perhaps"}])
    assert_failed(guild("test"), "invalid answer", "yes, no, always")
    write_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "yes"}])
    assert guild("test").code == 0
    write_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "yes", "worker": "other"}])
    assert_failed(guild("test"), "no answer is recorded for this ask")


def test_update_writes_the_new_result_and_keeps_the_rest(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = project / "tests" / "one.yaml"
    path.parent.mkdir()
    path.write_text(
        "# first\ntest: {worker: scribe, input: go, output: else}\n# lost\nworkers:\n  scribe:\n"
        "    - - {call: sandbox_list, with: {sandbox: notes}}\n      - {sent: x, say: done} # kept?\n"
    )
    assert guild("test", "--update").code == 0
    script = yaml.validate(Script, yaml.read(path))
    assert script.test is not None
    assert (script.test.output, script.workers["scribe"][0][1].sent) == (
        "done",
        "[no files match **/* in the sandbox notes]",
    )
    assert path.read_text().startswith("# first\n")
    assert guild("test").code == 0


def test_update_does_not_record_an_incomplete_run(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = write_test(project, WRITE, {"sent": "x", "say": "done"}, {"say": "never"}, output="else")
    before = path.read_text()
    assert_failed(guild("test", "--update"), "the run ended before answer")
    assert path.read_text() == before


def test_update_does_not_record_an_exhausted_script(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = write_test(project, WRITE)
    before = path.read_text()
    assert_failed(guild("test", "--update"), "script exhausted")
    assert path.read_text() == before


# Isolation


def test_a_test_changes_no_files_of_the_user(guild: Guild, project: Path, home: Home) -> None:
    path = record_test(
        guild, project, WRITE, OTHER, {"call": "memory_write", "with": {"key": "k", "content": "x"}}, DONE
    )
    (project / "notes" / "a.md").write_text("mine")
    before = snapshot(project), {name: data for name, data in snapshot(home.path).items() if "hall." not in name}
    runs = guild("ls", "--all", "--json").json["done"]
    tested = guild("test", path)
    assert tested.code == 0, tested.out
    after = snapshot(project), {name: data for name, data in snapshot(home.path).items() if "hall." not in name}
    assert after == before
    assert guild("ls", "--all", "--json").json["done"] == runs


def test_a_folder_outside_of_the_project_is_not_written(guild: Guild, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    put_worker(project, tool_rules=None, sandboxes={"notes": {"path": str(outside), "mode": "rw"}})
    write_test(project, WRITE, DONE)
    assert_failed(guild("test"), "is outside of the project, and the worker may write there")
    put_worker(project, tool_rules=None, sandboxes={"notes": {"path": str(outside), "mode": "ro"}})
    assert guild("test").code == 0
    assert list(outside.iterdir()) == []


def test_a_link_out_of_the_project_is_not_copied(guild: Guild, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "notes").symlink_to(outside)
    put_worker(project, tool_rules=None)
    write_test(project, WRITE, DONE)
    assert guild("test").code == 0
    assert list(outside.iterdir()) == []


def test_files_of_a_test_are_written_and_removed(guild: Guild, project: Path) -> None:
    (project / "notes" / "deep").mkdir(parents=True)
    (project / "notes" / "a.md").write_text("not this")
    put_worker(project, tool_rules=None)
    files = {"notes/a.md": "this\r\n", "notes/deep": None, "notes/new/b.md": "b"}
    listing = {"call": "sandbox_list", "with": {"sandbox": "notes"}}
    write_test(project, READ, {"sent": "this\r\n", **listing}, {"sent": "a.md\nnew/b.md", "say": "x"}, files=files)
    assert guild("test").code == 0, guild("test").out


def test_a_test_uses_no_network(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mine.py").write_text(TOOLBOX)
    put_worker(project, tool_rules=None, sandboxes=None, toolboxes=["mine"], tools=["WebFetch", "WebSearch"])
    result = {"text": "an answer from afar"}
    calls = [
        {"call": "ask_afar", "with": {"question": "a"}, "result": result},
        {"call": "WebFetch", "with": {"url": "http://example.com", "prompt": "x"}},
        {"call": "ask_afar", "with": {"question": "b"}},
        {"call": "WebSearch", "with": {"query": "x"}, "result": {"text": "no hits", "is_error": True}},
    ]
    write_test(project, {"calls": calls}, {"sent": ["an answer from afar", "", "", "error: no hits"], "say": "x"})
    tested = guild("test")
    assert_failed(tested, "A test uses no network, and the script has no `result` for this call.")
    assert "-an answer" not in tested.out
    assert "-error: no hits" not in tested.out
    assert "the network was used" not in tested.out


def test_a_test_uses_no_key_and_no_other_model(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, model="anthropic:claude-sonnet-5-5")
    write_test(project, DONE)
    assert guild("test").code == 0
    assert guild("test", env={"ANTHROPIC_API_KEY": "sk-ant-0123456789"}).code == 0


def test_a_test_works_with_a_used_and_a_new_home(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    guild("run", "scribe", "go")
    write_test(project, DONE)
    assert guild("test").code == 0
    assert guild("test", env={"GUILDHALL_HOME": str(project.parent / "new")}).code == 0


def test_the_project_of_a_test_is_that_of_its_file(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = write_test(project, DONE)
    deep = project / "some" / "where"
    deep.mkdir(parents=True)
    path.rename(deep / "here.yaml")
    assert guild("test", "here.yaml", cwd=deep).code == 0
    assert guild("test", deep / "here.yaml", cwd=project.parent).code == 0


def test_a_home_inside_the_project_stays_hidden(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, sandboxes=None, tools=["Glob"])
    write_test(project, {"call": "Glob", "with": {"pattern": "**/hall.*"}}, {"expect": "no matches", "say": "x"})
    env = {"GUILDHALL_HOME": str(project / "home")}
    tested = guild("test", env=env)
    assert (project / "home" / "hall.db").exists()
    assert tested.code == 0, tested.out


# The copy


def test_the_copy_has_the_files_of_the_project(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for folder in (".git", "node_modules", "sub/.venv", "sub/kept"):
        (source / folder).mkdir(parents=True)
        (source / folder / "file").write_text(folder)
    (source / "run.sh").write_text("x")
    (source / "run.sh").chmod(0o555)
    (source / "inside").symlink_to("sub/kept/file")
    (source / "outside").symlink_to("../secret")
    (source / "absolute").symlink_to(source / "run.sh")
    (source / "loop").symlink_to("loop")
    os.mkfifo(source / "pipe")
    copy_project(source, target)
    names = sorted(str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir())
    assert names == ["inside", "loop", "run.sh", "sub/kept/file"]
    assert (target / "inside").read_text() == "sub/kept"
    assert os.access(target / "run.sh", os.X_OK | os.W_OK)
    (target / "run.sh").write_text("changed")
    assert (source / "run.sh").read_text() == "x"


def test_a_project_that_is_too_large_is_not_copied(
    guild: Guild, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_FILES", 2)
    (project / "x").mkdir()
    for number in range(3):
        (project / "x" / str(number)).write_text("")
    with pytest.raises(Exception, match="too large to be copied"):
        copy_project(project, project.parent / "copy")


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "project" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match="contains a symbolic link"):
        write_files(tmp_path / "project", {"link/x": "text"})
    write_files(tmp_path / "project", {"link": "a file now"})
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "project" / "link").read_text() == "a file now"


def test_the_example_in_the_documentation_passes(guild: Guild, project: Path) -> None:
    text = (DOCS / "testing-workers.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    rules = {"fs.write": {"approval_required": True}}
    put_worker(project, "greeter", instructions="You greet people.", tool_rules=rules)
    (project / "notes").mkdir()
    (project / "notes" / "team.md").write_text("- Ada\n- Grace\n")
    (project / "tests").mkdir()
    (project / "tests" / "example.yaml").write_text(
        "\n".join(line for line in text.splitlines() if not line.strip().startswith("tools: {"))
    )
    tested = guild("test")
    assert tested.code == 0, tested.out
    for field in [*Script.model_fields["test"].annotation.__args__[0].model_fields]:  # type: ignore[union-attr]
        assert f"`{field}`" in (DOCS / "testing-workers.md").read_text(), field
