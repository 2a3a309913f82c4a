"""Commands: exit codes, connections and printed results."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import read_text
from guildhall.cli.command import JSON, Context, Work, argument, command, exclusive
from guildhall.cli.screen import Screen, read_form
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.cli.command import Command

MAX_TEXT_BYTES = 1_000_000


def run(one: Command, *words: str) -> tuple[int, str, str]:
    """Run a command in this process, and return its exit code, standard output and standard error."""
    parser = argparse.ArgumentParser()
    one.add_arguments(parser)
    screen = Screen(out=io.StringIO(), err=io.StringIO(), environ={}, form=read_form(words))
    code = one.run(parser.parse_args(words), screen)
    assert isinstance(screen.out, io.StringIO)
    assert isinstance(screen.err, io.StringIO)
    return code, screen.out.getvalue(), screen.err.getvalue()


@command(argument("words", nargs="*"), JSON)
def list_words(ctx: Context) -> None:
    words: list[str] = ctx.args.words
    ctx.print_table([[word] for word in words], {"words": words}, head=["word"], empty="No words.")


def test_a_list_is_a_table_or_json() -> None:
    assert run(list_words, "a", "b") == (0, "word\na\nb\n", "")
    assert run(list_words, "a", "--json") == (0, '{"words": ["a"]}\n', "")
    assert run(list_words) == (0, "", "No words.\n")
    assert run(list_words, "--json") == (0, '{"words": []}\n', "")


class Thing:
    def as_dict(self) -> dict[str, int]:
        return {"n": 1}


def test_a_result_is_text_or_json() -> None:
    def print_thing(_: object, screen: Screen) -> None:
        screen.result("printed")

    @command(JSON)
    def print_text(ctx: Context) -> None:
        ctx.print([Thing()], "text")

    @command(JSON)
    def print_and_fail(ctx: Context) -> int:
        ctx.print(Thing(), print_thing, data={"other": []})
        return exit_codes.FAILED

    assert run(print_text) == (0, "text\n", "")
    assert run(print_text, "--json") == (0, '[{"n": 1}]\n', "")
    assert run(print_and_fail) == (1, "printed\n", "")
    assert run(print_and_fail, "--json") == (1, '{"other": []}\n', "")


def test_exclusive_options_cannot_be_given_together(capsys: pytest.CaptureFixture[str]) -> None:
    @command(exclusive(argument("--a", action="store_true"), argument("--b", action="store_true")))
    def accept_options(ctx: Context) -> None:
        pass

    assert run(accept_options, "--a")[0] == 0
    with pytest.raises(SystemExit):
        run(accept_options, "--a", "--b")
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("event_loop", [True, False])
def test_a_command_reads_the_home_if_no_hall_is_running(project: Path, event_loop: bool) -> None:
    """Without an event loop, the command is run again in one, because reading the home needs it."""

    @command(JSON, event_loop=event_loop)
    async def count(ctx: Context) -> None:
        client = await ctx.connect("read")
        ctx.print(await client.runs.list(everything=True), "read")

    assert run(count) == (0, "read\n", "")
    assert run(count, "--json") == (0, "[]\n", "")


def test_a_function_may_read_before_its_coroutine_connects(project: Path) -> None:
    async def connect_and_print(ctx: Context, word: str) -> int:
        await ctx.connect("read")
        ctx.screen.result(word)
        return exit_codes.NEEDS_YOU

    @command()
    def read_first(ctx: Context) -> Work:
        return connect_and_print(ctx, "read")

    assert run(read_first) == (4, "read\n", "")


def test_an_error_closes_the_connection(project: Path) -> None:
    closed: list[bool] = []

    @command()
    async def connect_and_fail(ctx: Context) -> None:
        client: Any = await ctx.connect("read")
        close = client.close

        async def record_close() -> None:
            closed.append(True)
            await close()

        client.close = record_close
        raise UsageError("no")

    with pytest.raises(UsageError):
        run(connect_and_fail)
    assert closed == [True]


@pytest.mark.parametrize(
    ("given", "stdin", "expected"),
    [("text", b"other", "text"), ("-", b"piped\n", "piped\n"), (None, b"piped", "piped"), ("", b"other", "")],
)
def test_a_text_comes_from_an_argument_or_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, given: str | None, stdin: bytes, expected: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    assert read_text(given, "input") == expected


@pytest.mark.parametrize(
    ("stdin", "reason"),
    [
        (b"a\xff", "invalid input: not UTF-8 text (byte 1)"),
        (b"a\0", "invalid input: contains a NUL character"),
        (b"a" * (MAX_TEXT_BYTES + 1), "invalid input: larger than 1,000,000 bytes"),
    ],
)
def test_invalid_text_is_rejected(monkeypatch: pytest.MonkeyPatch, stdin: bytes, reason: str) -> None:
    for given in ("-", stdin.decode(errors="surrogateescape")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(UsageError) as caught:
            read_text(given, "input")
        assert caught.value.message == reason


def test_a_closed_standard_input_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="cannot read the input: standard input is closed"):
        read_text(None, "input")
