"""Entry point of `guild`: finds the command, runs it, and turns errors into messages and exit codes.

Pages of help need only the command table (see `cli.command_table`). Does not parse arguments (see
`cli.argument_parser`).
"""

from __future__ import annotations

import sys
from contextlib import suppress

from guildhall.cli import command_table, exit_codes

_LEADING_OPTIONS = ("--debug", "--json")  # are accepted before the command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guildhall.cli.command import Command
    from guildhall.cli.screen import Screen
    from guildhall.core.errors import GuildError


def entry() -> int:
    """Run `guild` with the arguments of the process. The entry point of the installed command."""
    return main(sys.argv[1:])


def main(words: list[str]) -> int:
    """Run a command line and return the exit code."""
    debug = "--debug" in words[: words.index("--")] if "--" in words else "--debug" in words
    leading = next((index for index, word in enumerate(words) if word not in _LEADING_OPTIONS), len(words))
    words, options = words[leading:], words[:leading]
    if (page := _page(words)) is not None:
        return _print(page)
    if "--json" in options:
        length = command_table.find(words)[1]
        words = [*words[:length], "--json", *words[length:]]
    from guildhall.cli.screen import Screen

    screen = Screen.of_process(words)
    code = _dispatch(words, screen, debug=debug)
    try:
        screen.out.flush()  # Python does it at exit too, and would print a traceback if it failed there
    except (OSError, ValueError):
        _discard_stdout()
    return code


def _page(words: list[str]) -> str | None:
    """Return a page of help that needs only the command table, or None if the arguments request no such page."""
    if words and words[0] in ("--version", "-V"):
        from guildhall import __version__

        return f"guild {__version__}\n"
    if words[:1] == ["help"]:
        return command_table.full_page() if words[1:] == ["all"] else _page([*words[1:], "--help"])
    if not words or words[0] in ("-h", "--help"):
        return command_table.first_page()
    row, _ = command_table.find(words[:1])
    if row is not None and not row.function and (len(words) == 1 or words[1] in ("-h", "--help")):
        return command_table.family_page(row.name)
    return None


def _print(page: str) -> int:
    try:
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
            sys.stdout.write(page)
            sys.stdout.flush()
    except OSError:
        _discard_stdout()
    return exit_codes.DONE


def _dispatch(words: list[str], screen: Screen, *, debug: bool) -> int:
    from guildhall.cli.screen import OutputFailed
    from guildhall.core.errors import GuildError, Interrupted

    try:
        return _run_command(words, screen)
    except OutputFailed as failure:
        if failure.is_broken_pipe:
            return exit_codes.DONE
        screen.note(f"guild: {failure}", "red")
        return exit_codes.FAILED
    except KeyboardInterrupt:
        known: GuildError = Interrupted("interrupted")
    except Exception as error:  # noqa: BLE001 - the edge: every error becomes a message
        if debug:
            import traceback

            screen.note(traceback.format_exc().rstrip())
        known = error if isinstance(error, GuildError) else _to_guild_error(error)
    with suppress(OutputFailed):
        screen.error(known)
    return known.exit_code


def _run_command(words: list[str], screen: Screen) -> int:
    from importlib import import_module

    from guildhall.cli.argument_parser import parser_of
    from guildhall.cli.command import OUTPUT

    words = [*words[1:], "--help"] if words[0] == "help" else words
    row, length = command_table.find(words)
    if row is None or not row.function:
        raise _unknown_command(words)
    command: Command = getattr(import_module(row.module), row.function)
    screen.is_run_result = OUTPUT in command.arguments
    parser = parser_of(row, command)
    rest = words[length:]
    before = rest[: rest.index("--")] if "--" in rest else rest
    if "-h" in before or "--help" in before:
        screen.result(parser.format_help())
        return exit_codes.DONE
    return command.run(parser.read(rest), screen)


def _unknown_command(words: list[str]) -> GuildError:
    import difflib

    from guildhall.core.errors import UsageError

    if verbs := command_table.family(words[0]):
        family, tried, known = f"{words[0]} ", words[1], [command.name.split()[1] for command in verbs]
    elif words[0].startswith("-"):
        return UsageError(f"unknown option {words[0]!r}", hint="`guild --help` lists the options.")
    else:
        family, tried, known = (
            "",
            words[0],
            [command.name for command in command_table.COMMANDS if " " not in command.name],
        )
    guesses = " or ".join(f"`guild {family}{name}`" for name in difflib.get_close_matches(tried, known, n=2))
    hint = f"Did you mean {guesses}?" if guesses else "List all commands: `guild help all`"
    return UsageError(f"unknown command {family + tried!r}", hint=hint)


def _to_guild_error(error: Exception) -> GuildError:
    from guildhall.core.errors import GuildError, internal_error

    if isinstance(error, OSError) and error.filename:
        return GuildError(
            f"{error.filename}: {error.strerror}",
            hint="Check that the file exists and that you have permission to use it. --debug shows the traceback.",
        )
    return internal_error(error, "Please report the error, with the output of this command with --debug.")


def _discard_stdout() -> None:
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
