"""`guild completion`: the script for a shell, made from the table of commands and their parsers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.command_table import COMMANDS, family
from guildhall.cli.parser import parser_of

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.command_table import Command
    from guildhall.cli.screen import Screen

_BASH = """# guild completion for bash
_guild() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" name="${{COMP_WORDS[1]}}" known=""
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{families}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then known="{first}"
  else
    case "$name" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$known" -- "$word"))
  [ -n "$known" ] && [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _guild guild
"""
_ZSH_HEAD = "#compdef guild\nautoload -U +X bashcompinit && bashcompinit\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def main(args: argparse.Namespace, screen: Screen) -> int:
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]()
    screen.result(script)
    return exit_codes.DONE


def options_of(command: Command) -> list[str]:
    """The long options that the command's parser knows."""
    if command.name == "help":
        return []
    return parser_of(command, import_module(command.module).arguments).options


def _single() -> list[Command]:
    return [command for command in COMMANDS if " " not in command.name]


def _words(command: Command) -> list[str]:
    """What may follow the command's name."""
    verbs = [verb.name.split()[1] for verb in family(command.name)]
    return verbs or options_of(command)


def bash() -> str:
    families = [f'    "{verb.name}") name="{verb.name}" ;;' for command in _single() for verb in family(command.name)]
    rows = [*_single(), *(verb for command in _single() for verb in family(command.name))]
    cases = [f'      "{command.name}") known="{" ".join(_words(command))}" ;;' for command in rows]
    first = " ".join(command.name for command in _single())
    return _BASH.format(families="\n".join(families), first=first, cases="\n".join(cases))


def zsh() -> str:
    return _ZSH_HEAD + bash()


def fish() -> str:
    lines = ["# guild completion for fish"]
    for command in _single():
        lines.append(f"complete -c guild -n __fish_use_subcommand -f -a {command.name} -d {_quoted(command.summary)}")
        lines += _fish_options(command, f"__fish_seen_subcommand_from {command.name}")
        for verb in family(command.name):
            word = verb.name.split()[1]
            seen = f"__fish_seen_subcommand_from {command.name}"
            lines.append(f"complete -c guild -n {_quoted(seen)} -f -a {word} -d {_quoted(verb.summary)}")
            lines += _fish_options(verb, f"{seen}; and __fish_seen_subcommand_from {word}")
    return "\n".join(lines)


def _fish_options(command: Command, condition: str) -> list[str]:
    if family(command.name):
        return []
    return [f"complete -c guild -n {_quoted(condition)} -l {option[2:]}" for option in options_of(command)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
