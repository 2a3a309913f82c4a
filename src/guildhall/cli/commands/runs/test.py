"""`guild test [FILE|DIR ...]`: runs the recorded tests of a project on copies of it and prints the differences.

With --update, a differing test is recorded again. Does not record a new test (see `cli.commands.runs.script`).
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import InvalidFile, NotFound
from guildhall.core.paths import project_root
from guildhall.hall.testrun.files import SUFFIXES, TESTS, tests_in

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.model import TestResult

_HINT = "Name a script with a `test:`, or its folder."


@command(
    argument("paths", metavar="FILE|DIR", nargs="*", help="scripts with a test; default: tests/ of here"),
    argument("-k", "--keyword", metavar="WORD", default="", help="only files with this word in their path"),
    argument("--update", action="store_true", help="where something differs, record what is so now"),
    JSON,
)
async def test(ctx: Context) -> int:
    keyword, screen = ctx.args.keyword, ctx.screen
    files = [file for file in _files(ctx.args.paths) if keyword.lower() in str(file).lower()]
    if not files:
        named = f" with {keyword!r} in their path" if keyword else ""
        hint = f"A test is a script with `test:` in {TESTS}/: guild script RUN --out {TESTS}/NAME.yaml"
        raise NotFound(f"there are no tests here{named}", hint=hint)
    client = await ctx.connect("here")
    done: list[TestResult] = []
    async with aclosing(client.runs.test(files, update=ctx.args.update)) as results:
        async for tested in results:
            done.append(tested)
            if not ctx.args.json:
                _print(tested, screen)
    failed = sum(not tested.passed for tested in done)
    seconds = sum(tested.seconds for tested in done)
    counts = {"passed": len(done) - failed, "failed": failed, "seconds": round(seconds, 3)}
    text = f"{len(done) - failed} passed, {failed} failed in {seconds:.1f} s"
    ctx.print({"tests": [_as_dict(tested) for tested in done], **counts}, text)
    await ctx.trust_own_files([tested.trusted for tested in done if tested.trusted])
    return exit_codes.FAILED if failed else exit_codes.DONE


def _files(named: list[str]) -> list[Path]:
    """Return the files that are named, and of a folder those that have a test in them."""
    found: dict[Path, None] = {}
    for name in named or [str(project_root(Path.cwd()) / TESTS)]:
        path = Path(name).expanduser()
        if path.is_dir():
            found.update(dict.fromkeys(tests_in(path)))
        elif path.is_file() and path.suffix in (*SUFFIXES, ".json"):
            found[path] = None
        elif path.exists():
            wrong = "this is no script: its name must end in .yaml" if path.is_file() else "this is not a regular file"
            raise InvalidFile(wrong, where=str(path), hint=_HINT)
        elif named:
            raise NotFound(f"there is no file or folder {name!r}", hint=_HINT)
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
        answer = f", before answer {one.answer}" if one.answer else ""
        place = "" if one.worker is None else f"{one.worker}{run}{answer}: "
        screen.result(f"  {place}{text.lstrip(' ')}")


def _as_dict(tested: TestResult) -> dict[str, Any]:
    data = asdict(tested)
    del data["trusted"]
    return {**data, "file": str(tested.file), "seconds": round(tested.seconds, 3), "passed": tested.passed}
