"""Job directory: reads and writes the plain files of a job, which people and programs read.

    task.md  config.json          the task and its configuration
    meta.json                     id, status, description, times
    status.md                     the worker's own summary
    questions.md  decisions.json  questions to the user, and decisions of the worker
    result.md  artifacts/         the result and its files

meta.json is written last: a directory without it is not a job. Each file is written to a temporary file, synced and
renamed. People edit and remove these files, so a reader must expect any content. A damaged file raises
an error with its path and the problem.

Does not query several jobs or compare them with their runs: `jobs.queries` does.

Invariant: readers never see half a file. A repeated call, by its key, adds its decision or question only once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from guildhall.activities.contract import MAX_PROBLEMS, AskedQuestion, Decision, check_output, output_text
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import Conflict, InvalidFile, NotFulfilled, UsageError
from guildhall.jobs.model import Job, JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from guildhall.runs.purpose import Contract


_HEAD = re.compile(r"## (\S+), (\S+)")
_ANSWER = "Answer:"


def render_questions(questions: Iterable[AskedQuestion]) -> str:
    """Return the text of questions.md."""
    parts: list[str] = []
    for one in questions:
        parts.append(f"## {one.ask}, {one.at}\n\n{_quoted(one.question)}\n")
        if one.answer is not None:
            parts.append(f"{_ANSWER}\n\n{_quoted(one.answer)}\n")
    return "\n".join(parts)


def parse_questions(text: str) -> list[AskedQuestion]:
    """Return the questions in the text of questions.md."""
    found: list[AskedQuestion] = []
    words: list[str] | None = None
    answering = False
    for line in [*text.split("\n"), ""]:
        if line.startswith(">"):
            words = [*(words or ()), line[2:] if line.startswith("> ") else line[1:]]
            continue
        if words is not None and found:
            said = "\n".join(words)
            found[-1] = replace(found[-1], answer=said) if answering else replace(found[-1], question=said)
        words = None
        if (head := _HEAD.fullmatch(line)) is not None:
            found.append(AskedQuestion(ask=head[1], at=head[2], question=""))
            answering = False
        elif line.strip() == _ANSWER:
            answering = True
    return found


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in text.split("\n"))


META = "meta.json"
STATUS = "status.md"
RESULT = "result.md"
QUESTIONS = "questions.md"
DECISIONS = "decisions.json"
ARTIFACTS = "artifacts"
GONE = ".gone-"  # before the name of a directory that is being removed
LARGEST = 20_000_000  # bytes of a file that is read whole
_MOST_LISTED = 10_000  # artifacts
_stat = os.stat  # looked up once: `look` is called for thousands of jobs
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DECIDED = ("question", "decision", "reasoning")
# The fields of a job by their names in meta.json.
_REQUIRED = {**{name: name for name in ("id", "worker", "description", "status")}, "startedAt": "started_at"}
_META_FIELDS = {**_REQUIRED, "completedAt": "completed_at", "error": "error", "run": "run", "lateError": "late_error"}


@dataclass(frozen=True)
class JobFolder:
    """The directory of one job."""

    path: Path

    # Beginning and end

    def make(self, task: str, config: dict[str, Any]) -> None:
        """Create the directory. It is not a job until it has its meta.json."""
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise Conflict(f"no job can be kept: {error.strerror or error}", where=str(self.path.parent)) from None
        self._put("task.md", task)
        self._put("config.json", _json(config))

    def remove(self) -> None:
        """Remove the directory with its content. Others see it disappear at once."""
        going = self.path.with_name(f"{GONE}{self.path.name}")
        try:
            self.path.rename(going)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise Conflict(f"it cannot be removed: {error.strerror or error}", where=str(self.path)) from None
        shutil.rmtree(going, ignore_errors=True)

    # How it stands

    def save(self, job: Job) -> None:
        """Write meta.json."""
        meta = {name: getattr(job, field) for name, field in _META_FIELDS.items()}
        if job.late_error is None:
            del meta["lateError"]
        self._put(META, _json(meta))

    def load(self) -> Job | None:
        """Return the job, or None if there is none. Raise InvalidFile if meta.json is not valid."""
        text = self._get(META)
        return None if text is None else _job(text, self.path, self.summary())

    def summary(self) -> str | None:
        try:
            return self._get(STATUS) or None
        except InvalidFile:
            return None

    def summarise(self, text: str) -> None:
        self._put(STATUS, text)

    # Decisions

    def decisions(self) -> list[Decision]:
        return [Decision(**{name: one[name] for name in _DECIDED}) for one in self._decided()]

    def decide(self, key: str, decided: Decision) -> None:
        """Add a decision, unless the call has added it."""
        every = self._decided()
        if not any(one.get("key") == key for one in every):
            self._put(DECISIONS, _json([*every, {**decided.as_wire(), "key": key}]))

    def _decided(self) -> list[dict[str, str]]:
        text = self._get(DECISIONS)
        try:
            every: Any = json.loads(text) if text else []
        except (ValueError, RecursionError):
            raise self._wrong(DECISIONS, "it is not JSON") from None
        if not isinstance(every, list) or not all(map(_is_decision, cast("list[Any]", every))):
            raise self._wrong(DECISIONS, "it is not a list of question, decision and reasoning")
        return cast("list[dict[str, str]]", every)

    # Questions

    def questions(self) -> list[AskedQuestion]:
        return parse_questions(self._get(QUESTIONS) or "")

    def ask(self, asked: AskedQuestion) -> None:
        """Add a question, unless it was added before."""
        every = self.questions()
        if not any(one.ask == asked.ask for one in every):
            self._put(QUESTIONS, render_questions([*every, asked]))

    def answer(self, ask: str, answer: str) -> bool:
        """Add the answer to a question. Return True if that changed the file."""
        every = self.questions()
        then = [replace(one, answer=answer) if one.ask == ask else one for one in every]
        if then == every:
            return False
        self._put(QUESTIONS, render_questions(then))
        return True

    # What came out

    def result(self) -> str | None:
        return self._get(RESULT)

    def give(self, output: str) -> None:
        self._put(RESULT, output)

    def write_artifact(self, path: str, content: str) -> None:
        """Create or replace an artifact, by its path below artifacts/."""
        folder = self.path / ARTIFACTS
        *above, name = path.split("/")
        for part in ("", *above):
            folder = folder / part
            try:
                folder.mkdir(exist_ok=True)
            except FileExistsError:
                pass
            except OSError as error:
                raise Conflict(f"{path} cannot be written: {error.strerror or error}", where=str(folder)) from None
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise UsageError(f"{part} in {path} is a file, not a folder")
        place = folder / name
        if place.is_symlink() or place.is_dir():
            raise UsageError(f"{path} is there already, and is no file")
        _replace(place, content)

    def check_result(self, contract: Contract, output: Any) -> str:
        """Return the result as text. Raise NotFulfilled with all that is missing if the contract is not met."""
        there = set(self.artifacts())
        missing = [path for path in contract.artifacts if f"{ARTIFACTS}/{path}" not in there]
        value, problems = check_output(contract, output, missing)
        if problems:
            raise NotFulfilled(
                f"the job has not given what it had to: {'; '.join(problems[:MAX_PROBLEMS])}",
                hint="Write what is missing with write_artifact, correct the result, and submit it again.",
            )
        return output_text(value)

    def artifacts(self) -> list[str]:
        """Return the paths of the artifacts, relative to the directory."""
        return sorted(_files(self.path / ARTIFACTS, ARTIFACTS))[:_MOST_LISTED]

    # Files

    def _put(self, name: str, text: str) -> None:
        _replace(self.path / name, text)

    def _get(self, name: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        try:
            descriptor = os.open(f"{self.path}/{name}", _READ)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._wrong(name, error.strerror or str(error)) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._wrong(name, "it is not a regular file")
            data = os.read(descriptor, min(status.st_size, LARGEST) + 1)
        finally:
            os.close(descriptor)
        if len(data) > LARGEST:
            raise self._wrong(name, f"it is larger than {LARGEST:,} bytes")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._wrong(name, "it is not UTF-8 text") from None

    def _wrong(self, name: str, what: str) -> InvalidFile:
        return InvalidFile(f"{name} of the job cannot be read: {what}", where=str(self.path / name))


def look(path: str) -> tuple[int, ...] | None:
    """Return a value that changes with the status or the summary of a job, or None if there is no job."""
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
    return all(isinstance(fields.get(name), str) for name in _DECIDED)


def _job(text: str, path: Path, summary: str | None) -> Job:
    invalid = InvalidFile("it is not the meta.json of a job", where=str(path / META))
    try:
        meta: Any = json.loads(text)
        fields = {field: meta.get(name) for name, field in _META_FIELDS.items()}
    except (ValueError, AttributeError, RecursionError):
        raise invalid from None
    texts = [value for field, value in fields.items() if value is not None or field in _REQUIRED.values()]
    if not all(isinstance(value, str) for value in texts) or fields["status"] not in get_args(JobStatus):
        raise invalid
    if fields["id"] != path.name:
        raise InvalidFile(f"it is of another job, {fields['id'][:40]!r}", where=str(path / META))
    return Job(**fields, summary=summary)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Replace a file of the job durably. Raise Conflict if it cannot be written."""
    try:
        replace_file(path, text.encode(), durable=True, single_writer=True)
    except OSError as error:
        raise Conflict(f"{path.name} cannot be written: {error.strerror or error}", where=str(path)) from None


def _files(folder: Path, shown: str, depth: int = 0) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False) and depth < 16:
            yield from _files(folder / entry.name, f"{shown}/{entry.name}", depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield f"{shown}/{entry.name}"
