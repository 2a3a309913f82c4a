"""Pull requests: submit the work on the integration branch for the user's review.

Without a remote or `gh`, the review is a branch `claude/review/...` with a summary in `.lore/reviews` of the records.
Does not merge and does not force a push.

Invariant: a repeated call updates the open review.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.redaction import Redactor
from guildhall.core.text_checks import check_line, check_text
from guildhall.projects.commissions.model import artifact_path, parse_checkout_name
from guildhall.projects.model import INTEGRATION, Artifact, Project

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.repository import Git


REVIEWS = ".lore/reviews"
_MAX_FILES = 200  # in a listing
_MAX_COMMISSIONS = 100


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes of the integration branch that the user's branch does not contain."""

    tip: str  # commit of the integration branch
    files: Mapping[str, str]  # path -> numbers of added and removed lines
    completed: Sequence[str]  # a line of Markdown for each completed commission

    def as_markdown(self) -> str:
        """Return the commissions and files. Unprintable characters of paths are replaced."""
        lines = ["## Commissions", "", *self.completed, ""] if self.completed else []
        if self.files:
            lines += ["## Files", ""]
            for path, counts in islice(self.files.items(), _MAX_FILES):
                lines.append(f"    {''.join(char if char.isprintable() else '?' for char in path)}  {counts}")
            if (omitted := len(self.files) - _MAX_FILES) > 0:
                lines += [f"    ... and {omitted:,} more"]
        return "\n".join(lines).rstrip()


def find_changes(project: Project, branches: Branches) -> Changes:
    tip = branches.tip(INTEGRATION)
    before = branches.tip(project.branch)
    files = {
        path: "binary" if lines is None else f"+{lines[0]} -{lines[1]}"
        for path, lines in branches.count_lines(before, tip).items()
    }
    squashed = [branch for branch, paths in branches.list_squashed(before, tip) if not paths.isdisjoint(files)]
    lines = (_completed_line(branches, branch) for branch in squashed[:_MAX_COMMISSIONS])
    return Changes(tip=tip, files=files, completed=[line for line in lines if line is not None])


def _completed_line(branches: Branches, branch: str) -> str | None:
    """Return the line of the commission with this branch, or None for a meeting or without an artifact."""
    id = parse_checkout_name(branch.rpartition("/")[2])
    try:
        artifact = Artifact.parse((branches.read(artifact_path(id)) or b"").decode()) if id is not None else Artifact()
    except (GuildError, UnicodeDecodeError):  # edited by hand
        return None
    return f"- `{id}` {artifact.title} ({artifact.extra.get('worker', '')})" if artifact.title else None


REVIEW_BRANCHES = "claude/review"
_MAX_TITLE_CHARS = 200
_MAX_BODY_CHARS = 50_000
_RECORD = re.compile(rf"{re.escape(REVIEWS)}/(\d{{4}}-\d\d-\d\d)-(\d+)\.md")
_FOOTER = f"Created by Guildhall from `{INTEGRATION}`. Nothing is merged until you merge it."


@dataclass(frozen=True, kw_only=True)
class Review:
    """A pull request or a review branch, or neither if the user's branch contains all work."""

    project: str
    files: int = 0
    url: str | None = None  # of the pull request
    is_updated: bool = False  # True if the pull request was open before
    branch: str | None = None  # the review branch
    summary: str | None = None  # path of the artifact that describes the review branch
    reason: str | None = None  # why a pull request is not possible

    def text(self) -> str:
        """Return the result of the tool."""
        files = f"{self.files} {'file' if self.files == 1 else 'files'}"
        if self.url is not None:
            verb = "Updated" if self.is_updated else "Opened"
            return f"{verb} the pull request {self.url} ({files}). Only the user merges it."
        if self.branch is None:
            return f"Nothing to review in {self.project}: the user's branch contains all completed work."
        return (
            f"Created the review branch {self.branch} ({files}). A pull request is not possible: {self.reason}. "
            f"Its summary, with the commands that inspect and merge it: `git show guildhall/records:{self.summary}`. "
            "Only the user merges it."
        )


class PullRequests:
    """The reviews of one project."""

    def __init__(self, project: Project, *, git: Git, branches: Branches, programs: UserPrograms, clock: Clock) -> None:
        self._project = project
        self._git = git
        self._branches = branches
        self._programs = programs
        self._clock = clock

    def open(self, title: str, body: str) -> Review:
        """Open or update the review of everything that the user's branch does not contain."""
        check_line("title", title.strip(), _MAX_TITLE_CHARS)
        check_text("body", body, _MAX_BODY_CHARS)
        redact = self._branches.redact
        title, body = redact(title.strip()), redact(body)
        self._branches.update()  # so that the review does not show reversed commits of the user
        changes = find_changes(self._project, self._branches)
        if not changes.files:
            return Review(project=self._project.name)
        if (reason := self._obstacle()) is not None:
            return self._open_branch(title, body, changes, reason)
        return self._open_pull_request(title, body, changes)

    # pull request

    def _obstacle(self) -> str | None:
        """Return why a pull request is not possible, or None if it is."""
        remote = self._project.settings.remote
        remotes = self._git.run_in_repository("remote").stdout.decode(errors="replace").split()
        if remote not in remotes:
            return f"the repository has no remote {remote!r}"
        if not self._programs.is_installed("gh"):
            return "gh is not installed"
        listing = self._programs.gh("pr", "list", *self._list_options())
        return None if listing.code == 0 else f"gh cannot list pull requests: {_error_line(listing)}"

    def _list_options(self) -> tuple[str, ...]:
        base, head = f"--base={self._project.branch}", f"--head={INTEGRATION}"
        return (base, head, "--state=open", "--json=number,url", "--limit=1")

    def _open_pull_request(self, title: str, body: str, changes: Changes) -> Review:
        self._push()
        text = self._branches.redact(f"{body.strip()}\n\n{changes.as_markdown()}\n\n{_FOOTER}\n")
        options = (f"--title={title}", "--body-file=-")
        name, files = self._project.name, len(changes.files)
        if (current := self._find_open()) is not None:
            self._gh("edit", str(current["number"]), *options, text=text)
            return Review(project=name, files=files, url=str(current["url"]), is_updated=True)
        result = self._gh("create", f"--base={self._project.branch}", f"--head={INTEGRATION}", *options, text=text)
        created = self._find_open()
        url = str(created["url"]) if created else (result.stdout.split() or [""])[-1]
        return Review(project=name, files=files, url=url)

    def _push(self) -> None:
        remote = self._project.settings.remote
        result, where = self._programs.push(remote, INTEGRATION), str(self._project.path)
        if result.code and "[rejected]" in f"{result.stdout}{result.stderr}":
            message = f"cannot push {INTEGRATION}: {remote} has commits that are missing here"
            hint = f"Inspect them: `git fetch {remote}`, then `git log {INTEGRATION}..{remote}/{INTEGRATION}`."
            raise Conflict(message, where=where, hint=hint)
        if result.code:
            message = f"`git push {remote} {INTEGRATION}` failed: {result.stderr or result.stdout}"
            raise GuildError(message, where=where, hint=f"Check the access to {remote}, then try again.")

    def _find_open(self) -> dict[str, Any] | None:
        output = self._gh("list", *self._list_options()).stdout
        try:
            found: Any = json.loads(output or "[]")
            return {"number": int(found[0]["number"]), "url": str(found[0]["url"])} if found else None
        except (ValueError, KeyError, IndexError, TypeError):
            message = f"cannot read the output of `gh pr list`: {output[:200]}"
            raise GuildError(message, hint="Update gh, then try again.") from None

    def _gh(self, verb: str, *args: str, text: str = "") -> ProgramResult:
        result = self._programs.gh("pr", verb, *args, text=text)
        if result.code:
            hint = f"{INTEGRATION} was pushed. Check the login with `gh auth status`, then try again."
            raise GuildError(f"`gh pr {verb}` failed: {_error_line(result)}", where=str(self._project.path), hint=hint)
        return result

    # review branch

    def _open_branch(self, title: str, body: str, changes: Changes, reason: str) -> Review:
        name = self._find_unchanged(changes.tip)
        if name is None:
            name = self._new_name()
            text = self._render(title, body, changes, name, reason)
            files = {f"{REVIEWS}/{name}.md": text.encode()}
            self._branches.write_records(files, f"Review {name}: {title}", "manager")
        branch, summary = f"{REVIEW_BRANCHES}/{name}", f"{REVIEWS}/{name}.md"
        ref = f"refs/heads/{branch}"
        if self._git.resolve(ref) is None:
            self._git.run_in_repository("update-ref", ref, changes.tip, self._git.null_id)
        number = len(changes.files)
        return Review(project=self._project.name, files=number, branch=branch, summary=summary, reason=reason)

    def _find_unchanged(self, tip: str) -> str | None:
        """Return the name of the last review if nothing has changed since, else None."""
        names = self._list_names()
        if not names:
            return None
        name = "{}-{}".format(*names[-1])
        data = self._branches.read(f"{REVIEWS}/{name}.md")
        try:
            commit = str(Artifact.parse((data or b"").decode()).extra.get("commit", ""))
        except (GuildError, UnicodeDecodeError):
            return None
        if not re.fullmatch(r"[0-9a-f]{40,64}", commit) or self._git.resolve(commit) is None:
            return None
        return None if self._branches.count_lines(commit, tip) else name

    def _list_names(self) -> list[tuple[str, int]]:
        """Return the reviews by day and number, oldest first."""
        matches = (_RECORD.fullmatch(path) for path in self._branches.list_files(REVIEWS))
        return sorted((match[1], int(match[2])) for match in matches if match)

    def _new_name(self) -> str:
        """Return the name of a new review: the day, and its number on that day."""
        day, prefix = self._clock.now().date().isoformat(), f"refs/heads/{REVIEW_BRANCHES}"
        output = self._git.run_in_repository("for-each-ref", "--format=%(refname)", f"{prefix}/").stdout
        used = set(output.decode().split())
        used |= {f"{prefix}/{other}-{number}" for other, number in self._list_names()}
        number = next(number for number in count(1) if f"{prefix}/{day}-{number}" not in used)
        return f"{day}-{number}"

    def _render(self, title: str, body: str, changes: Changes, name: str, reason: str) -> str:
        branch, user_branch = f"{REVIEW_BRANCHES}/{name}", self._project.branch
        commands = [
            "## How to inspect and merge it",
            "",
            f"The work is on the branch `{branch}`. A pull request is not possible: {reason}. In your own folder:",
            "",
            "```",
            f"git diff {user_branch}...{branch}    # all changes",
            f"git switch {user_branch}",
            f"git merge {branch}",
            f"git branch -D {branch}    # after the merge, or to reject it",
            "```",
        ]
        summary = f"## Summary of the manager\n\n{body.strip()}"
        text = "\n\n".join(part for part in ("\n".join(commands), changes.as_markdown(), summary) if part)
        date = self._clock.now().date().isoformat()
        extra = {"commit": changes.tip, "branch": branch}
        return Artifact(title=title, date=date, status="open", tags=("review",), extra=extra, body=f"{text}\n").render()


def _error_line(result: ProgramResult) -> str:
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    return lines[0] if lines else f"exit code {result.code}"


_TIMEOUT_S = 120.0
_MAX_STDERR_CHARS = 2_000  # in an error
# The variables that locate the user's files, credentials and proxies.
_USER_VARIABLES = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSH_AUTH_SOCK", "SSH_AGENT_PID",
    "GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_HOST", "GH_CONFIG_DIR",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
})  # fmt: skip
_NO_PROMPTS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",  # otherwise git may translate `[rejected]`
}


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """The exit code and output of a program."""

    code: int
    stdout: str
    stderr: str


class UserPrograms:
    """Runs `git push` and `gh` for one project, with the user's credentials, without prompts, for at most 120 s."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the user's environment."""
        self._folder = folder
        variables = {name: value for name, value in environ.items() if name in _USER_VARIABLES}
        self._environ = {**variables, **_NO_PROMPTS}
        self._redact = Redactor(variables)

    def is_installed(self, program: str) -> bool:
        return shutil.which(program, path=self._environ.get("PATH", "")) is not None

    def push(self, remote: str, branch: str) -> ProgramResult:
        """Push one branch under its own name, without force and without hooks."""
        ref = f"refs/heads/{branch}"
        settings = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "push.gpgSign=false")
        options = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no")
        return self._run("git", *settings, "push", *options, "--", remote, f"{ref}:{ref}")

    def gh(self, *args: str, text: str = "") -> ProgramResult:
        """Run the GitHub command line, with `text` on stdin."""
        return self._run("gh", *args, text=text)

    def _run(self, program: str, *args: str, text: str = "") -> ProgramResult:
        path = shutil.which(program, path=self._environ.get("PATH", ""))
        if path is None:
            raise GuildError(f"{program} is not installed", hint=f"Install {program}, then try again.")
        try:
            process = subprocess.Popen(
                [path, *args],
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GuildError(f"cannot start {program}: {error.strerror}", where=path) from None
        with process:
            try:
                out, err = process.communicate(text.encode(), timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes
                message = f"`{program} {args[0]}` timed out after {_TIMEOUT_S:.0f} s"
                raise GuildError(message, hint="Check the connection to the remote, then try again.") from None
        stderr = self._redact(err.decode(errors="replace")).strip()
        if len(stderr) > _MAX_STDERR_CHARS:
            stderr = f"...{stderr[-_MAX_STDERR_CHARS:]}"
        return ProgramResult(code=process.returncode, stdout=out.decode(errors="replace"), stderr=stderr)
