"""How anyone reaches a hall. The command line and the library know this and nothing behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.errors import GuildError
    from guildhall.core.events import Event
    from guildhall.core.frame import Frame
    from guildhall.memory.model import Entry as Remembered
    from guildhall.memory.model import Listing, Scope
    from guildhall.memory.provenance import Blame
    from guildhall.runs.model import Answer, Ask, Entry, Run, RunRequest
    from guildhall.runs.plan import Executes, Plan
    from guildhall.workers.model import Listed, Worker
    from guildhall.workers.trust import Pin, Seen


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `guild doctor`."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay found: how many steps it took, and the first difference, if any."""

    run: str
    steps: int
    step: int | None = None  # the journal's number of the first difference
    difference: str | None = None  # what differs, then lines with - (on record) and + (now)
    worker_gone: bool = False  # the recorded definition was used, because there is none today

    @property
    def same(self) -> bool:
        return self.difference is None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run with all that belongs to it."""

    run: Run
    asks: Sequence[Ask]
    messages: Sequence[Mapping[str, Any]]  # the conversation: role, content, calls


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A worker, what it declares and cannot be given here, and what is probably not meant."""

    worker: Worker
    problems: Sequence[GuildError]
    doubts: Sequence[str]
    plan: Plan | None = None  # None: it cannot be made, and the problems say why


@dataclass(frozen=True, kw_only=True)
class Trusting:
    """The code of a folder, or of one worker: what would be executed, by whom, and how it stands."""

    folder: Path
    code: Sequence[Executes]
    plans: Sequence[Plan]  # of the workers that would execute it
    problems: Sequence[GuildError]  # what cannot be read, and so cannot be trusted

    @property
    def open(self) -> tuple[Seen, ...]:
        """The files that a person has not trusted as they are, each once."""
        files = {seen.path: seen for code in self.code if not code.trusted for seen in code.files}
        return tuple(seen for seen in files.values() if seen.standing != "trusted")

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "trusted": not self.open,
            "code": [code.as_dict() for code in self.code],
            "workers": [plan.worker for plan in self.plans],
            "problems": [error.as_dict() for error in self.problems],
        }


class HallClient(Protocol):
    """The verbs of a hall. Embedded in this process, or in a process of its own: callers cannot tell."""

    # runs: the stream begins with run_started and ends with run_ended; leaving it early parks the run
    def run(self, request: RunRequest, frame: Frame) -> AsyncIterator[Event]: ...

    def resume(
        self,
        run: str,
        frame: Frame,
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncIterator[Event]: ...

    async def replay(self, run: str, frame: Frame) -> Replayed: ...

    async def show(self, run: str) -> Shown: ...

    async def runs(self, *, everything: bool = False) -> list[Run]: ...

    async def journal(self, run: str, after: int = -1) -> list[Entry]: ...

    # asks
    async def asks(self) -> list[Ask]: ...

    async def ask(self, ask: str) -> Ask: ...

    async def answer(self, ask: str, answer: Answer) -> Ask: ...

    # workers
    async def workers(self, frame: Frame) -> list[Listed]: ...

    async def worker(self, name: str, frame: Frame) -> Worker: ...

    async def worker_check(self, name: str, frame: Frame) -> Checked: ...

    async def worker_new(self, name: str, frame: Frame, *, force: bool = False) -> Path: ...

    async def worker_lock(self, name: str, frame: Frame) -> Worker: ...

    async def worker_unlock(self, name: str, frame: Frame) -> Worker: ...

    async def worker_promote(self, name: str, frame: Frame) -> Worker: ...

    async def worker_retire(self, name: str, frame: Frame) -> Worker: ...

    # what could happen, and what may be executed; only a person trusts: no run and no tool comes here
    async def plan(self, request: RunRequest, frame: Frame) -> Plan: ...

    async def trust_look(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> Trusting: ...

    async def trust(self, files: Sequence[Seen]) -> None: ...

    async def trust_forget(self, folder: Path) -> list[Pin]: ...

    # memory: of a worker's own scope, and of the project that a worker belongs to, with the worker's name
    async def memory_ls(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing: ...

    async def memory_show(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> Remembered: ...

    async def memory_write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> Remembered: ...

    async def memory_rm(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> Remembered: ...

    async def memory_blame(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> Blame: ...

    async def memory_revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> Remembered: ...

    # the place itself
    async def doctor(self, frame: Frame) -> list[Check]: ...

    async def settle(self) -> list[Event]: ...  # waits for what goes on in the background; what no stream has told

    async def close(self) -> None: ...
