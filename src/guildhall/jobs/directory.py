"""Job directory: reads and writes the plain files of a job.

    task.md  config.json          the task and its configuration
    meta.json                     id, status, description, times
    status.md                     the worker's own summary
    questions.md  decisions.json  questions to the user, and decisions of the worker
    result.md  artifacts/         the result and its files

meta.json is written last: a directory without it is not a job. People edit and remove these files. A damaged file
raises an error with its path and the problem.

Does not query several jobs or compare them with their runs: `jobs.queries` does.

Invariant: readers never see half a file, because a temporary file is synced and renamed. A repeated call adds its
decision or question only once.
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
    found: list[AskedQuestion] = []
    quoted: list[str] = []
    is_answer = False
    for line in [*text.split("\n"), ""]:
        if line.startswith(">"):
            quoted.append(line[2:] if line.startswith("> ") else line[1:])
            continue
        if quoted and found:
            content = "\n".join(quoted)
            found[-1] = replace(found[-1], answer=content) if is_answer else replace(found[-1], question=content)
        quoted = []
        if (heading := _HEADING.fullmatch(line)) is not None:
            found.append(AskedQuestion(ask=heading[1], at=heading[2], question=""))
            is_answer = False
        elif line.strip() == _ANSWER:
            is_answer = True
    return found


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


META = "meta.json"
STATUS = "status.md"
RESULT = "result.md"
QUESTIONS = "questions.md"
DECISIONS = "decisions.json"
ARTIFACTS = "artifacts"
REMOVED_PREFIX = ".gone-"  # name prefix of a directory that is being removed
MAX_FILE_BYTES = 20_000_000
_MAX_ARTIFACTS = 10_000  # in a listing
_stat = os.stat  # looked up once: `change_stamp` is called for thousands of jobs
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DECISION_FIELDS = ("question", "decision", "reasoning")
# The fields of a job by their names in meta.json.
_REQUIRED = {**{name: name for name in ("id", "worker", "description", "status")}, "startedAt": "started_at"}
_META_FIELDS = {**_REQUIRED, "completedAt": "completed_at", "error": "error", "run": "run", "lateError": "late_error"}


@dataclass(frozen=True)
class JobFolder:
    """The directory of one job."""

    path: Path

    def create(self, task: str, config: dict[str, Any]) -> None:
        """Create the directory. It is not a job until it has its meta.json."""
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise Conflict(f"cannot create the job: {error.strerror or error}", where=str(self.path.parent)) from None
        self._write("task.md", task)
        self._write("config.json", _json(config))

    def remove(self) -> None:
        """Remove the directory. Renaming it first makes the job disappear at once."""
        removed = self.path.with_name(f"{REMOVED_PREFIX}{self.path.name}")
        try:
            self.path.rename(removed)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise Conflict(f"cannot remove the job: {error.strerror or error}", where=str(self.path)) from None
        shutil.rmtree(removed, ignore_errors=True)

    def save(self, job: Job) -> None:
        """Write meta.json."""
        meta = {name: getattr(job, field) for name, field in _META_FIELDS.items()}
        if job.late_error is None:
            del meta["lateError"]
        self._write(META, _json(meta))

    def load(self) -> Job | None:
        """Return the job, or None if there is no meta.json. Raise InvalidFile if it is not valid."""
        text = self._read(META)
        return None if text is None else _job(text, self.path, self.summary())

    def summary(self) -> str | None:
        try:
            return self._read(STATUS) or None
        except InvalidFile:
            return None

    def write_summary(self, text: str) -> None:
        self._write(STATUS, text)

    def decisions(self) -> list[Decision]:
        return [Decision(**{name: row[name] for name in _DECISION_FIELDS}) for row in self._decision_rows()]

    def add_decision(self, key: str, decided: Decision) -> None:
        """Add a decision, unless an earlier attempt of the call has added it. `key`: that of the call."""
        rows = self._decision_rows()
        if not any(row.get("key") == key for row in rows):
            self._write(DECISIONS, _json([*rows, {**decided.as_wire(), "key": key}]))

    def _decision_rows(self) -> list[dict[str, str]]:
        text = self._read(DECISIONS)
        try:
            rows: Any = json.loads(text) if text else []
        except (ValueError, RecursionError):
            raise self._file_error(DECISIONS, "not JSON") from None
        if not isinstance(rows, list) or not all(map(_is_decision, cast("list[Any]", rows))):
            raise self._file_error(DECISIONS, "not a list of question, decision and reasoning")
        return cast("list[dict[str, str]]", rows)

    def questions(self) -> list[AskedQuestion]:
        return parse_questions(self._read(QUESTIONS) or "")

    def add_question(self, asked: AskedQuestion) -> None:
        """Add a question, unless it was added before."""
        questions = self.questions()
        if not any(known.ask == asked.ask for known in questions):
            self._write(QUESTIONS, render_questions([*questions, asked]))

    def add_answer(self, ask: str, answer: str) -> bool:
        """Add the answer to a question. Return True if that changed the file."""
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
        folder = self.path / ARTIFACTS
        *parents, name = path.split("/")
        for part in ("", *parents):
            folder = folder / part
            try:
                folder.mkdir(exist_ok=True)
            except FileExistsError:
                pass
            except OSError as error:
                raise Conflict(f"cannot write {path}: {error.strerror or error}", where=str(folder)) from None
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise UsageError(f"cannot write {path}: {part or ARTIFACTS} is not a folder")
        target = folder / name
        if target.is_symlink() or target.is_dir():
            raise UsageError(f"cannot write {path}: a folder or a link has this name")
        _replace(target, content)

    def check_result(self, contract: Contract, output: Any) -> str:
        """Return the result as text. Raise NotFulfilled with all problems if the contract is not met."""
        existing = set(self.artifacts())
        missing = [path for path in contract.artifacts if f"{ARTIFACTS}/{path}" not in existing]
        value, problems = check_output(contract, output, missing)
        if problems:
            hint = "Correct the files and the output, then call submit_result again."
            raise NotFulfilled(f"result rejected: {'; '.join(problems[:MAX_PROBLEMS])}", hint=hint)
        return output_text(value)

    def artifacts(self) -> list[str]:
        """Return the paths of the artifacts, relative to the directory of the job."""
        return sorted(_files(self.path / ARTIFACTS, ARTIFACTS))[:_MAX_ARTIFACTS]

    def _write(self, name: str, text: str) -> None:
        _replace(self.path / name, text)

    def _read(self, name: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        try:
            descriptor = os.open(f"{self.path}/{name}", _READ_FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._file_error(name, error.strerror or str(error)) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._file_error(name, "not a regular file")
            data = os.read(descriptor, min(status.st_size, MAX_FILE_BYTES) + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_FILE_BYTES:
            raise self._file_error(name, f"larger than {MAX_FILE_BYTES:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._file_error(name, "not UTF-8 text") from None

    def _file_error(self, name: str, reason: str) -> InvalidFile:
        return InvalidFile(f"invalid {name} of a job: {reason}", where=str(self.path / name))


def change_stamp(path: str) -> tuple[int, ...] | None:
    """Return a value that changes with meta.json and status.md, or None if there is no job."""
    try:
        meta = _stat(f"{path}/{META}", follow_symlinks=False)
    except OSError:
        return None
    try:
        status = _stat(f"{path}/{STATUS}", follow_symlinks=False)
    except OSError:
        return meta.st_mtime_ns, meta.st_ino, meta.st_size
    return meta.st_mtime_ns, meta.st_ino, meta.st_size, status.st_mtime_ns, status.st_ino, status.st_size


def _is_decision(value: Any) -> bool:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return all(isinstance(fields.get(name), str) for name in _DECISION_FIELDS)


def _job(text: str, path: Path, summary: str | None) -> Job:
    invalid = InvalidFile("invalid meta.json of a job", where=str(path / META))
    try:
        meta: Any = json.loads(text)
        fields = {field: meta.get(name) for name, field in _META_FIELDS.items()}
    except (ValueError, AttributeError, RecursionError):
        raise invalid from None
    texts = [value for field, value in fields.items() if value is not None or field in _REQUIRED.values()]
    if not all(isinstance(value, str) for value in texts) or fields["status"] not in get_args(JobStatus):
        raise invalid
    if fields["id"] != path.name:
        raise InvalidFile(
            f"invalid meta.json: it has the id of another job, {fields['id'][:40]!r}", where=str(path / META)
        )
    return Job(**fields, summary=summary)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file durably. Raise Conflict if it cannot be written."""
    try:
        replace_file(path, text.encode(), durable=True, single_writer=True)
    except OSError as error:
        raise Conflict(f"cannot write {path.name}: {error.strerror or error}", where=str(path)) from None


def _files(folder: Path, relative: str, depth: int = 0) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False) and depth < 16:
            yield from _files(folder / entry.name, f"{relative}/{entry.name}", depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{relative}/{entry.name}"
