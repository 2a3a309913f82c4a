"""Job directory: reads and writes the plain files of a job.

    task.md  config.json          the task and its configuration
    meta.json                     id, status, description, times
    status.md                     the worker's own summary
    questions.md  decisions.json  questions to the user, and decisions of the worker
    result.md  artifacts/         the result and its files

meta.json is written last: a directory without it is not a job. The user may edit or remove these files. Reading an
invalid file raises InvalidFile with its path and the reason, except for status.md, which counts as missing.

Does not query several jobs or compare them with their runs: `jobs.queries` does.

Invariant: files are replaced atomically and durably, so readers never see a partial file. A repeated tool call adds
its decision or question only once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from guildhall.activities.contract import MAX_PROBLEMS, AskedQuestion, Decision, check_output, output_text
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, UsageError
from guildhall.jobs.model import Job, JobStatus

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runs.purpose import Contract


_HEADING = re.compile(r"## (\S+), (\S+)")
_ANSWER = "Answer:"


def render_questions(questions: Iterable[AskedQuestion]) -> str:
    parts: list[str] = []
    for asked in questions:
        parts.append(f"## {asked.ask}, {asked.at}\n\n{_quote(asked.question)}\n")
        if asked.answer is not None:
            parts.append(f"{_ANSWER}\n\n{_quote(asked.answer)}\n")
    return "\n".join(parts)


def parse_questions(text: str) -> list[AskedQuestion]:
    questions: list[AskedQuestion] = []
    quoted: list[str] = []
    is_answer = False
    for line in [*text.split("\n"), ""]:
        if line.startswith(">"):
            quoted.append(line[2:] if line.startswith("> ") else line[1:])
            continue
        if quoted and questions:
            content = "\n".join(quoted)
            questions[-1] = replace(questions[-1], **{"answer" if is_answer else "question": content})
        quoted = []
        if (heading := _HEADING.fullmatch(line)) is not None:
            questions.append(AskedQuestion(ask=heading[1], at=heading[2], question=""))
            is_answer = False
        elif line.strip() == _ANSWER:
            is_answer = True
    return questions


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


META = "meta.json"
SUMMARY = "status.md"
RESULT = "result.md"
QUESTIONS = "questions.md"
DECISIONS = "decisions.json"
ARTIFACTS = "artifacts"
REMOVED_PREFIX = ".gone-"  # name prefix of a directory that is being removed
MAX_FILE_BYTES = 20_000_000
_MAX_LISTED_ARTIFACTS = 10_000
_stat = os.stat  # looked up once: `directory_fingerprint` is called for thousands of jobs
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DECISION_FIELDS = ("question", "decision", "reasoning")
# The fields of a job by their names in meta.json.
_REQUIRED_META_FIELDS = {name: name for name in ("id", "worker", "description", "status")} | {"startedAt": "started_at"}
_OPTIONAL_META_FIELDS = {"completedAt": "completed_at", "error": "error", "run": "run", "lateError": "late_error"}
_META_FIELDS = _REQUIRED_META_FIELDS | _OPTIONAL_META_FIELDS


@dataclass(frozen=True)
class JobDirectory:
    """The directory of one job."""

    path: Path

    def create(self, task: str, config: dict[str, Any]) -> None:
        """Create the directory with task.md and config.json. It is not a job before `save` writes meta.json."""
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise Conflict(f"cannot create the job: {error.strerror or error}", where=str(self.path.parent)) from None
        self._write("task.md", task)
        self._write("config.json", _encode_json(config))

    def remove(self) -> None:
        """Remove the directory. Rename it first, so that the job disappears atomically."""
        removed = self.path.with_name(f"{REMOVED_PREFIX}{self.path.name}")
        try:
            self.path.rename(removed)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise Conflict(f"cannot delete the job: {error.strerror or error}", where=str(self.path)) from None
        shutil.rmtree(removed, ignore_errors=True)

    def save(self, job: Job) -> None:
        """Write meta.json."""
        meta = {name: getattr(job, field) for name, field in _META_FIELDS.items()}
        if job.late_error is None:
            del meta["lateError"]
        self._write(META, _encode_json(meta))

    def load(self) -> Job | None:
        """Return the job, or None if meta.json does not exist. Raise InvalidFile if meta.json is invalid."""
        text = self._read(META)
        return None if text is None else _parse_job(text, self.path, self.summary())

    def summary(self) -> str | None:
        try:
            return self._read(SUMMARY) or None
        except InvalidFile:
            return None

    def write_summary(self, text: str) -> None:
        self._write(SUMMARY, text)

    def decisions(self) -> list[Decision]:
        return [Decision(**{name: row[name] for name in _DECISION_FIELDS}) for row in self._decision_rows()]

    def add_decision(self, call_key: str, decision: Decision) -> None:
        """Add a decision, unless a call with this key has already added it."""
        rows = self._decision_rows()
        if not any(row.get("key") == call_key for row in rows):
            self._write(DECISIONS, _encode_json([*rows, {**decision.as_wire(), "key": call_key}]))

    def _decision_rows(self) -> list[dict[str, str]]:
        text = self._read(DECISIONS)
        try:
            rows: Any = json.loads(text) if text else []
        except (ValueError, RecursionError):
            raise self._file_error(DECISIONS, "not JSON") from None
        if not isinstance(rows, list) or not all(map(_is_decision, cast("list[Any]", rows))):
            raise self._file_error(DECISIONS, "expected a list of objects with question, decision and reasoning")
        return cast("list[dict[str, str]]", rows)

    def questions(self) -> list[AskedQuestion]:
        return parse_questions(self._read(QUESTIONS) or "")

    def add_question(self, asked: AskedQuestion) -> None:
        """Add a question, unless questions.md contains its ask."""
        questions = self.questions()
        if not any(known.ask == asked.ask for known in questions):
            self._write(QUESTIONS, render_questions([*questions, asked]))

    def add_answer(self, ask: str, answer: str) -> bool:
        """Add the answer to a question. Return False if questions.md has no such question, or has this answer."""
        questions = self.questions()
        changed = [replace(asked, answer=answer) if asked.ask == ask else asked for asked in questions]
        if changed == questions:
            return False
        self._write(QUESTIONS, render_questions(changed))
        return True

    def result(self) -> str | None:
        return self._read(RESULT)

    def write_result(self, output: str) -> None:
        self._write(RESULT, output)

    def write_artifact(self, path: str, content: str) -> None:
        """Create or replace an artifact. `path`: relative to artifacts/."""
        parent = self.path / ARTIFACTS
        *parents, name = path.split("/")
        for part in ("", *parents):
            parent = parent / part
            try:
                parent.mkdir(exist_ok=True)
            except FileExistsError:
                pass
            except OSError as error:
                raise Conflict(f"cannot write {path}: {error.strerror or error}", where=str(parent)) from None
            if not stat.S_ISDIR(parent.lstat().st_mode):
                raise UsageError(f"cannot write {path}: {part or ARTIFACTS} is not a directory")
        target = parent / name
        if target.is_symlink() or target.is_dir():
            raise UsageError(f"cannot write {path}: it is a directory or a symbolic link")
        _write_file(target, content)

    def check_result(self, contract: Contract, output: Any) -> str:
        """Return the result as text. Raise NotFulfilled with the first problems if it violates the contract."""
        existing = set(self.artifacts())
        missing = [path for path in contract.artifacts if f"{ARTIFACTS}/{path}" not in existing]
        value, problems = check_output(contract, output, missing)
        if problems:
            hint = "Correct the files and the output, then call submit_result again."
            raise NotFulfilled(f"result rejected: {'; '.join(problems[:MAX_PROBLEMS])}", hint=hint)
        return output_text(value)

    def artifacts(self) -> list[str]:
        """Return the paths of the artifacts, relative to the directory of the job."""
        return sorted(_iterate_files(self.path / ARTIFACTS, ARTIFACTS))[:_MAX_LISTED_ARTIFACTS]

    def _write(self, name: str, text: str) -> None:
        _write_file(self.path / name, text)

    def _read(self, name: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        try:
            descriptor = os.open(f"{self.path}/{name}", _READ_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._file_error(name, error.strerror or str(error)) from None
        try:
            file_stat = os.fstat(descriptor)
            if not stat.S_ISREG(file_stat.st_mode):
                raise self._file_error(name, "not a regular file")
            data = os.read(descriptor, min(file_stat.st_size, MAX_FILE_BYTES) + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_FILE_BYTES:
            raise self._file_error(name, f"larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._file_error(name, "not UTF-8 text") from None

    def _file_error(self, name: str, reason: str) -> InvalidFile:
        return InvalidFile(f"invalid {name}: {reason}", where=str(self.path / name))


def directory_fingerprint(path: str) -> tuple[int, ...] | None:
    """Return a value that changes with meta.json and status.md, or None if there is no job."""
    try:
        meta_stat = _stat(f"{path}/{META}", follow_symlinks=False)
    except OSError:
        return None
    try:
        summary_stat = _stat(f"{path}/{SUMMARY}", follow_symlinks=False)
    except OSError:
        return meta_stat.st_mtime_ns, meta_stat.st_ino, meta_stat.st_size
    return (
        *(meta_stat.st_mtime_ns, meta_stat.st_ino, meta_stat.st_size),
        *(summary_stat.st_mtime_ns, summary_stat.st_ino, summary_stat.st_size),
    )


def _is_decision(value: Any) -> bool:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return all(isinstance(fields.get(name), str) for name in _DECISION_FIELDS)


def _parse_job(text: str, path: Path, summary: str | None) -> Job:
    where = str(path / META)
    try:
        meta: Any = json.loads(text)
        fields = {field: meta.get(name) for name, field in _META_FIELDS.items()}
    except (ValueError, AttributeError, RecursionError):
        raise InvalidFile("invalid meta.json: not a JSON object", where=where) from None
    required = _REQUIRED_META_FIELDS.values()
    texts = [value for field, value in fields.items() if value is not None or field in required]
    if not all(isinstance(value, str) for value in texts) or fields["status"] not in get_args(JobStatus):
        raise InvalidFile("invalid meta.json: a field is missing or has an invalid value", where=where)
    if fields["id"] != path.name:
        reason = f"the id {fields['id'][:40]!r} does not match the directory {path.name!r}"
        raise InvalidFile(f"invalid meta.json: {reason}", where=where)
    return Job(**fields, summary=summary)


def _encode_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write_file(path: Path, text: str) -> None:
    """Replace a file atomically and durably. Raise Conflict if that fails."""
    try:
        replace_file(path, text.encode(), durable=True, single_writer=True)
    except OSError as error:
        raise Conflict(f"cannot write {path.name}: {error.strerror or error}", where=str(path)) from None


def _iterate_files(directory: Path, relative: str, depth: int = 0) -> Iterator[str]:
    try:
        with os.scandir(directory) as scanned:
            entries = list(scanned)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False) and depth < 16:
            yield from _iterate_files(directory / entry.name, f"{relative}/{entry.name}", depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{relative}/{entry.name}"
