"""A job directory: whole whatever happens, and readable whatever somebody has put there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.activities.contract import AskedQuestion, Decision
from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, UsageError
from guildhall.jobs.directory import JobDirectory, directory_fingerprint, parse_questions, render_questions
from guildhall.jobs.model import Job, artifact_path
from guildhall.runs.purpose import Contract

if TYPE_CHECKING:
    from pathlib import Path

ID = "j-2345678923"
JOB = Job(
    id=ID, worker="smith", description="a key", status="running", started_at="2026-01-01T00:00:00.000Z", run="r-1"
)
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "jobs" / ID)
    made.create("Forge a key.", {"metal": "iron"})
    return made


@given(st.lists(st.tuples(WORDS, st.none() | WORDS)))
def test_questions_and_answers_survive_a_round_trip(said: list[tuple[str, str | None]]) -> None:
    every = [AskedQuestion(ask=f"a-{n}", at="now", question=q, answer=a) for n, (q, a) in enumerate(said)]
    assert parse_questions(render_questions(every)) == every


@pytest.mark.parametrize(
    "text", ["a\n\nb", "---", "## a-1, now\n\n> no", "> quoted\n>", "```\nx", "Answer:\n\n> y", "\r\n", " "]
)
@pytest.mark.req("WD-25")
def test_a_question_can_contain_any_text(directory: JobDirectory, text: str) -> None:
    directory.add_question(AskedQuestion(ask="a-1", at="now", question=text))
    directory.add_question(AskedQuestion(ask="a-2", at="now", question="and?"))
    directory.add_question(AskedQuestion(ask="a-1", at="now", question=text))
    assert [one.question for one in directory.questions()] == [text, "and?"]
    assert directory.add_answer("a-1", text)
    assert not directory.add_answer("a-1", text)
    assert not directory.add_answer("a-9", "nobody asked")
    assert [one.answer for one in directory.questions()] == [text, None]


def test_manual_edits_of_questions_are_read(directory: JobDirectory) -> None:
    (directory.path / "questions.md").write_text(
        "# Notes\n> stray\n\n## a-1, now\n>Which?\n\nI think:\nAnswer:\n>this\n> one"
    )
    assert directory.questions() == [AskedQuestion(ask="a-1", at="now", question="Which?", answer="this\none")]


def test_a_directory_without_meta_is_not_a_job(directory: JobDirectory) -> None:
    assert directory.load() is None
    assert directory_fingerprint(str(directory.path)) is None
    directory.save(JOB)
    assert directory.load() == JOB
    seen = directory_fingerprint(str(directory.path))
    directory.write_summary("half of it")
    assert directory_fingerprint(str(directory.path)) != seen
    job = directory.load()
    assert job is not None
    assert job.summary == "half of it"


@pytest.mark.req("WD-23")
def test_a_summary_replaces_the_earlier_summary(directory: JobDirectory) -> None:
    assert directory.summary() is None
    directory.write_summary("one")
    directory.write_summary("two")
    assert (directory.path / "status.md").read_text() == "two"
    directory.write_summary("")
    assert directory.summary() is None


@pytest.mark.req("WD-24")
def test_a_decision_is_added_once_for_each_call(directory: JobDirectory) -> None:
    iron = Decision(question="metal?", decision="iron", reasoning="there")
    for key in ("m1/a", "m1/a", "m2/a"):
        directory.add_decision(key, iron)
    assert directory.decisions() == [iron, iron]
    assert json.loads((directory.path / "decisions.json").read_text())[0]["decision"] == "iron"


@pytest.mark.parametrize(
    "content", ["", "[]", "nothing", "{", '{"id": 1}', "[" * 100_000, '{"id": null, "status": []}', "\udcff"]
)
def test_an_invalid_meta_is_reported(directory: JobDirectory, content: str) -> None:
    (directory.path / "meta.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidFile):
        directory.load()


@pytest.mark.parametrize("change", [{"status": "gone"}, {"id": "j-2345678924"}, {"run": 3}, {"startedAt": None}])
def test_the_meta_of_another_job_is_refused(directory: JobDirectory, change: dict[str, object]) -> None:
    directory.save(JOB)
    meta = directory.path / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), **change}))
    with pytest.raises(InvalidFile):
        directory.load()


@pytest.mark.parametrize(
    "content", ["{}", "[1]", "{", '[{"question": "a"}]', '[{"question": 1, "decision": "", "reasoning": ""}]']
)
def test_invalid_decisions_are_reported_and_not_overwritten(directory: JobDirectory, content: str) -> None:
    (directory.path / "decisions.json").write_text(content)
    with pytest.raises(InvalidFile):
        directory.add_decision("m1", Decision(question="q", decision="d", reasoning="r"))
    assert (directory.path / "decisions.json").read_text() == content


def test_links_and_pipes_are_not_read(directory: JobDirectory, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (directory.path / "status.md").symlink_to(tmp_path / "secret")
    os.mkfifo(directory.path / "result.md")
    assert directory.summary() is None
    with pytest.raises(InvalidFile):
        directory.result()


BAD_PATHS: list[object] = [
    *("", " ", "/etc/passwd", "../meta.json", "a/../../b", "a//b", "./a", ".hidden", "a/.b", "a\\b", "a\0", "a\nb"),
    *(
        "\ud800",
        "x" * 300,
        "/".join("abcdefghijklmnopqrstuvwxyz"),
        "artifacts/",
        "artifacts/../meta.json",
        3,
        None,
        ["a"],
    ),
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_no_path_leads_out_of_the_artifacts(path: object) -> None:
    with pytest.raises(UsageError):
        artifact_path(path)


def test_artifacts_are_written_below_the_artifacts_folder(directory: JobDirectory, tmp_path: Path) -> None:
    assert directory.artifacts() == []
    for path in ("report.md", "tables/a/b.csv"):
        directory.write_artifact(path, "1")
        directory.write_artifact(path, "2")
    assert directory.artifacts() == ["artifacts/report.md", "artifacts/tables/a/b.csv"]
    assert (directory.path / "artifacts" / "report.md").read_text() == "2"
    with pytest.raises(UsageError):
        directory.write_artifact("report.md/more", "3")
    with pytest.raises(UsageError):
        directory.write_artifact("tables", "3")
    (directory.path / "artifacts" / "out").symlink_to(tmp_path)
    with pytest.raises(UsageError):
        directory.write_artifact("out/x", "3")
    assert not (tmp_path / "x").exists()
    with pytest.raises(NotFulfilled) as raised:
        directory.check_result(Contract(artifacts=("report.md", "other.md", "out")), "done")
    assert raised.value.message.endswith("the artifact other.md is missing; the artifact out is missing")


def test_a_missing_directory_is_reported(directory: JobDirectory) -> None:
    directory.save(JOB)
    directory.remove()
    assert not directory.path.exists()
    assert list(directory.path.parent.iterdir()) == []
    directory.remove()
    with pytest.raises(Conflict):
        directory.save(JOB)
    assert (directory.load(), directory.artifacts(), directory.questions(), directory.decisions()) == (None, [], [], [])
