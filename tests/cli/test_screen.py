"""Screen: which stream gets an output, and how text is escaped and redacted."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.cli.screen import OutputFailed, Screen, exact, money, one_line, plain, quote_block, read_form
from guildhall.core.errors import InvalidFile, NotFound

SECRET = "sk-0123456789abcdef"
ANYTHING = st.text(alphabet=st.characters(exclude_categories=()))
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


class TerminalStream(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedStream(io.StringIO):
    """A stream whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def make_screen(*, terminal: bool = False, **environ: str) -> Screen:
    make = TerminalStream if terminal else io.StringIO
    return Screen(out=make(), err=make(), environ={"MY_API_KEY": SECRET, **environ})


def out(screen: Screen) -> str:
    assert isinstance(screen.out, io.StringIO)
    return screen.out.getvalue()


def err(screen: Screen) -> str:
    assert isinstance(screen.err, io.StringIO)
    return screen.err.getvalue()


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ([], "text"),
        (["ls", "--json"], "json"),
        (["run", "--json"], "json"),
        (["run", "--json", "--output", "stream-json"], "stream-json"),
        (["run", "--output", "json"], "json"),
        (["run", "--output=stream-json"], "stream-json"),
        (["run", "--output", "text"], "text"),
        (["run", "--output"], "text"),
        (["run", "w", "json"], "text"),
        (["run", "--", "--json"], "text"),
    ],
)
def test_options_choose_the_form_of_the_output(words: list[str], form: str) -> None:
    assert read_form(words) == form


def test_secrets_are_never_shown() -> None:
    screen = make_screen(terminal=True)
    screen.result(f"the key is {SECRET}")
    screen.json({"deep": [{"in": (SECRET,)}], "n": 1})
    screen.table([[SECRET]])
    screen.note(SECRET)
    screen.delta(SECRET)
    screen.prompt(SECRET)
    screen.error(NotFound(SECRET, hint=SECRET, where=SECRET))
    for width in range(1, 40):  # wherever it is cut or wrapped
        screen.note(screen.one_line(f"the key {SECRET}", width))
    screen.note(screen.quote_block("x" * 70 + SECRET, wrapped=True))
    screen.note(screen.exact(SECRET))
    screen.json({SECRET: 1})
    assert SECRET not in out(screen) + err(screen)
    assert SECRET[:4] not in err(screen)
    assert json.loads(out(screen).splitlines()[1]) == {"deep": [{"in": ["[MY_API_KEY]"]}], "n": 1}


def test_a_terminal_gets_colour_and_escaped_control_codes() -> None:
    screen = make_screen(terminal=True)
    screen.result("\x1b[2Jboo")
    screen.note("\x1b[2Jboo", "red")
    screen.heading("part")
    assert out(screen) == "\\x1b[2Jboo\n\x1b[1mpart\x1b[0m\n"
    assert err(screen) == "\x1b[31m\\x1b[2Jboo\x1b[0m\n"


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_turned_off(environ: dict[str, str]) -> None:
    screen = make_screen(terminal=True, **environ)
    screen.note("plain", "red")
    screen.heading("part")
    assert err(screen) == "plain\n"
    assert out(screen) == "part\n"


def test_a_pipe_gets_the_unchanged_result_and_no_pieces() -> None:
    screen = make_screen()
    screen.result("\x1b[31mred\n")
    screen.delta("a piece")
    screen.note("note", "red")
    assert out(screen) == "\x1b[31mred\n"
    assert err(screen) == "note\n"


def test_a_note_starts_on_a_new_line() -> None:
    screen = make_screen(terminal=True, NO_COLOR="1")
    for piece in ("half ", "", "a line"):
        screen.delta(piece)
    screen.note("note")
    screen.delta("whole\n")
    screen.note("note")
    screen.prompt("sure?")
    screen.note("no answer")
    screen.prompt("sure?")
    screen.end_input()
    screen.note("answer")
    assert err(screen) == "half a line\nnote\nwhole\nnote\nsure? \nno answer\nsure? answer\n"


def test_table_columns_are_aligned() -> None:
    screen = make_screen()
    screen.table([["a", "b", "c"], ["long\nname", "", "x"]], indent=" ")
    assert out(screen) == " a          b  c\n long name     x\n"


def test_a_closed_stderr_does_not_stop_the_output() -> None:
    screen = Screen(out=io.StringIO(), err=ClosedStream(), environ={})
    screen.note("one")
    screen.note("two")
    screen.result("three")
    assert out(screen) == "three\n"


def test_a_closed_stdout_raises_reader_gone() -> None:
    screen = Screen(out=ClosedStream(), err=io.StringIO(), environ={})
    with pytest.raises(OutputFailed) as failure:
        screen.json({})
    assert failure.value.is_broken_pipe


def test_an_error_is_printed_with_its_place_and_hint() -> None:
    screen = make_screen()
    screen.error(InvalidFile("unknown field", where="w.yaml:3", hint="Did you mean 'tools'?"))
    assert err(screen) == "guild: w.yaml:3: unknown field\nDid you mean 'tools'?\n"
    assert out(screen) == ""


def test_lone_surrogates_are_valid_json_in_any_stream() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    screen = Screen(out=stream, err=io.StringIO(), environ={})
    screen.json({"text": "\udc80 ü"})
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    assert b"\\udc80" in written.getvalue()


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(None, "no price"), (0.0, "$0.00"), (0.00123, "$0.0012"), (1.5, "$1.50"), (1234.5, "$1234.50")],
)
def test_money_is_formatted_in_dollars(amount: float | None, shown: str) -> None:
    assert money(amount) == shown


@given(ANYTHING)
def test_plain_text_has_no_control_or_bidi_characters(text: str) -> None:
    shown = plain(text)
    assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in "\t\n"]
    assert not set(shown) & set(BIDI)


@given(ANYTHING)
@pytest.mark.req("DO-6")
def test_exact_text_is_printable(text: str) -> None:
    assert all(char == "\n" or char.isprintable() for char in exact(text))


@given(ANYTHING, st.integers(min_value=0, max_value=200))
def test_every_row_of_a_quoted_block_starts_with_a_bar(text: str, width: int) -> None:
    rows = quote_block(text, width).split("\n")
    assert all(row.startswith("  │ ") for row in rows)
    assert "".join(row[4:] for row in rows) == exact(text).replace("\n", "")


def test_a_pipe_gets_whole_lines() -> None:
    assert quote_block("long " * 50 + "\nshort", None).split("\n") == ["  │ " + "long " * 50, "  │ short"]


def test_wide_characters_count_twice() -> None:
    assert quote_block("漢" * 10, 20).split("\n") == ["  │ " + "漢" * 8, "  │ " + "漢" * 2]


@given(ANYTHING, st.integers(min_value=1, max_value=100))
def test_one_line_returns_one_line_within_the_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "as_plain", "as_exact"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone", "\\x1b[2Jgone"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe", "safe\\u202etxt.exe"),
        ("a\tb\r\nc", "a\tb\nc", "a\\tb\\r\nc"),
        ("over\rwritten", "over\\rwritten", "over\\rwritten"),
        ("no\u200bwidth", "no\u200bwidth", "no\\u200bwidth"),
        ("tag\U000e0041", "tag\U000e0041", "tag\\U000e0041"),
        ("half\udc80", "half\\udc80", "half\\udc80"),
        ("Grüße, 世界 👋", "Grüße, 世界 👋", "Grüße, 世界 👋"),
    ],
)
def test_control_characters_are_escaped(text: str, as_plain: str, as_exact: str) -> None:
    assert (plain(text), exact(text)) == (as_plain, as_exact)


def test_a_cut_line_ends_with_an_ellipsis() -> None:
    assert one_line("one two\nthree", 40) == "one two three"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert one_line(" " * 50 + "x", 10).endswith("…")
