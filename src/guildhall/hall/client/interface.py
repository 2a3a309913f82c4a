"""Interface of a hall: declares fourteen services and their verbs, each verb once.

`EmbeddedHall` implements the verbs in this process. `RemoteHall` calls them over HTTP. Callers see no difference.
The signature of a verb defines its route, its request, its response and its entry in the OpenAPI document.
Does not import the types that it names: `codec` imports them when a verb is called.
Does not implement verbs: `hall.services` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.model import (
        Check,
        ClientSettings,
        Document,
        HallStatus,
        ProposalVotes,
        RunDetails,
        TestResult,
        TrustReport,
        WorkerReport,
    )
    from guildhall.jobs.model import Dispatch, Job, JobDetails, JobResult, Page
    from guildhall.members.model import ActiveJob, MemberDetails
    from guildhall.memory.model import EntryHistory, Listing, MemoryEntry, Scope
    from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus
    from guildhall.projects.model import Problem, Project, ProjectEntry
    from guildhall.room.document_stores import DocumentInfo as DocumentListed
    from guildhall.room.model import Message
    from guildhall.runs.model import Answer, Ask, Run, RunRequest
    from guildhall.runs.plan.model import Plan
    from guildhall.runs.record.entries import Entry, Payload
    from guildhall.runs.replay.fork import ForkResult
    from guildhall.runs.replay.replay import ReplayResult
    from guildhall.workers.model import (
        AddedPackage,
        FileTrust,
        PackageDetails,
        PackageKind,
        PackageListing,
        Pin,
        Worker,
        WorkerListing,
    )
    from guildhall.workflow.instance import Schedule, SendResult, Start, WorkflowSummary
    from guildhall.workflow.plan import WorkflowPlan
    from guildhall.workflow.target import Target


class Runs(Protocol):
    """Runs: start, follow, stop, inspect and repeat them."""

    def run(self, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        """Start a run and stream its events, from `run_started` to `run_ended`.

        Closing the stream early pauses the run. Raise NotTrusted if code of the worker has not been trusted.
        """
        ...

    def resume(
        self,
        run: str,
        frame: Frame,
        *,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        """Resume a run that is waiting, paused, interrupted or stopped at a limit, and stream its events.

        The given amounts raise the limits of the run. Closing the stream early pauses the run.
        """
        ...

    def follow(self, run: str, frame: Frame) -> AsyncGenerator[Event]:
        """Stream `run_started` and then the events of a live run from now on, until `run_ended`.

        The stream is empty if the run is not live. Closing it early does not affect the run.
        """
        ...

    async def pause(self, run: str) -> None:
        """Pause a live run until it is resumed. Do nothing if the run is not live."""
        ...

    async def stop(self, run: str) -> Sequence[str]:
        """Cancel a run or a workflow with its child runs. Return the ids of the cancelled runs."""
        ...

    async def replay(self, run: str, frame: Frame) -> ReplayResult:
        """Replay a recorded run without executing anything, and return the differences from its journal."""
        ...

    async def fork(self, run: str, at: int, frame: Frame, *, model: str | None = None) -> ForkResult:
        """Create a paused run that repeats a recorded run up to the journal entry `at`, optionally for another model.

        `resume` continues the new run.
        """
        ...

    async def script(self, run: str) -> str:
        """Return a recorded run and its child runs as a YAML model script with a test case."""
        ...

    def test(self, files: Sequence[Path], *, update: bool = False) -> AsyncGenerator[TestResult]:
        """Execute test files in temporary copies of their projects and stream one result for each file.

        `files` are absolute paths. `update` rewrites the expectations in files that deviate. Closing the stream early
        skips the remaining files.
        """
        ...

    async def get(self, run: str) -> RunDetails:
        """Return a run with its child runs, asks and conversation."""
        ...

    async def list(self, *, everything: bool = False, called: bool = False) -> Sequence[Run]:
        """Return the 50 newest runs, newest first. `everything` returns all runs, `called` includes child runs."""
        ...

    async def journal(self, run: str, after: int = -1) -> Sequence[Entry[Payload]]:
        """Return the journal entries of a run that follow the entry number `after`."""
        ...

    async def plan(self, request: RunRequest, frame: Frame) -> Plan:
        """Return the plan of a run: its possible reads, writes, programs and costs."""
        ...


class Asks(Protocol):
    """Asks: decisions and questions of runs that wait for the user."""

    async def list(self) -> Sequence[Ask]:
        """Return all open asks, oldest first."""
        ...

    async def get(self, ask: str) -> Ask:
        """Return an ask, open or closed."""
        ...

    async def answer(self, ask: str, answer: Answer) -> Ask:
        """Answer an open ask, and resume its run if the run belongs to a job, commission, meeting or workflow.

        Raise Conflict if the ask is closed, UsageError if the choice is not one of the ask's choices.
        """
        ...


class Workers(Protocol):
    """Workers: the worker files that a request can use, and their lifecycle."""

    async def list(self, frame: Frame) -> Sequence[WorkerListing]:
        """Return all workers of the frame's project, of the user and of packages. Invalid workers have an error."""
        ...

    async def get(self, name: str, frame: Frame) -> Worker:
        """Return a worker by its name, `scope/name` or file."""
        ...

    async def check(self, name: str, frame: Frame) -> WorkerReport:
        """Validate a worker and return its problems, doubts and plan."""
        ...

    async def create(self, name: str, frame: Frame, *, force: bool = False) -> Path:
        """Create a worker file from the template in the frame's project and return its path.

        Raise Conflict if the file exists, unless `force` is set.
        """
        ...

    async def lock(self, name: str, frame: Frame) -> Worker:
        """Lock a worker file, so that a change of it is refused until it is unlocked."""
        ...

    async def unlock(self, name: str, frame: Frame) -> Worker:
        """Unlock a worker file."""
        ...

    async def promote(self, name: str, frame: Frame) -> Worker:
        """Set the status of a draft worker to active."""
        ...

    async def retire(self, name: str, frame: Frame) -> Worker:
        """Set the status of a worker to retired. It can no longer be run."""
        ...


class Workflows(Protocol):
    """Workflows: teams of agents under a tag, their agents and schedules.

    A target without an agent is the workflow itself. Its names are those of its `project`, an absolute path. Without a
    project, they must be unique. The `workflow` of a target may also be the id of the workflow's run.
    """

    async def plan(self, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]) -> WorkflowPlan:
        """Return the plan of a workflow. `request.worker` is the path of its file."""
        ...

    def run(self, start: Start, request: RunRequest, frame: Frame) -> AsyncGenerator[Event]:
        """Start a workflow and stream the events of its run, its agents and its room, until `run_ended`.

        Closing the stream early pauses the workflow.
        """
        ...

    async def start(self, start: Start, request: RunRequest, frame: Frame) -> WorkflowSummary:
        """Start a workflow in the background. Raise UsageError if the hall ends with the calling command."""
        ...

    async def start_worker(self, request: RunRequest, frame: Frame) -> WorkflowSummary:
        """Start the request's worker as an agent of the workflow global:main of its project, in the background."""
        ...

    async def start_agent(self, target: Target) -> WorkflowSummary:
        """Restart a stopped or failed agent."""
        ...

    async def stop_agent(self, target: Target) -> Sequence[str]:
        """Stop one agent of a workflow. Return the ids of the cancelled runs."""
        ...

    async def list(self, *, over: bool = True) -> Sequence[WorkflowSummary]:
        """Return the last generation of each project, workflow and tag, newest first. `over` includes ended ones."""
        ...

    async def get(self, target: Target) -> WorkflowSummary:
        """Return a workflow with its agents."""
        ...

    async def find_by_run(self, run: str) -> WorkflowSummary:
        """Return the workflow of a run, which may be the run of one of its agents."""
        ...

    async def schedules(self, target: Target) -> Sequence[Schedule]:
        """Return the schedules of an agent, or of all agents of a workflow."""
        ...

    async def set_schedule(self, target: Target, when: str, *, prompt: str | None = None) -> Schedule:
        """Set the schedule of an agent, or the default of a workflow: `when` is an interval or a cron expression.

        `prompt` replaces the message that wakes the agent.
        """
        ...

    async def clear_schedule(self, target: Target) -> bool:
        """Remove a schedule. Return False if it did not exist."""
        ...


class Rooms(Protocol):
    """Rooms: the messages, documents and proposals of a workflow."""

    async def messages(self, run: str, *, since: int = 0) -> Sequence[Message]:
        """Return the channel messages of a workflow's generation that follow the message number `since`."""
        ...

    async def send(self, target: Target, text: str) -> SendResult:
        """Post a user message to an agent or to the whole channel."""
        ...

    async def documents(self, target: Target) -> Sequence[DocumentListed]:
        """Return the documents of a room."""
        ...

    async def read_document(self, target: Target, *, file: str | None = None) -> Document:
        """Return a document, or the room's main document if `file` is not given."""
        ...

    async def write_document(
        self, target: Target, content: str, *, file: str | None = None, base: str | None = None
    ) -> Document:
        """Create or replace a document.

        With `base`, the digest of the version that was read, raise Conflict if the document has changed since.
        """
        ...

    async def append_document(self, target: Target, content: str, *, file: str | None = None) -> Document:
        """Append text to a document."""
        ...

    async def proposals(self, target: Target) -> Sequence[ProposalVotes]:
        """Return the proposals of a room with their votes."""
        ...


class Jobs(Protocol):
    """Jobs: tasks of workers and members that run in the background and end with a result."""

    async def dispatch(self, worker: str, dispatch: Dispatch, frame: Frame) -> Job:
        """Start a job of a worker or of a member in the background. The id of a member's job is `member/job`.

        Raise Conflict if a worker and a member have the name.
        """
        ...

    async def list(
        self,
        *,
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        worker: str | None = None,
        member: str | None = None,
        frame: Frame | None = None,
    ) -> Page:
        """Return a page of jobs, newest first.

        `filter` is a glob for the whole description; `cursor` is the `next` of the previous page. `member` selects the
        jobs of a member instead, which `frame` finds.
        """
        ...

    async def get(self, id: str, frame: Frame | None = None) -> JobDetails:
        """Return a job with its progress, questions and decisions.

        The id of a member's job is MEMBER/JOB; `frame` finds the member. Jobs of the hall do not need it.
        """
        ...

    async def result(self, id: str, frame: Frame | None = None) -> JobResult:
        """Return the result of a completed job. Raise NotFinished if the job is not completed."""
        ...

    async def cancel(self, id: str, frame: Frame | None = None) -> Job:
        """Cancel a job and return it. A job that has ended stays as it is."""
        ...

    async def delete(self, id: str, *, force: bool = False, frame: Frame | None = None) -> None:
        """Delete a job that has ended. A failed job needs `force`."""
        ...

    async def resume(self, id: str, frame: Frame, *, max_turns: int | None = None, budget: float | None = None) -> Job:
        """Resume a failed job in the background. The given amounts raise its limits.

        `runs.resume` with the run of a job of the hall resumes the job and streams its events.
        """
        ...

    async def answer(self, id: str, text: str, frame: Frame | None = None, *, question: str | None = None) -> str:
        """Answer an open question of a job and return the question, if it is known.

        `question` selects a question by its text if several are open.
        """
        ...


class Members(Protocol):
    """Members: programs that serve tools and accept jobs.

    `tools` and `call` start the member if it is trusted and not running. The hall does not record the jobs of a member:
    the verbs of `jobs` request them from the member.
    """

    async def list(self, frame: Frame) -> Sequence[MemberDetails]:
        """Return all members of the frame's project and of the user. Invalid members have an error."""
        ...

    async def get(self, name: str, frame: Frame) -> MemberDetails:
        """Return a member."""
        ...

    async def create(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        """Create a member from a template in the frame's project and return its folder."""
        ...

    async def tools(self, name: str, frame: Frame) -> Sequence[Mapping[str, Any]]:
        """Return the tools of a member as a model sees them."""
        ...

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        """Call a tool of a member and return the tool result."""
        ...

    async def stop(self, name: str, frame: Frame) -> MemberDetails:
        """Stop a member. The next use starts it again, and its jobs continue then."""
        ...

    async def restart(self, name: str, frame: Frame) -> MemberDetails:
        """Stop a member and start it with the variables of the frame. Return it when it is ready."""
        ...

    async def active_jobs(self) -> Sequence[ActiveJob]:
        """Return the running jobs of the started members, and the ended jobs of members with open questions."""
        ...


class Projects(Protocol):
    """Projects: the registered repositories. No verb changes a branch or a file of a working tree."""

    async def list(self) -> Sequence[ProjectEntry]:
        """Return all projects. Invalid projects have an error."""
        ...

    async def add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project:
        """Register the git repository at an absolute path. The default name is that of its folder."""
        ...

    async def remove(self, name: str) -> ProjectEntry:
        """Remove a project from the register. Raise Conflict if it has unfinished work or checkouts."""
        ...

    async def check(self, name: str) -> Sequence[Problem]:
        """Return the problems of a project's entry, repository and branches."""
        ...


class Packages(Protocol):
    """Packages: workers, toolboxes and templates that the user has installed."""

    async def list(self) -> Sequence[PackageListing]:
        """Return the installed packages. Invalid packages have an error."""
        ...

    async def get(self, name: str, frame: Frame) -> PackageDetails:
        """Return an installed package with its tools and problems. A confined child process loads its tools."""
        ...

    async def inspect(self, folder: Path) -> PackageDetails:
        """Return the content of a package folder, installed or not, without executing any of its code."""
        ...

    async def create(self, name: str, *, kind: PackageKind = "worker", template: str | None = None) -> Path:
        """Create and install a package from a template and return its folder."""
        ...

    async def add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> AddedPackage:
        """Install a package from a folder. `force` replaces an installed package of the same name.

        `seen` is the digest from `inspect`: raise Conflict if the folder has changed since.
        """
        ...

    async def remove(self, name: str) -> Path:
        """Uninstall a package and return the folder that keeps its files. Raise Conflict if it is in use."""
        ...


class Commissions(Protocol):
    """Commissions: work on a project in a checkout of its own, merged when it is completed."""

    async def create(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission:
        """Create a commission in a project, by default the project that contains the frame's folder."""
        ...

    async def edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission:
        """Change fields of a commission's draft. A commission in progress is cancelled and dispatched again."""
        ...

    async def list(self, *, project: str | None = None, status: str | None = None) -> Sequence[Commission]:
        """Return commissions in the order of their creation."""
        ...

    async def get(self, id: str) -> CommissionDetails:
        """Return a commission with its timeline, queue position and problems."""
        ...

    async def wait_idle(self, id: str, *, within: float) -> bool:
        """Wait until a commission cannot make progress without user action.

        Return False after `within` seconds, at most 60.
        """
        ...

    async def dispatch(self, id: str, frame: Frame) -> Commission:
        """Start a commission in the background, or queue it."""
        ...

    async def redispatch(self, id: str, frame: Frame) -> Commission:
        """Start a commission over from the current integration branch."""
        ...

    async def cancel(self, id: str, *, reason: str | None = None) -> Commission:
        """Cancel a commission. It can be dispatched again."""
        ...

    async def abandon(self, id: str, *, reason: str | None = None) -> Commission:
        """Cancel a commission that is not to be retried."""
        ...

    async def delete(self, id: str) -> None:
        """Delete the records of a commission that has ended."""
        ...


class Meetings(Protocol):
    """Meetings: conversations of the user with a worker in a project.

    Closing a stream early does not interrupt the response.
    """

    async def list(self, *, project: str | None = None, status: MeetingStatus | None = None) -> Sequence[Meeting]:
        """Return meetings, newest first."""
        ...

    async def get(self, id: str) -> MeetingDetails:
        """Return a meeting with its exchanges."""
        ...

    async def open(
        self,
        worker: str,
        message: str,
        frame: Frame,
        *,
        project: str | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> Meeting:
        """Create a meeting with the first user message. `join` starts the response.

        The given amounts replace limits of the worker and the budget of the settings.
        """
        ...

    def join(
        self,
        id: str,
        frame: Frame,
        *,
        messages: Sequence[str] = (),
        renew: bool = False,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        """Record user messages, then stream events until the worker has responded to every recorded message.

        The stream is empty if no response is due. `renew` starts a new session. The given amounts raise the limits of
        the meeting.
        """
        ...

    async def interrupt(self, id: str) -> None:
        """Interrupt the current response. The meeting stays open."""
        ...

    async def accept(self, id: str) -> Meeting:
        """Accept a meeting that a worker requested."""
        ...

    async def decline(self, id: str, *, reason: str | None = None) -> Meeting:
        """Decline a meeting that a worker requested."""
        ...

    async def defer(self, id: str, until: str) -> Meeting:
        """Defer a requested meeting until a date or a time."""
        ...

    async def close(self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False) -> Meeting:
        """Close a meeting, with a summary by its worker unless `summarise` is false.

        `leave_work` keeps uncommitted changes in the meeting's checkout instead of merging them.
        """
        ...

    async def delete(self, id: str) -> None:
        """Delete the records of a meeting that has ended."""
        ...


class Memory(Protocol):
    """Memory: the entries that workers keep.

    The scope `worker` requires `worker`. With the scope `project`, `worker` selects the project of its file.
    """

    async def list(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing:
        """List the entries of a scope, or of all scopes if none is given."""
        ...

    async def get(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        """Return an entry with its content."""
        ...

    async def write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> MemoryEntry:
        """Create or replace an entry in the name of the user."""
        ...

    async def remove(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        """Remove an entry and return it. Its content stays in the log."""
        ...

    async def history(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> EntryHistory:
        """Return an entry with all its logged changes."""
        ...

    async def revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> MemoryEntry:
        """Restore the content of the change `to`, or the last content that differs from the current content."""
        ...


class Trust(Protocol):
    """Trust: the code that the user permits to execute. No run and no tool can reach these verbs."""

    async def inspect(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> TrustReport:
        """Return the code that a folder, file or worker would execute, and whether it is trusted.

        The default is the frame's project.
        """
        ...

    async def untrusted_callees(self, worker: str, frame: Frame) -> Sequence[str]:
        """Return the workers that a worker may call only because of `*` and whose code is not trusted.

        Its runs start without them.
        """
        ...

    async def grant(self, files: Sequence[FileTrust]) -> None:
        """Trust files with the digests from `inspect`. A file that has changed since stays untrusted."""
        ...

    async def revoke(self, folder: Path) -> Sequence[Pin]:
        """Revoke the trust in all files below a folder and return them."""
        ...


class HallInfo(Protocol):
    """The hall itself."""

    async def hello(self, root: Path) -> ClientSettings:
        """Return which environment variables a frame from the project `root` may carry.

        A hall does not exit by itself while the connection of the call is open.
        """
        ...

    async def status(self) -> HallStatus:
        """Return the process, version, address, state and members of the hall, and its numbers of runs and clients."""
        ...

    async def doctor(self, frame: Frame) -> Sequence[Check]:
        """Check the installation: keys, programs, settings, workers, packages and members."""
        ...


class HallClient(ABC):
    """The services of a hall, and the connection to it."""

    runs: Runs
    asks: Asks
    workers: Workers
    workflows: Workflows
    rooms: Rooms
    jobs: Jobs
    members: Members
    projects: Projects
    packages: Packages
    commissions: Commissions
    meetings: Meetings
    memory: Memory
    trust: Trust
    hall: HallInfo

    @abstractmethod
    async def wait_background_work(self) -> Sequence[Event]:
        """Wait for background work of an embedded hall and return the events that no stream has delivered."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, or the embedded hall with everything that it runs."""
        ...


SERVICES: Mapping[str, type[Any]] = {name: globals()[kind] for name, kind in HallClient.__annotations__.items()}
VERBS = frozenset(
    f"{service}.{name}" for service in SERVICES for name in dir(SERVICES[service]) if not name.startswith("_")
)
