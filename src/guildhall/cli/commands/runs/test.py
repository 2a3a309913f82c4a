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
from guildhall.cli.trust_prompt import trust_own_files
from guildhall.core.errors import InvalidFile, NotFound
from guildhall.core.paths import project_root
from guildhall.hall.testrun.files import SUFFIXES, TESTS, tests_in

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client.model import Deviation, Tested


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
    done: list[Tested] = []
    stream = client.runs.test(files, update=ctx.args.update)
    async with aclosing(stream) as results:
        async for tested in results:
            done.append(tested)
            if not ctx.args.json:
                _print(tested, screen)
    failed = sum(not tested.passed for tested in done)
    seconds = sum(tested.seconds for tested in done)
    counts = {"passed": len(done) - failed, "failed": failed, "seconds": round(seconds, 3)}
    text = f"{len(done) - failed} passed, {failed} failed in {seconds:.1f} s"
    ctx.print({"tests": [_as_dict(tested) for tested in done], **counts}, text)
    await trust_own_files([tested.trusted for tested in done if tested.trusted], ctx)
    return exit_codes.FAILED if failed else exit_codes.DONE


def _files(named: list[str]) -> list[Path]:
    """The files to test. In a folder those that have a test in them; one that is named is tested, whatever it is."""
    found: dict[Path, None] = {}
    for name in named or [str(project_root(Path.cwd()) / TESTS)]:
        path = Path(name).expanduser()
        if path.is_dir():
            found.update(dict.fromkeys(tests_in(path)))
        elif path.exists():
            found[_script(path)] = None
        elif named:
            raise NotFound(f"there is no file or folder {name!r}", hint="Name a script with a `test:`, or its folder.")
    return [_near(path) for path in found]


def _script(path: Path) -> Path:
    """A file that is named, if it can be a script at all."""
    if not path.is_file() or path.suffix not in (*SUFFIXES, ".json"):
        said = "this is not a regular file" if not path.is_file() else "this is no script: its name must end in .yaml"
        raise InvalidFile(said, where=str(path), hint="Name a script with a `test:`, or its folder.")
    return path


def _near(path: Path) -> Path:
    """The path as a person would write it from here."""
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _print(tested: Tested, screen: Screen) -> None:
    mark = "updated" if tested.updated else "ok" if tested.passed else "FAILED"
    screen.result(f"{mark:<7} {tested.file}")
    if tested.passed and not tested.updated:
        return
    for deviation in tested.deviations:
        text = "\n".join(f"    {line}" for line in deviation.text.splitlines())
        screen.result(f"  {_place(deviation)}{text.lstrip(' ')}")


def _place(deviation: Deviation) -> str:
    if deviation.worker is None:
        return ""
    run = f", run {deviation.run}" if deviation.run and deviation.run > 1 else ""
    answer = f", before answer {deviation.answer}" if deviation.answer else ""
    return f"{deviation.worker}{run}{answer}: "


def _as_dict(tested: Tested) -> dict[str, Any]:
    data = asdict(tested)
    del data["trusted"]
    return {**data, "file": str(tested.file), "seconds": round(tested.seconds, 3), "passed": tested.passed}
