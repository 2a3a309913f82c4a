"""`guild test [FILE|DIR ...]`: runs the tests of a project on copies of the project and prints the differences.

With --update, the differences are written to the test file. `guild test add RUN [NAME]` records a new test. Does not
execute tests (see `hall.testrun`).
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import resolve_run
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.commands.runs.script import write_script
from guildhall.cli.short_ids import read_id
from guildhall.core.errors import InvalidFile, NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.core.paths import project_root
from guildhall.hall.testrun.files import SUFFIXES, TESTS, tests_in

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.model import TestResult

_HINT = "Pass a test file (a script with a `test:` section) or a folder of tests."


@command(
    argument("paths", metavar="FILE|DIR", nargs="*", help="files with a test (default: tests/ of this project)"),
    argument("-k", "--keyword", metavar="WORD", default="", help="only files with this word in their path"),
    argument("--update", action="store_true", help="write the differences to the test files"),
    JSON,
)
async def test(ctx: Context) -> int:
    keyword, screen = ctx.args.keyword, ctx.screen
    files = [file for file in _files(ctx.args.paths) if keyword.lower() in str(file).lower()]
    if not files:
        named = f" with {keyword!r} in their path" if keyword else ""
        raise NotFound(f"no tests found{named}", hint="Record a test: guild test add RUN")
    client = await ctx.connect("here")
    results: list[TestResult] = []
    async with aclosing(client.runs.test(files, update=ctx.args.update)) as stream:
        async for tested in stream:
            results.append(tested)
            if not ctx.as_json:
                _print(tested, screen)
    failed = sum(not tested.passed for tested in results)
    seconds = sum(tested.seconds for tested in results)
    counts = {"passed": len(results) - failed, "failed": failed, "seconds": round(seconds, 3)}
    text = f"{len(results) - failed} passed, {failed} failed in {seconds:.1f} s"
    ctx.print({"tests": [_as_dict(tested) for tested in results], **counts}, text)
    await ctx.trust_own_files([tested.trusted for tested in results if tested.trusted])
    return exit_codes.FAILED if failed else exit_codes.DONE


@command(
    argument("run", metavar="ID|TARGET", type=read_id, help="the id of a run; @workflow:tag"),
    argument("name", metavar="NAME", nargs="?", help="the name of the test (default: the worker of the run)"),
    argument("--force", action="store_true", help="overwrite an existing file"),
    JSON,
)
async def add(ctx: Context) -> None:
    client = await ctx.connect("read")
    run = await resolve_run(ctx.args.run, ctx)
    details = await client.runs.get(run)
    if (kind := details.run.kind) in ("job", "commission", "meeting"):
        hint = (
            f"Write its answers as a script without a test: guild script {run} --out scripts/{details.run.worker}.yaml"
        )
        raise UsageError(f"cannot make a test from {run}: tests cannot start the run of a {kind}", hint=hint)
    name = ctx.args.name or details.run.worker
    if not is_name(name):
        raise UsageError(f"invalid test name {name[:60]!r}", hint="Use letters, digits, `-` and `_`.")
    await write_script(ctx, run, Path(TESTS) / f"{name}.yaml", force=ctx.args.force)


def _files(named: list[str]) -> list[Path]:
    """Return the named files, and the test files in named folders."""
    found: dict[Path, None] = {}
    for name in named or [str(project_root(Path.cwd()) / TESTS)]:
        path = Path(name).expanduser()
        if path.is_dir():
            found.update(dict.fromkeys(tests_in(path)))
        elif path.is_file() and path.suffix in (*SUFFIXES, ".json"):
            found[path] = None
        elif path.exists():
            problem = "not a test file: the name must end in .yaml" if path.is_file() else "not a regular file"
            raise InvalidFile(problem, where=str(path), hint=_HINT)
        elif named:
            raise NotFound(f"file or folder not found: {name!r}", hint=_HINT)
    here, paths = Path.cwd(), [path.absolute() for path in found]
    return [path.relative_to(here) if path.is_relative_to(here) else path for path in paths]


def _print(tested: TestResult, screen: Screen) -> None:
    mark = "updated" if tested.updated else "ok" if tested.passed else "FAILED"
    screen.result(f"{mark:<7} {tested.file}")
    if tested.passed and not tested.updated:
        return
    for one in tested.deviations:
        text = "\n".join(f"    {line}" for line in one.text.splitlines())
        run = f", run {one.run}" if one.run and one.run > 1 else ""
        answer = f", model call {one.answer}" if one.answer else ""
        place = "" if one.worker is None else f"{one.worker}{run}{answer}: "
        screen.result(f"  {place}{text.lstrip(' ')}")


def _as_dict(tested: TestResult) -> dict[str, Any]:
    data = asdict(tested)
    del data["trusted"]
    return {**data, "file": str(tested.file), "seconds": round(tested.seconds, 3), "passed": tested.passed}
