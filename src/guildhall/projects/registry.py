"""The project registry: reads, adds, moves, removes and checks the projects in config.yaml.

Does not change a repository: branches and checkouts of a removed project remain.

Invariant: a change of a project does not change the rest of config.yaml. The new text is parsed and compared before it
is written.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from guildhall.core import yaml, yaml_writer
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.ids import MAX_NAME_CHARS, NAME_RULE, is_name
from guildhall.core.text_checks import did_you_mean
from guildhall.core.yaml_writer import dump, field_lines
from guildhall.projects.git import repository
from guildhall.projects.model import BRANCH_PREFIX, INTEGRATION, Problem, Project, ProjectEntry, ProjectSettings

if TYPE_CHECKING:
    from guildhall.core.paths import Home


_CONFIG = Path("config.yaml")
_HINT = "Edit config.yaml by hand: under `projects:`, add or remove `NAME:` with `path:` and `branch:`."


def _add_to_text(text: str, name: str, fields: Mapping[str, str]) -> str:
    """Return the text of config.yaml with a new project."""
    data = _parse(text)
    others: dict[str, Any] = data.get("projects") or {}
    expected = {**data, "projects": {**others, name: dict(fields)}}
    return _choose(_texts_with_entry(text, name, fields), expected)


def _update_text(text: str, name: str, fields: Mapping[str, str]) -> str:
    """Return the text of config.yaml with changed fields of a project."""
    data = _parse(text)
    others: dict[str, Any] = data["projects"]
    expected = {**data, "projects": {**others, name: {**others[name], **fields}}}
    return _choose(_texts_with_fields(text, name, fields), expected)


def _remove_from_text(text: str, name: str) -> str:
    """Return the text of config.yaml without a project."""
    data = _parse(text)
    rest = {other: value for other, value in data["projects"].items() if other != name}
    return _choose(_texts_without_entry(text, name), {**data, "projects": rest})


def _parse(text: str) -> dict[str, Any]:
    data: Any = yaml.parse(_CONFIG, text).data if text.strip() else None
    if data is not None and not isinstance(data, dict):
        raise Conflict("cannot change config.yaml: expected fields such as `projects:`", hint=_HINT)
    return cast("dict[str, Any]", data or {})


def _choose(texts: Iterator[str], expected: dict[str, Any]) -> str:
    """Return the first text that contains the expected data. Raise Conflict if there is none."""

    def normalise(data: dict[str, Any] | None) -> dict[str, Any]:
        return {"projects": {}, **{name: value for name, value in (data or {}).items() if name != "projects" or value}}

    text = yaml_writer.first_reading_as(expected, texts, _CONFIG, normalise=normalise)
    if text is None:
        raise Conflict("cannot edit config.yaml without rewriting other parts of it", hint=_HINT)
    return text


def _texts_with_entry(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield candidates for the new text. The first candidates change the fewest characters."""
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    inner = [f"  {line}" for field, value in fields.items() for line in field_lines(field, value, 4)]
    lines = [dump({name: None}).removesuffix(" null\n"), *inner]
    node = _projects_node(text)
    if node is None:
        yield ended + "".join(f"{line}\n" for line in ("projects:", *(f"  {line}" for line in lines)))
    elif getattr(node, "value", None) and not node.flow_style and not isinstance(node.value, str):
        column = node.value[0][0].start_mark.column
        end = _end_of(ended, node)
        yield ended[:end] + "".join(f"{' ' * column}{line}\n" for line in lines) + ended[end:]

    def add(tree: Any) -> None:
        if not tree.get("projects"):
            tree["projects"] = {}
        tree["projects"][name] = dict(fields)

    yield yaml_writer.round_trip(text, add)


def _texts_without_entry(text: str, name: str) -> Iterator[str]:
    node = _projects_node(text)
    if node is not None and not node.flow_style and len(node.value) > 1:
        starts = [(key.value, key.start_mark) for key, _ in node.value]
        position = next(n for n, (key, _) in enumerate(starts) if key == name)
        start = text.rfind("\n", 0, starts[position][1].index) + 1
        is_last = position == len(starts) - 1
        end = _end_of(text, node) if is_last else text.rfind("\n", 0, starts[position + 1][1].index) + 1
        yield text[:start] + text[end:]
    yield yaml_writer.round_trip(text, lambda tree: tree["projects"].pop(name))


def _texts_with_fields(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    entries = {key.value: value.value for key, value in _projects_node(text).value}
    entry: list[tuple[Any, Any]] = entries[name]
    spans = [(value.start_mark.index, value.end_mark.index, key.value) for key, value in entry if key.value in fields]
    new = text
    for start, end, field in sorted(spans, reverse=True):  # from the end, so that the other marks stay valid
        new = new[:start] + json.dumps(fields[field], ensure_ascii=False) + new[end:]
    yield new
    yield yaml_writer.round_trip(text, lambda tree: tree["projects"][name].update(fields))


def _end_of(text: str, node: Any) -> int:
    """Return the index of the end of a mapping, without the comments and empty lines that follow."""
    last: Any = node.value[-1][1]
    while getattr(last, "value", None) and not isinstance(last.value, str) and not last.flow_style:
        last = last.value[-1][1] if isinstance(last.value[-1], tuple) else last.value[-1]
    end = last.end_mark.index
    if end and text[end - 1] == "\n":  # a block scalar ends at the start of the next line
        return end
    line = text.find("\n", end)
    return len(text) if line < 0 else line + 1


def _projects_node(text: str) -> Any:
    tree = yaml_writer.compose(text)
    pairs: list[tuple[Any, Any]] = tree.value if tree is not None and not isinstance(tree.value, str) else []
    return next((value for key, value in pairs if key.value == "projects"), None)


_Count = Annotated[StrictInt, Field(gt=0, le=1000)]
_Word = Annotated[StrictStr, Field(min_length=1, max_length=250)]


class _Entry(BaseModel):
    """The fields of a project in config.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: _Word
    branch: _Word = "main"
    max_commissions: _Count = ProjectSettings.max_commissions
    max_meetings: _Count = ProjectSettings.max_meetings
    checks: tuple[_Word, ...] = ()
    remote: _Word = ProjectSettings.remote
    memory_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] | None = None


class Projects:
    """The projects that are registered in the config.yaml of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def config_path(self) -> Path:
        return self._home.settings

    def all(self) -> list[Project]:
        """Return the projects, sorted by name. Raise InvalidFile for the first invalid entry."""
        return [self._project(name) for name in sorted(self._names())]

    def list_entries(self) -> list[ProjectEntry]:
        """Return the entries, sorted by name, including invalid entries."""
        self._check_names()
        return [self._entry(name) for name in sorted(self._names())]

    def list_valid(self) -> list[Project]:
        """Return the projects with a valid entry, sorted by name."""
        entries = map(self._entry, sorted(self._names()))
        return [entry.project for entry in entries if entry.project is not None]

    def get(self, name: str) -> Project:
        self._check_known(name)
        return self._project(name)

    def get_entry(self, name: str) -> ProjectEntry:
        """Return the entry of a project, even if it is invalid. Raise NotFound for an unknown name."""
        self._check_known(name)
        return self._entry(name)

    def _check_known(self, name: str) -> None:
        self._check_names()
        names = self._names()
        if name not in names:
            hint = did_you_mean(name[:60], names) or "Register a project: guild project add PATH"
            raise NotFound(f"unknown project {name[:60]!r}", hint=hint)

    def _entry(self, name: str) -> ProjectEntry:
        try:
            return ProjectEntry(name=name, project=self._project(name))
        except InvalidFile as error:
            return ProjectEntry(name=name, error=f"{error.where}: {error.message}")

    def find_at(self, path: Path) -> Project | None:
        """Return the project whose folder contains a path, or None."""
        real = Path(os.path.realpath(path))
        containing = [project for project in self.list_valid() if project.path in (real, *real.parents)]
        return max(containing, key=lambda project: len(project.path.parts), default=None)

    def add(self, path: Path, name: str | None = None, branch: str | None = None) -> Project:
        folder = Path(os.path.realpath(path))
        repository.check_version()
        _check_repository(folder)
        name = folder.name if name is None else name
        if not is_name(name):
            shown = f"{name[:60]!a}" + (f" ({len(name)} characters)" if len(name) > MAX_NAME_CHARS else "")
            raise UsageError(f"invalid project name {shown}", hint=f"Set another name with --name NAME: {NAME_RULE}.")
        self._check_unregistered(name, folder)
        project = Project(name=name, path=folder, branch=branch or _current_branch(folder))
        self._check_usable(project)
        self._write(_add_to_text(self._text(), name, {"path": str(folder), "branch": project.branch}))
        return self.get(name)

    def move(self, project: Project, path: Path, branch: str | None = None) -> Project:
        """Change the folder, and optionally the branch, of a project."""
        moved = replace(project, path=Path(os.path.realpath(path)), branch=branch or project.branch)
        self._check_usable(moved)
        fields = {"path": str(moved.path), **({"branch": branch} if branch else {})}
        self._write(_update_text(self._text(), project.name, fields))
        return self.get(project.name)

    def remove(self, name: str) -> ProjectEntry:
        """Remove a project, even if its entry is invalid, and return the entry."""
        entry = self.get_entry(name)
        self._write(_remove_from_text(self._text(), name))
        return entry

    def check(self, name: str) -> list[Problem]:
        """Return the problems of a project, blocking problems first."""
        entry = self.get_entry(name)
        if (project := entry.project) is None:
            hint = f"Correct the entry, or remove it: `guild project rm {name}`."
            return [Problem(message=entry.error or "", hint=hint)]
        if not project.path.is_dir():
            hint = "If it was moved, run `guild project add` in its new folder. If it was deleted, remove the project: "
            return [Problem(message=f"folder not found: {project.path}", hint=f"{hint}`guild project rm {name}`.")]
        try:
            repository.check_version()
            return sorted(self._problems(project), key=lambda problem: not problem.blocks)
        except GuildError as error:
            return [Problem(message=error.message, hint=error.hint)]

    def _check_usable(self, project: Project) -> None:
        problems = [problem for problem in self._problems(project) if problem.blocks]
        if problems:
            raise Conflict(problems[0].message, where=str(project.path), hint=problems[0].hint)

    def _problems(self, project: Project) -> list[Problem]:
        try:
            _check_repository(project.path)
            common = repository.common_directory(project.path)
        except GuildError as error:
            return [Problem(message=error.message, hint=error.hint)]
        problems: list[Problem] = []
        home = Path(os.path.realpath(self._home.path))
        if project.path == home or home in project.path.parents:
            problems.append(
                Problem(message="the repository is inside the home of Guildhall", hint="Move it elsewhere.")
            )
        if project.branch.startswith(BRANCH_PREFIX):
            message = f"cannot use the branch {project.branch}: it is a branch of the hall"
            problems.append(Problem(message=message, hint="Choose another: `--branch NAME`."))
        elif not _resolves(project.path, f"{project.ref}^{{commit}}"):
            names = repository.run_git(project.path, "for-each-ref", "--format=%(refname:short)", "refs/heads").text
            others = [branch for branch in names.split() if not branch.startswith(BRANCH_PREFIX)]
            message = f"the branch {project.branch!r} does not exist or has no commit"
            hint = did_you_mean(project.branch, others) or "Create a commit: `git commit --allow-empty -m Start`."
            problems.append(Problem(message=message, hint=hint))
        prefix = BRANCH_PREFIX.removesuffix("/")
        if _resolves(project.path, f"refs/heads/{prefix}"):
            message = f"cannot create the branch {INTEGRATION}: a branch {prefix!r} exists"
            problems.append(Problem(message=message, hint=f"Rename it: `git branch -m {prefix} NAME`."))
        problems += _storage_problems(project.path, common)
        for head, where in repository.list_checkouts(common):
            if head == f"refs/heads/{INTEGRATION}":
                message = f"{INTEGRATION} is checked out in {where}, so the hall cannot update it"
                problems.append(Problem(message=message, hint=f"Run `git switch {project.branch}` there."))
        return problems

    def _check_unregistered(self, name: str, folder: Path) -> None:
        others = self.list_valid()
        for other in others:
            if other.path == folder:
                hint = f"Check it: `guild check {other.name}`."
                message = f"cannot register this folder: it is already registered as {other.name!r}"
                raise Conflict(message, where=str(folder), hint=hint)
        for other in others:
            if other.name == name:
                raise Conflict(f"project {name!r} already exists: {other.path}", hint="Choose another: `--name NAME`.")
            try:
                is_same = repository.common_directory(folder) == repository.common_directory(other.path)
            except GuildError:  # the folder of the other project is missing
                continue
            if is_same:
                message = f"cannot register this folder: its repository is already registered as {other.name!r}"
                hint = f"To register this folder instead, first remove that project: guild project rm {other.name}"
                raise Conflict(message, where=str(folder), hint=hint)
        if name in self._names():
            raise Conflict(f"project {name!r} already exists", hint="Choose another: `--name NAME`.")

    def _text(self) -> str:
        return yaml.read_text(self._home.settings) if self._home.settings.exists() else ""

    def _write(self, text: str) -> None:
        replace_user_file(self._home.settings, text)

    def _read(self) -> tuple[yaml.Source | None, Any]:
        """Return the source of config.yaml, or None if the file is missing, and the value of `projects`."""
        source = yaml.read(self._home.settings) if self._home.settings.exists() else None
        data: Any = source.data if source else None
        return source, cast("dict[str, Any]", data).get("projects") if isinstance(data, dict) else None

    def _check_names(self) -> None:
        source, value = self._read()
        if source is not None and value is not None and not isinstance(value, dict):
            raise source.error("expected project names, each with a `path:` below it", ("projects",))

    def _names(self) -> list[str]:
        _, value = self._read()
        return list(cast("dict[str, Any]", value)) if isinstance(value, dict) else []

    def _project(self, name: str) -> Project:
        source, _ = self._read()
        assert source is not None
        if not is_name(name):
            raise source.error(f"invalid project name: {NAME_RULE}", ("projects", name))
        entry = yaml.validate(_Entry, source, ("projects", name))
        path = Path(entry.path).expanduser()
        if not path.is_absolute():
            raise source.error("expected an absolute path", ("projects", name, "path"))
        if entry.branch.startswith(BRANCH_PREFIX):
            raise source.error(f"expected your own branch, not one below {BRANCH_PREFIX}", ("projects", name, "branch"))
        settings = ProjectSettings(**entry.model_dump(exclude={"path", "branch"}))
        return Project(name=name, path=Path(os.path.realpath(path)), branch=entry.branch, settings=settings)


def _check_repository(folder: Path) -> None:
    """Raise if a folder is not the root of a checkout."""
    if not folder.is_dir():
        raise NotFound("folder not found", where=str(folder))
    common = repository.common_directory(folder)
    if repository.run_git(folder, "rev-parse", "--is-bare-repository").text == "true":
        raise Conflict("cannot register a bare repository", where=str(folder), hint="Register a clone of it.")
    output = repository.run_git(folder, "rev-parse", "--show-toplevel", ok=(0, 128)).text
    root = Path(os.path.realpath(output or common))
    if root != folder:
        hint = f"Register the root folder: guild project add {shlex.quote(str(root))}"
        raise Conflict("cannot register this folder: not the root of its repository", where=str(folder), hint=hint)


def _current_branch(folder: Path) -> str:
    branch = repository.run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text
    if not branch:
        message = "cannot choose a branch: none is checked out (detached HEAD)"
        raise Conflict(message, where=str(folder), hint="Choose a branch: `--branch NAME`.")
    return branch


def _resolves(folder: Path, ref: str) -> bool:
    return repository.run_git(folder, "rev-parse", "--verify", "--quiet", ref, ok=(0, 1, 128)).code == 0


def _storage_problems(folder: Path, common: Path) -> list[Problem]:
    """Return the problems with the format and the permissions of a repository."""
    problems: list[Problem] = []
    storage = repository.run_git(folder, "config", "--get", "extensions.refStorage", ok=(0, 1)).text
    if storage not in ("", "files"):
        hint = "Convert it: `git refs migrate --ref-format=files`."
        problems.append(Problem(message=f"unsupported ref storage format {storage!r}", hint=hint))
    if repository.run_git(folder, "config", "--get-regexp", r"^remote\..*\.promisor$", ok=(0, 1)).text:
        message = "this is a partial clone: missing objects cannot be checked out"
        problems.append(Problem(message=message, hint="Fetch them: `git fetch --refetch --filter=blob:limit=1000g`."))
    if (common / "shallow").exists():
        message = "this is a shallow clone: older history is missing"
        problems.append(Problem(message=message, hint="Fetch it: `git fetch --unshallow`.", blocks=False))
    if not os.access(common, os.W_OK):
        message = f"the git directory is not writable: {common}"
        problems.append(Problem(message=message, hint="Give yourself write permission."))
    return problems
