"""Pull requests: put the work on the integration branch up for the user's review.

Without a remote or `gh`, the work gets a branch `claude/review/...` with a summary in `.lore/reviews` instead.
Does not merge and does not push by force.

Invariant: a repeated or interrupted call leads to a single review.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.redaction import Redactor
from guildhall.core.text import check_line, check_text
from guildhall.projects.commissions.model import FOLDER as COMMISSIONS
from guildhall.projects.model import INTEGRATION, Artifact, Project

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.projects.git.integration import Branches
    from guildhall.projects.git.repository import Git


REVIEWS = ".lore/reviews"
_FILES = 200  # that are listed
_LISTED = 100  # commissions


@dataclass(frozen=True, kw_only=True)
class Changes:
    """All that the user's branch lacks."""

    tip: str  # the commit of the integration branch
    files: Mapping[str, str]  # without the hall's own records: path -> numbers of added and removed lines
    completed: Sequence[str]  # a line of markdown for each completed commission

    def as_markdown(self) -> str:
        """Return the commissions and files. The names that others chose cannot end the block that they are in."""
        lines = ["## Commissions", "", *self.completed, ""] if self.completed else []
        if self.files:
            lines += ["## Files", ""]
            for path, counts in islice(self.files.items(), _FILES):
                lines.append(f"    {''.join(char if char.isprintable() else '?' for char in path)}  {counts}")
            if (more := len(self.files) - _FILES) > 0:
                lines += [f"    ... and {more:,} more"]
            lines += ["", f"The hall's own records, below {COMMISSIONS} and {REVIEWS}, are not listed."]
        return "\n".join(lines).rstrip()


def changes(project: Project, git: Git, branches: Branches) -> Changes:
    """Return what the user's branch lacks, as the branches are now."""
    tip = branches.tip(INTEGRATION)
    counted = _counted(git, branches.tip(project.branch), tip)
    records = [path for path in counted if path.startswith(f"{COMMISSIONS}/") and path.endswith(".md")]
    files = {path: one for path, one in counted.items() if not path.startswith((f"{COMMISSIONS}/", f"{REVIEWS}/"))}
    completed = [line for path in records[:_LISTED] if (line := _completed(branches, path, tip)) is not None]
    return Changes(tip=tip, files=files, completed=completed)


def _counted(git: Git, before: str, after: str) -> dict[str, str]:
    """Return the files that differ, each with the numbers of added and removed lines."""
    raw = git.run("diff", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", "-z", before, after, "--").out
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\0"):
        came, _, rest = line.partition("\t")
        went, _, path = rest.partition("\t")
        if path:
            found[path] = "binary" if came == "-" else f"+{came} -{went}"
    return found


def _completed(branches: Branches, path: str, at: str) -> str | None:
    """Return a line about the commission with this artifact, or None if it is not completed."""
    try:
        artifact = Artifact.parse((branches.read(path, at=at) or b"").decode())
    except (GuildError, UnicodeDecodeError):  # edited by hand
        return None
    id = path.removeprefix(f"{COMMISSIONS}/").removesuffix(".md")
    line = f"- `{id}` {artifact.title} ({artifact.extra.get('worker', '')})"
    return line if artifact.status == "completed" else None


REVIEW_BRANCHES = "claude/review"
_TITLE = 200
_BODY = 50_000
_RECORD = re.compile(rf"{re.escape(REVIEWS)}/(\d{{4}}-\d\d-\d\d)-(\d+)\.md")
_CAME_WITH = "Made by Guildhall from `{branch}`. Nothing is merged before you merge it."


@dataclass(frozen=True, kw_only=True)
class Review:
    """Where work waits for the user. Neither a url nor a branch: there is nothing to review."""

    project: str
    files: int = 0
    url: str | None = None  # of the pull request
    renewed: bool = False  # it was open already
    branch: str | None = None  # the local one
    summary: str | None = None  # the path of what was written about it
    why: str | None = None  # it is no pull request

    def text(self) -> str:
        """Return the result of the tool."""
        files = f"{self.files} {'file' if self.files == 1 else 'files'} beside the hall's own records"
        if self.url is not None:
            was = "was open already and is renewed" if self.renewed else "is open"
            return f"The pull request {was}: {self.url} ({files}). Only the user merges it."
        if self.branch is None:
            return f"There is nothing to review in {self.project}: the user's branch has all that is done."
        said = f"The work waits for review on the branch {self.branch} ({files}); {self.summary} says how "
        return f"{said}to look at it and how to merge it. It is no pull request: {self.why}. Only the user merges it."


class PullRequests:
    """The reviews of one project."""

    def __init__(self, project: Project, *, git: Git, branches: Branches, outward: Outward, clock: Clock) -> None:
        self._project = project
        self._git = git
        self._branches = branches
        self._outward = outward
        self._clock = clock

    def open(self, title: str, body: str) -> Review:
        """Put everything that the user's branch lacks up for review."""
        check_line("title", title.strip(), _TITLE)
        check_text("body", body, _BODY)
        redact = self._branches.redact
        title, body = redact(title.strip()), redact(body)
        self._branches.follow()  # what the user did meanwhile is in it: the review shows the work and nothing else
        found = changes(self._project, self._git, self._branches)
        if not found.files and not found.completed:
            return Review(project=self._project.name)
        if (why := self._no_pull_request()) is not None:
            return self._on_a_branch(title, body, found, why)
        return self._as_pull_request(title, body, found)

    # A pull request

    def _no_pull_request(self) -> str | None:
        """Return why a pull request is impossible, or None if it is possible."""
        remote = self._project.settings.remote
        known = self._git.theirs("remote").out.decode(errors="replace").split()
        if remote not in known:
            return f"the repository has no remote {remote!r}"
        if not self._outward.has("gh"):
            return "there is no gh here"
        asked = self._outward.gh("pr", "list", *self._listing())
        return None if asked.code == 0 else f"gh cannot be used here: {_first(asked)}"

    def _listing(self) -> tuple[str, ...]:
        base, head = f"--base={self._project.branch}", f"--head={INTEGRATION}"
        return (base, head, "--state=open", "--json=number,url", "--limit=1")

    def _as_pull_request(self, title: str, body: str, found: Changes) -> Review:
        self._push()
        text = f"{body.strip()}\n\n{found.as_markdown()}\n\n{_CAME_WITH.format(branch=INTEGRATION)}\n"
        text = self._branches.redact(text)  # what commissions are called, too
        words = (f"--title={title}", "--body-file=-")
        if (there := self._open_one()) is not None:
            self._gh("edit", str(there["number"]), *words, text=text)
            return Review(project=self._project.name, files=len(found.files), url=str(there["url"]), renewed=True)
        said = self._gh("create", f"--base={self._project.branch}", f"--head={INTEGRATION}", *words, text=text)
        made = self._open_one()
        url = str(made["url"]) if made else (said.out.split() or [""])[-1]
        return Review(project=self._project.name, files=len(found.files), url=url)

    def _push(self) -> None:
        remote = self._project.settings.remote
        pushed, where = self._outward.push(remote, INTEGRATION), str(self._project.path)
        if pushed.code and "[rejected]" in f"{pushed.out}{pushed.err}":
            message = f"{remote} has not taken {INTEGRATION}: it has commits there that are not here"
            hint = f"See `git fetch {remote}` and `git log {INTEGRATION}..{remote}/{INTEGRATION}`."
            raise Conflict(message, where=where, hint=f"Nothing is forced. {hint}")
        if pushed.code:
            raise GuildError(f"`git push {remote} {INTEGRATION}` failed: {pushed.err or pushed.out}", where=where)

    def _open_one(self) -> dict[str, Any] | None:
        """Return the open pull request, or None."""
        said = self._gh("list", *self._listing())
        try:
            found: Any = json.loads(said.out or "[]")
            return {"number": int(found[0]["number"]), "url": str(found[0]["url"])} if found else None
        except (ValueError, KeyError, IndexError, TypeError):
            raise GuildError(f"gh has listed the pull requests in a form that is not known: {said.out[:200]}") from None

    def _gh(self, verb: str, *words: str, text: str = "") -> Said:
        said = self._outward.gh("pr", verb, *words, text=text)
        if said.code:
            hint = f"{INTEGRATION} is pushed. `gh auth status` says whether gh may do this; then try again."
            raise GuildError(f"`gh pr {verb}` failed: {_first(said)}", where=str(self._project.path), hint=hint)
        return said

    # A branch of its own

    def _on_a_branch(self, title: str, body: str, found: Changes, why: str) -> Review:
        record = self._same(found.tip)
        if record is None:
            record = self._next()
            text = self._written(title, body, found, record, why)
            self._branches.write({f"{REVIEWS}/{record}.md": text.encode()}, f"Review {record}: {title}", "manager")
        branch = f"{REVIEW_BRANCHES}/{record}"
        ref = f"refs/heads/{branch}"
        if self._git.resolve(ref) is None:
            self._git.theirs("update-ref", ref, self._branches.tip(INTEGRATION), self._git.nothing)
        summary = f"{REVIEWS}/{record}.md"
        return Review(project=self._project.name, files=len(found.files), branch=branch, summary=summary, why=why)

    def _same(self, tip: str) -> str | None:
        """Return the last review if nothing has changed since: the call is repeated."""
        records = self._records(tip)
        if not records:
            return None
        name = "{}-{}".format(*records[-1])
        raw = self._branches.read(f"{REVIEWS}/{name}.md", at=tip)
        try:
            of = str(Artifact.parse((raw or b"").decode()).extra.get("commit", ""))
        except (GuildError, UnicodeDecodeError):
            return None
        if not re.fullmatch(r"[0-9a-f]{40,64}", of) or self._git.resolve(of) is None:
            return None
        is_unchanged = all(path.startswith(f"{REVIEWS}/") for path in _counted(self._git, of, tip))
        return name if is_unchanged else None

    def _records(self, at: str) -> list[tuple[str, int]]:
        found = (_RECORD.fullmatch(path) for path in self._branches.list(REVIEWS, at=at))
        return sorted((match[1], int(match[2])) for match in found if match)

    def _next(self) -> str:
        """Return the name of a new review: the day, and its number on that day."""
        day, below = self._clock.now().date().isoformat(), f"refs/heads/{REVIEW_BRANCHES}"
        taken = set(self._git.theirs("for-each-ref", "--format=%(refname)", f"{below}/").out.decode().split())
        taken |= {f"{below}/{other}-{number}" for other, number in self._records(self._branches.tip(INTEGRATION))}
        number = next(number for number in count(1) if f"{below}/{day}-{number}" not in taken)
        return f"{day}-{number}"

    def _written(self, title: str, body: str, found: Changes, record: str, why: str) -> str:
        branch, theirs = f"{REVIEW_BRANCHES}/{record}", self._project.branch
        how = [
            "## How to look at it and merge it",
            "",
            f"It waits on the branch `{branch}`, and is no pull request because {why}. In your own folder:",
            "",
            "```",
            f"git diff {theirs}...{branch}    # all that would change",
            f"git switch {theirs}",
            f"git merge {branch}    # takes it",
            f"git branch -D {branch}    # when you need it no more, or do not want it",
            "```",
        ]
        words = f"## In the manager's words\n\n{body.strip()}"
        text = "\n\n".join(part for part in ("\n".join(how), found.as_markdown(), words) if part)
        date = self._clock.now().date().isoformat()
        extra = {"commit": found.tip, "branch": branch}
        made = Artifact(title=title, date=date, status="open", tags=("review",), extra=extra, body=f"{text}\n")
        return made.render()


def _first(said: Said) -> str:
    """Return the first line of a program's error output."""
    lines = [line.strip() for line in (said.err or said.out).splitlines() if line.strip()]
    return lines[0] if lines else f"it ended with {said.code}"


_PATIENCE = 120.0  # seconds
_SAID = 2_000  # characters of what a program said that an error shows
# Where the person's things are, how they are known to others, and how other machines are reached.
_THEIRS = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSH_AUTH_SOCK", "SSH_AGENT_PID",
    "GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_HOST", "GH_CONFIG_DIR",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
})  # fmt: skip
_NOBODY_IS_ASKED = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",  # `[rejected]` of git is translated otherwise
}


@dataclass(frozen=True, kw_only=True)
class Said:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


class Outward:
    """Starts `git push` and `gh` for one project, with the user's credentials, without prompts, for at most 120 s."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the person's."""
        self._folder = folder
        theirs = {name: value for name, value in environ.items() if name in _THEIRS}
        self._environ = {**theirs, **_NOBODY_IS_ASKED}
        self._redacted = Redactor(theirs)

    def has(self, program: str) -> bool:
        """Return True if the user has the program."""
        return shutil.which(program, path=self._environ.get("PATH", "")) is not None

    def push(self, remote: str, branch: str) -> Said:
        """Push one branch under its own name, without force and without hooks."""
        ref = f"refs/heads/{branch}"
        off = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "push.gpgSign=false")
        flags = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no")
        return self._run("git", *off, "push", *flags, "--", remote, f"{ref}:{ref}")

    def gh(self, *words: str, text: str = "") -> Said:
        """GitHub's own program. `text` is what it reads."""
        return self._run("gh", *words, text=text)

    def _run(self, program: str, *words: str, text: str = "") -> Said:
        found = shutil.which(program, path=self._environ.get("PATH", ""))
        if found is None:
            raise GuildError(f"there is no {program} here")
        try:
            process = subprocess.Popen(
                [found, *words],
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GuildError(f"{program} cannot be started: {error.strerror}", where=found) from None
        with process:
            try:
                out, err = process.communicate(text.encode(), timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
                message = f"`{program} {words[0]}` did not end within {_PATIENCE:.0f} s"
                raise GuildError(message, hint="Is the other side reachable? Try again.") from None
        said = self._redacted(err.decode(errors="replace")).strip()
        shown = said if len(said) <= _SAID else f"...{said[-_SAID:]}"
        return Said(code=process.returncode, out=out.decode(errors="replace"), err=shown)
