"""The project registry: reads, adds, moves, removes and checks the projects in config.yaml.

People and programs may edit config.yaml. Errors name the line.
Does not change a repository: removing a project keeps its branches and checkouts.

Invariant: a change of a project leaves the rest of config.yaml as it is. The new text is parsed and compared before it
is written.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from guildhall.core import yaml, yaml_edit
from guildhall.core.atomic_file import replace_user_file
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.ids import LONGEST_NAME, is_name
from guildhall.core.text import did_you_mean
from guildhall.core.yaml_writer import dump, field_lines
from guildhall.projects.git import repository as program
from guildhall.projects.model import INTEGRATION, BRANCH_PREFIX, Problem, Project, ProjectSettings, ProjectEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guildhall.core.paths import Home


_HINT = "Write the change into it yourself: `projects:`, then `  NAME:` with `path:` and `branch:`."


def add_to_text(text: str, name: str, fields: Mapping[str, str]) -> str:
    """The text with one more project."""
    data = _data(text)
    others: dict[str, Any] = data.get("projects") or {}
    expected = {**data, "projects": {**others, name: dict(fields)}}
    return _first_right(_with(text, name, fields), expected)


def update_text(text: str, name: str, fields: Mapping[str, str]) -> str:
    """The text with something else said of a project that it has."""
    data = _data(text)
    others: dict[str, Any] = data["projects"]
    expected = {**data, "projects": {**others, name: {**others[name], **fields}}}
    return _first_right(_with_fields(text, name, fields), expected)


def remove_from_text(text: str, name: str) -> str:
    """The text with one project less."""
    data = _data(text)
    rest = {other: value for other, value in data["projects"].items() if other != name}
    return _first_right(_without(text, name), {**data, "projects": rest})


def _data(text: str) -> dict[str, Any]:
    data: Any = _parsed(text)
    if data is not None and not isinstance(data, dict):
        raise Conflict("config.yaml has no fields, so none can be put in", hint=_HINT)
    return cast("dict[str, Any]", data or {})


def _parsed(text: str) -> Any:
    from pathlib import Path

    return yaml.parse(Path("config.yaml"), text).data if text.strip() else None


def _first_right(texts: Iterator[str], expected: dict[str, Any]) -> str:
    """Return the first text with the expected data. Raise Conflict if there is none."""
    from pathlib import Path

    def normalise(data: dict[str, Any] | None) -> dict[str, Any]:
        return {"projects": {}, **{name: value for name, value in (data or {}).items() if name != "projects" or value}}

    text = yaml_edit.first_reading_as(expected, texts, Path("config.yaml"), normalise=normalise)
    if text is None:
        raise Conflict("config.yaml is written in a way that cannot be changed safely", hint=_HINT)
    return text


def _with(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    inner = [f"  {line}" for field, value in fields.items() for line in field_lines(field, value, 4)]
    lines = [dump({name: None}).removesuffix(" null\n"), *inner]
    node = _field(text, "projects")
    if node is None:
        yield ended + "".join(f"{line}\n" for line in ("projects:", *(f"  {line}" for line in lines)))
    elif getattr(node, "value", None) and not node.flow_style and not isinstance(node.value, str):
        column = node.value[0][0].start_mark.column
        at = _end_of(ended, node)
        yield ended[:at] + "".join(f"{' ' * column}{line}\n" for line in lines) + ended[at:]
    yield yaml_edit.round_trip(text, partial(_set, name=name, fields=dict(fields)))


def _without(text: str, name: str) -> Iterator[str]:
    node = _field(text, "projects")
    if node is not None and not node.flow_style and len(node.value) > 1:
        starts = [(key.value, key.start_mark) for key, _ in node.value]
        place = next(n for n, (key, _) in enumerate(starts) if key == name)
        start = text.rfind("\n", 0, starts[place][1].index) + 1
        last = place == len(starts) - 1
        end = _end_of(text, node) if last else text.rfind("\n", 0, starts[place + 1][1].index) + 1
        yield text[:start] + text[end:]
    yield yaml_edit.round_trip(text, partial(_unset, name=name))


def _with_fields(text: str, name: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Each value replaced where it stands, from the last to the first."""
    entries = {key.value: value.value for key, value in _field(text, "projects").value}
    entry: list[tuple[Any, Any]] = entries[name]
    places = [(value.start_mark.index, value.end_mark.index, key.value) for key, value in entry if key.value in fields]
    new = text
    for start, end, field in sorted(places, reverse=True):
        new = new[:start] + json.dumps(fields[field], ensure_ascii=False) + new[end:]
    yield new
    yield yaml_edit.round_trip(text, partial(_update, name=name, fields=fields))


def _end_of(text: str, node: Any) -> int:
    """Where the lines of a mapping end: after its last value, not after the comments and empty lines behind it."""
    last: Any = node.value[-1][1]
    while getattr(last, "value", None) and not isinstance(last.value, str) and not last.flow_style:
        last = last.value[-1][1] if isinstance(last.value[-1], tuple) else last.value[-1]
    end = last.end_mark.index
    if end and text[end - 1] == "\n":  # of a block of text: it ends where the next line begins
        return end
    line = text.find("\n", end)
    return len(text) if line < 0 else line + 1


def _field(text: str, name: str) -> Any:
    tree = yaml_edit.compose(text)
    pairs: list[tuple[Any, Any]] = tree.value if tree is not None and not isinstance(tree.value, str) else []
    return next((value for key, value in pairs if key.value == name), None)


def _set(tree: Any, name: str, fields: dict[str, str]) -> None:
    if not tree.get("projects"):
        tree["projects"] = {}
    tree["projects"][name] = fields


def _update(tree: Any, name: str, fields: Mapping[str, str]) -> None:
    tree["projects"][name].update(fields)


def _unset(tree: Any, name: str) -> None:
    del tree["projects"][name]


_Count = Annotated[StrictInt, Field(gt=0, le=1000)]
_Word = Annotated[StrictStr, Field(min_length=1, max_length=250)]


class _Entry(BaseModel):
    """A project as config.yaml has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: _Word
    branch: _Word = "main"
    max_commissions: _Count = ProjectSettings.max_commissions
    max_meetings: _Count = ProjectSettings.max_meetings
    checks: tuple[_Word, ...] = ()
    remote: _Word = ProjectSettings.remote
    memory_tokens: Annotated[StrictInt, Field(gt=0, le=1_000_000)] | None = None


class Projects:
    """What is registered in a home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def config_path(self) -> Path:
        """Where they are registered."""
        return self._home.settings

    def all(self) -> list[Project]:
        """Every project, by name. Raises for the first that is written wrongly."""
        return [self._project(name) for name in sorted(self._names())]

    def list_entries(self) -> list[ProjectEntry]:
        """Every project, the wrong ones too."""
        self._demand_names()
        return self._shown()

    def _shown(self) -> list[ProjectEntry]:
        found: list[ProjectEntry] = []
        for name in sorted(self._names()):
            try:
                found.append(ProjectEntry(name=name, project=self._project(name)))
            except InvalidFile as error:
                found.append(ProjectEntry(name=name, error=f"{error.where}: {error.message}"))
        return found

    def list_valid(self) -> list[Project]:
        """All projects that can be read; the others are for `all` and `check` to complain about."""
        return [shown.project for shown in self._shown() if shown.project is not None]

    def get(self, name: str) -> Project:
        self._demand_names()
        names = self._names()
        if name not in names:
            hint = did_you_mean(name[:60], names) or "`guild project add PATH` registers one."
            raise NotFound(f"there is no project {name[:60]!r}", hint=hint)
        return self._project(name)

    def find_at(self, path: Path) -> Project | None:
        """The project in whose folder a path lies."""
        real = Path(os.path.realpath(path))
        found = [one for one in self.list_valid() if one.path == real or one.path in real.parents]
        return max(found, key=lambda one: len(one.path.parts), default=None)

    def add(self, path: Path, name: str | None = None, branch: str | None = None) -> Project:
        """Registers a repository."""
        folder = Path(os.path.realpath(path))
        program.check_version()
        _demand_repository(folder)
        name = folder.name if name is None else name
        if not is_name(name):
            shown = f"{name[:60]!a}" + (f" ({len(name)} characters)" if len(name) > LONGEST_NAME else "")
            hint = f"Letters, digits, dots, dashes and underscores, at most {LONGEST_NAME}; `--name NAME` gives it one."
            raise UsageError(f"{shown} cannot name a project", hint=hint)
        self._demand_free(name, folder)
        project = Project(name=name, path=folder, branch=branch or _branch_of(folder))
        self._demand_sound(project)
        self._write(add_to_text(self._text(), name, {"path": str(folder), "branch": project.branch}))
        return self.get(name)

    def move(self, project: Project, path: Path, branch: str | None = None) -> Project:
        """Registers a project in another place than it was; all else that is said of it stays."""
        there = replace(project, path=Path(os.path.realpath(path)), branch=branch or project.branch)
        self._demand_sound(there)
        new = {"path": str(there.path), **({"branch": branch} if branch else {})}
        self._write(update_text(self._text(), project.name, new))
        return self.get(project.name)

    def remove(self, name: str) -> ProjectEntry:
        """Takes a project out of the register, also one that is written wrongly. Its repository, its branches and its
        worktrees stay as they are."""
        shown = self.get_entry(name)
        self._write(remove_from_text(self._text(), name))
        return shown

    def get_entry(self, name: str) -> ProjectEntry:
        """A project, also one that is written wrongly."""
        try:
            return ProjectEntry(name=name, project=self.get(name))
        except InvalidFile as error:
            if name not in self._names():
                raise
            return ProjectEntry(name=name, error=f"{error.where}: {error.message}")

    def check(self, name: str) -> list[Problem]:
        """What is wrong with a project, the worst first."""
        shown = self.get_entry(name)
        if (project := shown.project) is None:
            hint = f"Put it right there, or take it out: `guild project rm {name}`."
            return [Problem(message=shown.error or "", hint=hint)]
        if not project.path.is_dir():
            hint = "Was it moved? `guild project add` in its new place knows it again. Is it gone for good? "
            hint += f"`guild project rm {name}` takes it out."
            return [Problem(message=f"there is no folder {project.path} any more", hint=hint)]
        try:
            program.check_version()
            return sorted(self._problems(project), key=lambda problem: not problem.blocks)
        except GuildError as error:
            return [Problem(message=error.message, hint=error.hint)]

    # how

    def _demand_sound(self, project: Project) -> None:
        problems = [problem for problem in self._problems(project) if problem.blocks]
        if problems:
            raise Conflict(problems[0].message, where=str(project.path), hint=problems[0].hint)

    def _problems(self, project: Project) -> list[Problem]:
        try:
            _demand_repository(project.path)
            common = program.common_directory(project.path)
        except GuildError as error:
            return [Problem(message=error.message, hint=error.hint)]
        found: list[Problem] = []
        if self._in_home(project.path):
            found.append(Problem(message="it lies in the home of Guildhall", hint="Have it elsewhere."))
        if not _has_branch(project):
            every = program.run_git(project.path, "for-each-ref", "--format=%(refname:short)", "refs/heads").text.split()
            there = [branch for branch in every if not branch.startswith(BRANCH_PREFIX)]
            message = f"there is no branch {project.branch!r} with a commit"
            hint = did_you_mean(project.branch, there) or "Commit something first: `git commit --allow-empty -m Start`."
            found.append(Problem(message=message, hint=hint))
        ref = f"refs/heads/{BRANCH_PREFIX.removesuffix('/')}"
        if program.run_git(project.path, "rev-parse", "--verify", "--quiet", ref, ok=(0, 1, 128)).code == 0:
            message = f"it has a branch {BRANCH_PREFIX[:-1]!r}, so that git can have none called {INTEGRATION}"
            hint = f"Call yours something else: `git branch -m {BRANCH_PREFIX[:-1]} NAME`."
            found.append(Problem(message=message, hint=hint))
        found += _special(project.path, common)
        for head, where in program.list_checkouts(common):
            if head == f"refs/heads/{INTEGRATION}":
                message = f"{INTEGRATION} is checked out in {where}; it is the hall's to move"
                found.append(Problem(message=message, hint=f"`git switch {project.branch}` there."))
        return found

    def _demand_free(self, name: str, folder: Path) -> None:
        others = self.list_valid()
        for other in others:
            if other.path == folder:
                hint = f"`guild project check {other.name}` says how it is."
                raise Conflict(f"this is registered already, as {other.name!r}", where=str(folder), hint=hint)
        for other in others:
            if other.name == name:
                raise Conflict(f"there is a project {name!r} already: {other.path}", hint="`--name` gives another.")
            if program.common_directory(folder) == _common_or_none(other.path):
                raise Conflict(f"this is a checkout of {other.name!r}, which is registered", where=str(folder))
        if name in self._names():
            raise Conflict(f"there is a project {name!r} already", hint="`--name` gives another.")

    def _in_home(self, folder: Path) -> bool:
        home = Path(os.path.realpath(self._home.path))
        return folder == home or home in folder.parents

    def _source(self) -> yaml.Source | None:
        return yaml.read(self._home.settings) if self._home.settings.exists() else None

    def _text(self) -> str:
        return yaml.read_text(self._home.settings) if self._home.settings.exists() else ""

    def _demand_names(self) -> None:
        source = self._source()
        data: Any = source.data if source else None
        named: Any = cast("dict[str, Any]", data).get("projects") if isinstance(data, dict) else None
        if source is not None and named is not None and not isinstance(named, dict):
            raise source.error("expected names, each with its `path:` below it", ("projects",))

    def _names(self) -> list[str]:
        source = self._source()
        data: Any = source.data if source else None
        named: Any = cast("dict[str, Any]", data).get("projects") if isinstance(data, dict) else None
        return list(cast("dict[str, Any]", named)) if isinstance(named, dict) else []

    def _project(self, name: str) -> Project:
        source = self._source()
        assert source is not None
        if not is_name(name):
            raise source.error("this cannot name a project", ("projects", name))
        entry = yaml.validate(_Entry, source, ("projects", name))
        path = Path(entry.path).expanduser()
        if not path.is_absolute():
            raise source.error("write the whole path", ("projects", name, "path"))
        if entry.branch.startswith(BRANCH_PREFIX):
            raise source.error("this is a branch of the hall's, not of yours", ("projects", name, "branch"))
        fields = entry.model_dump(exclude={"path", "branch"})
        settings = ProjectSettings(**fields)
        return Project(name=name, path=Path(os.path.realpath(path)), branch=entry.branch, settings=settings)

    def _write(self, text: str) -> None:
        replace_user_file(self._home.settings, text)


def _demand_repository(folder: Path) -> None:
    """Raises where a folder is not the top of a checkout."""
    if not folder.is_dir():
        raise NotFound("there is no such folder", where=str(folder))
    common = program.common_directory(folder)
    if program.run_git(folder, "rev-parse", "--is-bare-repository").text == "true":
        raise Conflict("this repository is bare", where=str(folder), hint="Register a checkout of it.")
    top = Path(os.path.realpath(program.run_git(folder, "rev-parse", "--show-toplevel", ok=(0, 128)).text or common))
    if top != folder:
        raise Conflict("this is not the top of a checkout", where=str(folder), hint=f"Register {top}.")


def _branch_of(folder: Path) -> str:
    """The branch that the user is on."""
    told = program.run_git(folder, "symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1)).text
    if not told:
        raise Conflict("no branch is checked out (detached HEAD)", where=str(folder), hint="Name it: `--branch NAME`.")
    if told.startswith(BRANCH_PREFIX):
        raise Conflict(f"{told} is a branch of the hall's", where=str(folder), hint="Name yours: `--branch NAME`.")
    return told


def _has_branch(project: Project) -> bool:
    if project.branch.startswith(BRANCH_PREFIX):
        return False
    ref = f"{project.ref}^{{commit}}"
    return program.run_git(project.path, "rev-parse", "--verify", "--quiet", ref, ok=(0, 1, 128)).code == 0


def _special(folder: Path, common: Path) -> list[Problem]:
    """What a repository may be that the hall cannot work with, or only with care."""
    found: list[Problem] = []
    storage = program.run_git(folder, "config", "--get", "extensions.refStorage", ok=(0, 1)).text
    if storage not in ("", "files"):
        found.append(Problem(message=f"its refs are stored as {storage!r}, which is not supported"))
    if program.run_git(folder, "config", "--get-regexp", r"^remote\..*\.promisor$", ok=(0, 1)).text:
        message = "it is a partial clone: what is not here cannot be checked out"
        found.append(Problem(message=message, hint="`git fetch --refetch --filter=blob:limit=1000g` gets the rest."))
    if (common / "shallow").exists():
        message = "it is a shallow clone: what lies further back is not known"
        found.append(Problem(message=message, hint="`git fetch --unshallow`.", blocks=False))
    if not os.access(common, os.W_OK):
        found.append(Problem(message="its git directory cannot be written", hint="Give yourself the right to."))
    return found


def _common_or_none(folder: Path) -> Path | None:
    try:
        return program.common_directory(folder)
    except GuildError:
        return None
