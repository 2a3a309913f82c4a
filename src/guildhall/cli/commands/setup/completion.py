"""`guild completion bash|zsh|fish`: prints a completion script, made from the command table and the parsers.

Does not install the script.
"""

from __future__ import annotations

from importlib import import_module

from guildhall.cli.argument_parser import parser_of
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
}}
complete -o bashdefault -o default -F _guild guild  # the shell completes and quotes file names itself
"""
_ZSH_HEAD = "#compdef guild\nautoload -U +X bashcompinit && bashcompinit\n"


@command(argument("shell", choices=("bash", "zsh", "fish"), help="your shell"))
def completion(ctx: Context) -> None:
    shell = ctx.args.shell
    ctx.screen.result(_fish() if shell == "fish" else _ZSH_HEAD + _bash() if shell == "zsh" else _bash())


def _options_of(row: Row) -> list[str]:
    """Return the long options of a command."""
    if not row.function:
        return []
    return parser_of(row, getattr(import_module(row.module), row.function)).options


def _bash() -> str:
    single = [row for row in COMMANDS if " " not in row.name]
    verbs = [verb for row in single for verb in family(row.name)]
    following = {row.name: [verb.name.split()[1] for verb in family(row.name)] + _options_of(row) for row in single}
    following |= {verb.name: _options_of(verb) for verb in verbs}
    return _BASH.format(
        families="\n".join(f'    "{verb.name}") name="{verb.name}" ;;' for verb in verbs),
        first=" ".join(row.name for row in single),
        cases="\n".join(f'      "{name}") known="{" ".join(words)}" ;;' for name, words in following.items()),
    )


def _fish() -> str:
    lines = ["# guild completion for fish"]
    for row in COMMANDS:
        first, _, verb = row.name.partition(" ")
        condition = f"__fish_seen_subcommand_from {first}"
        only = _quote(condition) if verb else "__fish_use_subcommand"
        lines.append(f"complete -c guild -n {only} -f -a {verb or first} -d {_quote(row.summary)}")
        if row.function:
            condition += f"; and __fish_seen_subcommand_from {verb}" if verb else ""
            lines += [f"complete -c guild -n {_quote(condition)} -l {option[2:]}" for option in _options_of(row)]
    return "\n".join(lines)


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
