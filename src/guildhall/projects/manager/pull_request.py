"""Puts work that is done up for review: from the integration branch to the user's. Nothing here ever merges.

With a remote and `gh` it is a pull request: the branch is pushed, the request is made, or made again as it should be if
it is open already. Without one of them it is a branch of its own beside a written summary. Either way a call that is
made twice, or was cut off, leads to the same one review.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.text import check_line, check_text
from guildhall.projects.artifact import Artifact
from guildhall.projects.manager.review import REVIEWS, as_lines, changes, only_records_between
from guildhall.projects.model import INTEGRATION

if TYPE_CHECKING:
    from guildhall.core.clock import Clock
    from guildhall.projects.branches import Branches
    from guildhall.projects.git import Git
    from guildhall.projects.manager.outward import Outward, Said
    from guildhall.projects.manager.review import Changes
    from guildhall.projects.model import Project

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
        """What whoever asked for it is told."""
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
        """Puts all that the user's branch lacks up for review."""
        _check(title, body)
        redact = self._branches.redact
        title, body = redact(title.strip()), redact(body)
        self._branches.follow()  # what the user did meanwhile is in it: the review shows the work and nothing else
        found = changes(self._project, self._git, self._branches)
        if not found.any:
            return Review(project=self._project.name)
        if (why := self._no_pull_request()) is not None:
            return self._on_a_branch(title, body, found, why)
        return self._as_pull_request(title, body, found)

    # A pull request

    def _no_pull_request(self) -> str | None:
        """Why there can be none; None: there can be one."""
        remote = self._project.settings.remote
        known = self._git.theirs("remote").out.decode(errors="replace").split()
        if remote not in known:
            return f"the repository has no remote {remote!r}"
        if not self._outward.has("gh"):
            return "there is no gh here"
        asked = self._outward.gh(*self._listing())
        return None if asked.code == 0 else f"gh cannot be used here: {_first(asked)}"

    def _listing(self) -> tuple[str, ...]:
        base, head = f"--base={self._project.branch}", f"--head={INTEGRATION}"
        return ("pr", "list", base, head, "--state=open", "--json=number,url", "--limit=1")

    def _as_pull_request(self, title: str, body: str, found: Changes) -> Review:
        self._push()
        text = f"{body.strip()}\n\n{as_lines(found)}\n\n{_CAME_WITH.format(branch=INTEGRATION)}\n"
        text = self._branches.redact(text)  # what commissions are called, too
        words = (f"--title={title}", "--body-file=-")
        if (there := self._open_one()) is not None:
            self._told("edit", self._outward.gh("pr", "edit", str(there["number"]), *words, text=text))
            return Review(project=self._project.name, files=len(found.files), url=str(there["url"]), renewed=True)
        where = (f"--base={self._project.branch}", f"--head={INTEGRATION}")
        said = self._told("create", self._outward.gh("pr", "create", *where, *words, text=text))
        made = self._open_one()
        url = str(made["url"]) if made else (said.out.split() or [""])[-1]
        return Review(project=self._project.name, files=len(found.files), url=url)

    def _push(self) -> None:
        remote = self._project.settings.remote
        pushed = self._outward.push(remote, INTEGRATION)
        if pushed.code == 0:
            return
        rejected = "[rejected]" in f"{pushed.out}{pushed.err}"
        hint = f"See `git fetch {remote}` and `git log {INTEGRATION}..{remote}/{INTEGRATION}`."
        if rejected:
            message = f"{remote} has not taken {INTEGRATION}: it has commits there that are not here"
            raise Conflict(message, where=str(self._project.path), hint=f"Nothing is forced. {hint}")
        said = pushed.err or pushed.out
        raise GuildError(f"`git push {remote} {INTEGRATION}` failed: {said}", where=str(self._project.path))

    def _open_one(self) -> dict[str, Any] | None:
        """The pull request that is open already."""
        said = self._told("list", self._outward.gh(*self._listing()))
        try:
            found: Any = json.loads(said.out or "[]")
            return {"number": int(found[0]["number"]), "url": str(found[0]["url"])} if found else None
        except (ValueError, KeyError, IndexError, TypeError):
            raise GuildError(f"gh has listed the pull requests in a form that is not known: {said.out[:200]}") from None

    def _told(self, verb: str, said: Said) -> Said:
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
        """The last review, if nothing has changed since: it was asked for before, or cut off."""
        records = self._records(tip)
        if not records:
            return None
        name = "{}-{}".format(*records[-1])
        raw = self._branches.read(f"{REVIEWS}/{name}.md", at=tip)
        try:
            of = str(Artifact.parse((raw or b"").decode()).extra.get("commit", ""))
        except (GuildError, UnicodeDecodeError):
            return None
        known = re.fullmatch(r"[0-9a-f]{40,64}", of) and self._git.resolve(of) is not None
        return name if known and only_records_between(self._git, of, tip) else None

    def _records(self, at: str) -> list[tuple[str, int]]:
        found = (_RECORD.fullmatch(path) for path in self._branches.list(REVIEWS, at=at))
        return sorted((match[1], int(match[2])) for match in found if match)

    def _next(self) -> str:
        """The name of a new one: the day, and which of that day it is."""
        day = self._clock.now().date().isoformat()
        listed = self._git.theirs("for-each-ref", "--format=%(refname)", f"refs/heads/{REVIEW_BRANCHES}/").out.decode()
        taken = set(listed.split()) | {f"refs/heads/{REVIEW_BRANCHES}/{day}-{number}" for day, number in self._all()}
        number = 1
        while f"refs/heads/{REVIEW_BRANCHES}/{day}-{number}" in taken:
            number += 1
        return f"{day}-{number}"

    def _all(self) -> list[tuple[str, int]]:
        return self._records(self._branches.tip(INTEGRATION))

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
        text = "\n\n".join(part for part in ("\n".join(how), as_lines(found), words) if part)
        date = self._clock.now().date().isoformat()
        extra = {"commit": found.tip, "branch": branch}
        made = Artifact(title=title, date=date, status="open", tags=("review",), extra=extra, body=f"{text}\n")
        return made.render()


def _check(title: str, body: str) -> None:
    check_line("title", title.strip(), _TITLE)
    check_text("body", body, _BODY)


def _first(said: Said) -> str:
    """The first line of what a program complained about."""
    lines = [line.strip() for line in (said.err or said.out).splitlines() if line.strip()]
    return lines[0] if lines else f"it ended with {said.code}"
