"""`guild test`: recorded runs done again on copies, with no key and no network, and what is not as it was."""

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
    from tests.conftest import Guild, Ran

DOCS = Path(__file__).parents[3] / "docs"
READ = {"call": "sandbox_read_text", "with": {"sandbox": "notes", "path": "a.md"}}
TOOLBOX = '''
from guildhall import tool


@tool(capabilities={"net"})
def ask_afar(question: str, times: int = 1) -> str:
    """Ask somebody far away."""
    raise SystemError("the network was used")


@tool
def double(text: str) -> str:
    """The text twice."""
    return text * 2
'''


def put_test(project: Path, *answers: Mapping[str, Any], name: str = "one.yaml", **case: Any) -> Path:
    """A test of the worker `scribe`."""
    (project / "tests").mkdir(exist_ok=True)
    path = project / "tests" / name
    test = {"worker": "scribe", "input": "go", **case}
    path.write_text(f"test: {json.dumps(test)}\nworkers:\n  scribe:\n    - {json.dumps(answers)}\n")
    return path


def recorded(guild: Guild, project: Path, *answers: Mapping[str, Any], **fields: Any) -> Path:
    """A test made out of a run."""
    put_worker(project, **{"tool_rules": None, **fields})
    put_script(project, *answers)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    path = project / "tests" / "one.yaml"
    assert guild("script", run, "--out", path).code == 0
    return path


def failed(ran: Ran, *said: str) -> None:
    assert ran.code == 1, ran
    assert "Traceback" not in ran.err
    assert "0 passed, 1 failed" in ran.out
    for words in said:
        assert words in ran.out


def everything(folder: Path) -> dict[str, Any]:
    """All that is in a folder, with the times at which it was changed."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


# What is found


@pytest.mark.req("X-17")
def test_a_fresh_starter_folder_has_a_test_that_passes(guild: Guild, project: Path) -> None:
    guild("init")
    before = everything(project)
    tested = guild("test")
    assert (tested.code, tested.err) == (0, ""), tested
    assert tested.out.startswith("ok      tests/greeter.yaml\n1 passed, 0 failed in ")
    assert everything(project) == before


@pytest.mark.req("X-17")
def test_a_change_that_the_model_would_see_is_shown_and_can_be_recorded(guild: Guild, project: Path) -> None:
    (project / "notes").mkdir()
    (project / "notes" / "a.md").write_text("first\nsecond\n")
    path = recorded(guild, project, READ, DONE)
    assert guild("test").code == 0
    (project / "notes" / "a.md").write_text("first\n2nd\n")
    put_worker(project, tool_rules=None, instructions="Write what you are asked for.")
    failed(
        guild("test"),
        "scribe: system prompt changed\n    -Write what you are told.\n    +Write what you are asked for.",
        "scribe, model call 2: input of the model changed\n     first\n    -second\n    +2nd",
    )
    path.write_text(path.read_text().replace("workers:", "# mine\nworkers:"))
    updated = guild("test", "--update")
    assert updated.code == 0
    assert "updated tests/one.yaml" in updated.out
    assert "# mine\nworkers:" in path.read_text()
    again = guild("test")
    assert (again.code, again.out.splitlines()[0]) == (0, "ok      tests/one.yaml")


def test_a_tool_that_is_described_otherwise(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mine.py").write_text(TOOLBOX)
    call = {"call": "double", "with": {"text": "ab"}}
    recorded(guild, project, call, DONE, toolboxes=["mine"], sandboxes=None)
    assert guild("test").code == 0
    (home.toolboxes / "mine.py").write_text(TOOLBOX.replace("twice.", "two times.").replace("text * 2", "text * 3"))
    failed(guild("test"), "tools of the model changed", "-double ", "    -abab\n    +ababab")
    assert guild("test", "--update").code == 0
    assert guild("test").code == 0


def test_files_by_name_folder_word_and_what_is_no_test(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    for name in ("one.yaml", "two.yml", "deep/three.yaml"):
        (project / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        put_test(project, DONE, name=name)
    (project / "tests" / "fixture.yaml").write_text("data: 1\n")
    (project / "tests" / "test_code.py").write_text("")
    (project / "tests" / ".hidden.yaml").write_text("test: x\n")
    assert "3 passed" in guild("test").out
    assert "1 passed" in guild("test", "-k", "TWO").out
    assert "2 passed" in guild("test", "tests/one.yaml", "tests/deep", "tests/one.yaml").out
    assert "3 passed" in guild("test", cwd=project / "workers").out
    told = guild("test", "--json").json
    assert (told["passed"], told["failed"]) == (3, 0)
    assert {test["file"] for test in told["tests"]} == {"tests/one.yaml", "tests/two.yml", "tests/deep/three.yaml"}
    named = guild("test", "tests/fixture.yaml")
    failed(named, "data: unknown field")


@pytest.mark.parametrize("words", [[], ["-k", "nothing"], ["nowhere.yaml"], ["nowhere"]])
def test_no_tests(guild: Guild, project: Path, words: list[str]) -> None:
    assert guild("test", *words, "--json").json["error"]["code"] == "not_found"


def test_what_can_be_no_script_is_an_error(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_test(project, DONE)
    (project / "notes.txt").write_text("test: x\n")
    os.mkfifo(project / "pipe.yaml")
    for name, said in (
        ("/dev/null", "not a regular file"),
        ("/proc/self/mem", "not a script"),
        ("pipe.yaml", "not a regular file"),
        ("notes.txt", "its name must end in .yaml"),
    ):
        ran = guild("test", "tests/one.yaml", name)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
        assert guild("test", name, "--json").json["error"]["code"] == "invalid_file"


# What is wrong with a test


@pytest.mark.parametrize(
    ("text", "said"),
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
        ("workers: {}\ntest: {worker: scribe, input: ' '}\n", "the input is empty"),
        ("workers: {}\ntest: {worker: scribe, input: go, folder: gone}\n", "the script has no answers"),
        ("test: [\n", "one.yaml:"),
        ("test: &a [*a]\nworkers: {}\n", "one.yaml"),
    ],
)
def test_a_test_that_is_wrong_is_named_with_its_line(guild: Guild, project: Path, text: str, said: str) -> None:
    put_worker(project, tool_rules=None)
    put_test(project, DONE).write_text(text)
    failed(guild("test"), said)
    told = guild("test", "--json")
    assert (told.code, told.json["failed"]) == (1, 1)


def test_one_that_is_wrong_does_not_keep_the_others_from_being_tested(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_test(project, DONE, name="b.yaml")
    (project / "tests" / "a.yaml").write_text("test: x\n")
    tested = guild("test")
    assert tested.code == 1
    assert "1 passed, 1 failed" in tested.out


# What runs programs

SHELL = {"call": "Bash", "with": {"command": "echo ran > notes/ran; echo ran"}}
UNSEEN = ("the test executes programs", "is not trusted (not trusted yet)", "guild trust tests/one.yaml")


@pytest.mark.req("X-18")
@pytest.mark.parametrize("mode", ["ask", "approve_all"])
def test_the_programs_of_a_test_run_only_once_it_is_trusted(guild: Guild, project: Path, mode: str) -> None:
    rules = {"Bash": {"approval_required": True}}
    put_worker(project, tools=["Bash"], tool_rules=rules)
    said = {"answers": [{"tool": "Bash", "answer": "yes"}]} if mode == "ask" else {}
    file = put_test(project, SHELL, {"say": "done", "expect": "ran"}, mode=mode, **said)
    put_test(project, SHELL, {"say": "done", "expect": "ran"}, mode=mode, **said, name="two.yaml")
    put_worker(project, "quiet", tool_rules=None)
    (project / "tests" / "quiet.yaml").write_text(
        "test: {worker: quiet, input: go}\nworkers: {quiet: [[{say: done}]]}\n"
    )
    first = guild("test")
    assert (first.code, first.out.count("guild trust tests/")) == (1, 2)
    assert "1 passed, 2 failed" in first.out, "the other one goes on"
    failed(guild("test", "tests/one.yaml"), *UNSEEN)
    shown = guild("trust")
    assert (shown.code, "tests/quiet.yaml" in shown.out) == (4, False)
    assert guild("plan", "scribe").out.rstrip() in shown.out
    assert "test, with the programs that it names, tests/one.yaml" in shown.out
    assert guild("trust", "tests/one.yaml", "--yes").code == 0
    assert guild("test", "tests/one.yaml").code == 0
    failed(guild("test", "tests/two.yaml"), "not trusted yet")
    file.write_text(file.read_text().replace("echo ran >", "echo other >"))
    failed(guild("test", "tests/one.yaml"), "changed since you trusted it")
    assert guild("trust", "--yes").code == 0
    assert "3 passed" in guild("test").out
    assert guild("trust", "--forget").code == 0
    failed(guild("test", "tests/one.yaml"), "not trusted yet")


def test_a_worker_further_down_that_runs_programs_counts(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, allow_workers=["hand"])
    put_worker(project, "hand", tools=["Bash"])
    put_test(project, DONE)
    failed(guild("test"), *UNSEEN)
    put_worker(project, "hand", tools=["Bash"], tool_rules={"proc.exec": {"allowed": False}})
    assert guild("test").code == 0, "what is forbidden runs nothing"


def test_a_test_that_brings_a_worker_of_its_own_counts(guild: Guild, project: Path) -> None:
    path = put_worker(project, tools=["Bash"], tool_rules=None)
    brought = path.read_text()
    for there in (True, False):
        put_worker(project, tool_rules=None) if there else path.unlink()
        put_test(project, SHELL, DONE, files={f"workers/{path.name}": brought})
        failed(guild("test"), *UNSEEN)
        assert [code["kind"] for code in guild("trust", "--json").json["code"]] == ["test"]
    guild("trust", "--yes")
    assert guild("test").code == 0


@pytest.mark.req("X-17")
def test_what_a_person_recorded_is_trusted_and_stays_so_when_it_is_updated(guild: Guild, project: Path) -> None:
    file = recorded(guild, project, SHELL, DONE, tools=["Bash"])
    assert guild("test").code == 0
    put_worker(project, tools=["Bash"], tool_rules=None, instructions="Otherwise.")
    failed(guild("test"), "system prompt changed")
    assert guild("test", "--update").code == 0
    assert guild("test").code == 0
    guild("trust", "--forget")
    put_worker(project, tools=["Bash"], tool_rules=None, instructions="Once more.")
    before = file.read_text()
    failed(guild("test", "--update"), "not trusted yet")
    assert file.read_text() == before


def test_a_file_that_looks_like_a_test_and_is_none_is_told_by_trust(guild: Guild, project: Path) -> None:
    put_worker(project, tools=["Bash"], tool_rules=None)
    put_test(project, DONE).write_text("test: [\n")
    assert guild("trust").code == 0
    named = guild("trust", "tests/one.yaml")
    assert (named.code, "one.yaml:" in named.err) == (2, True)


# What is compared


@pytest.mark.parametrize(
    ("case", "answers", "said"),
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
def test_what_is_not_as_it_was(
    guild: Guild, project: Path, case: dict[str, Any], answers: list[Any], said: str
) -> None:
    put_worker(project, tool_rules=None)
    put_test(project, *answers, **case)
    failed(guild("test"), said)


def test_a_run_that_is_not_made_any_more(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = put_test(project, DONE)
    path.write_text(path.read_text() + "  other:\n    - - say: done\n")
    failed(guild("test"), "other: number of runs changed: 1 recorded, now 0")


def test_an_ask_that_no_answer_is_recorded_for(guild: Guild, project: Path) -> None:
    put_worker(project)
    path = put_test(project, WRITE, DONE)
    before = path.read_text()
    for words in ([], ["--update"]):
        failed(guild("test", *words), "no answer is recorded for this ask", "+path: a.md")
    assert path.read_text() == before
    put_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "perhaps"}])
    failed(guild("test"), "not a valid answer", "yes, no, always")
    put_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "yes"}])
    assert guild("test").code == 0
    put_test(project, WRITE, DONE, answers=[{"tool": "sandbox_write_text", "answer": "yes", "worker": "other"}])
    failed(guild("test"), "no answer is recorded for this ask")


def test_update_writes_how_it_ends_now_and_keeps_the_rest(guild: Guild, project: Path) -> None:
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


def test_update_does_not_record_what_was_left_out(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = put_test(project, WRITE, {"sent": "x", "say": "done"}, {"say": "never"}, output="else")
    before = path.read_text()
    failed(guild("test", "--update"), "the run ended before answer")
    assert path.read_text() == before


def test_update_does_not_come_to_expect_a_script_that_is_used_up(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = put_test(project, WRITE)
    before = path.read_text()
    failed(guild("test", "--update"), "script exhausted")
    assert path.read_text() == before


# What a test cannot reach


def test_nothing_of_the_user_s_is_changed(guild: Guild, project: Path, home: Home) -> None:
    path = recorded(guild, project, WRITE, OTHER, {"call": "memory_write", "with": {"key": "k", "content": "x"}}, DONE)
    (project / "notes" / "a.md").write_text("mine")
    before = everything(project), {name: data for name, data in everything(home.path).items() if "hall." not in name}
    runs = guild("ls", "--all", "--json").json["done"]
    tested = guild("test", path)
    assert tested.code == 0, tested.out
    after = everything(project), {name: data for name, data in everything(home.path).items() if "hall." not in name}
    assert after == before
    assert guild("ls", "--all", "--json").json["done"] == runs


def test_a_folder_outside_of_the_project_is_not_written(guild: Guild, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    put_worker(project, tool_rules=None, sandboxes={"notes": {"path": str(outside), "mode": "rw"}})
    put_test(project, WRITE, DONE)
    failed(guild("test"), "is outside of the project, and the worker may write there")
    put_worker(project, tool_rules=None, sandboxes={"notes": {"path": str(outside), "mode": "ro"}})
    assert guild("test").code == 0
    assert list(outside.iterdir()) == []


def test_a_link_that_leads_out_is_not_there(guild: Guild, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "notes").symlink_to(outside)
    put_worker(project, tool_rules=None)
    put_test(project, WRITE, DONE)
    assert guild("test").code == 0
    assert list(outside.iterdir()) == []


def test_files_are_put_in_place_and_taken_away(guild: Guild, project: Path) -> None:
    (project / "notes" / "deep").mkdir(parents=True)
    (project / "notes" / "a.md").write_text("not this")
    put_worker(project, tool_rules=None)
    files = {"notes/a.md": "this\r\n", "notes/deep": None, "notes/new/b.md": "b"}
    listing = {"call": "sandbox_list", "with": {"sandbox": "notes"}}
    put_test(project, READ, {"sent": "this\r\n", **listing}, {"sent": "a.md\nnew/b.md", "say": "x"}, files=files)
    assert guild("test").code == 0, guild("test").out


def test_the_network_is_not_used(guild: Guild, project: Path, home: Home) -> None:
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
    put_test(project, {"calls": calls}, {"sent": ["an answer from afar", "", "", "error: no hits"], "say": "x"})
    tested = guild("test")
    failed(tested, "A test uses no network, and the script has no `result` for this call.")
    assert "-an answer" not in tested.out
    assert "-error: no hits" not in tested.out
    assert "the network was used" not in tested.out


def test_no_key_is_known_and_no_other_model_is_asked(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, model="anthropic:claude-sonnet-5-5")
    put_test(project, DONE)
    assert guild("test").code == 0
    assert guild("test", env={"ANTHROPIC_API_KEY": "sk-ant-0123456789"}).code == 0


def test_a_home_in_use_and_a_home_that_is_new(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    guild("run", "scribe", "go")
    put_test(project, DONE)
    assert guild("test").code == 0
    assert guild("test", env={"GUILDHALL_HOME": str(project.parent / "new")}).code == 0


def test_the_project_is_that_of_the_file(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    path = put_test(project, DONE)
    deep = project / "some" / "where"
    deep.mkdir(parents=True)
    path.rename(deep / "here.yaml")
    assert guild("test", "here.yaml", cwd=deep).code == 0
    assert guild("test", deep / "here.yaml", cwd=project.parent).code == 0


def test_a_home_inside_the_project_stays_hidden(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None, sandboxes=None, tools=["Glob"])
    put_test(project, {"call": "Glob", "with": {"pattern": "**/hall.*"}}, {"expect": "nothing matches", "say": "x"})
    env = {"GUILDHALL_HOME": str(project / "home")}
    tested = guild("test", env=env)
    assert (project / "home" / "hall.db").exists()
    assert tested.code == 0, tested.out


# The copy


def test_the_copy_has_what_the_project_has(tmp_path: Path) -> None:
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


def test_a_project_that_is_too_large(guild: Guild, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_FILES", 2)
    (project / "x").mkdir()
    for number in range(3):
        (project / "x" / str(number)).write_text("")
    with pytest.raises(Exception, match="too large to be copied"):
        copy_project(project, project.parent / "copy")


def test_no_file_is_put_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "project" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match="leads through a link"):
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
