"""`guild completion bash|zsh|fish`: prints a completion script, made from the command table and the parsers.

Does not install the script.
"""

from __future__ import annotations

from importlib import import_module

from guildhall.cli.arguments import parser_of
from guildhall.cli.command import Context, argument, command
from guildhall.cli.command_table import COMMANDS, Row, family

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


@command(argument("shell", choices=("bash", "zsh", "fish"), help="your shell"))
def completion(ctx: Context) -> None:
    ctx.screen.result({"bash": bash, "zsh": zsh, "fish": fish}[ctx.args.shell]())


def options_of(row: Row) -> list[str]:
    """Return the long options of a command."""
    if row.name == "help":
        return []
    return parser_of(row, getattr(import_module(row.module), row.function)).options


def _single() -> list[Row]:
    return [row for row in COMMANDS if " " not in row.name]


def _words(row: Row) -> list[str]:
    """Return what may follow the name of a command."""
    verbs = [verb.name.split()[1] for verb in family(row.name)]
    return verbs or options_of(row)


def bash() -> str:
    families = [f'    "{verb.name}") name="{verb.name}" ;;' for row in _single() for verb in family(row.name)]
    rows = [*_single(), *(verb for row in _single() for verb in family(row.name))]
    cases = [f'      "{row.name}") known="{" ".join(_words(row))}" ;;' for row in rows]
    first = " ".join(row.name for row in _single())
    return _BASH.format(families="\n".join(families), first=first, cases="\n".join(cases))


def zsh() -> str:
    return _ZSH_HEAD + bash()


def fish() -> str:
    lines = ["# guild completion for fish"]
    for row in _single():
        lines.append(f"complete -c guild -n __fish_use_subcommand -f -a {row.name} -d {_quoted(row.summary)}")
        lines += _fish_options(row, f"__fish_seen_subcommand_from {row.name}")
        for verb in family(row.name):
            word = verb.name.split()[1]
            seen = f"__fish_seen_subcommand_from {row.name}"
            lines.append(f"complete -c guild -n {_quoted(seen)} -f -a {word} -d {_quoted(verb.summary)}")
            lines += _fish_options(verb, f"{seen}; and __fish_seen_subcommand_from {word}")
    return "\n".join(lines)


def _fish_options(row: Row, condition: str) -> list[str]:
    if family(row.name):
        return []
    return [f"complete -c guild -n {_quoted(condition)} -l {option[2:]}" for option in options_of(row)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
