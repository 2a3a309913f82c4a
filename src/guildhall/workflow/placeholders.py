"""Placeholders in the texts of a workflow file: parse them, check their names and fill in their values.

A placeholder is `${{ name }}` (the output of a setup step), `${{ params.x }}`, `${{ env.X }}` or `${{ workflow.tag }}`.
`$${{` is the escape. A command receives values only as environment variables, never as shell text.
Does not compute the values of a start (`start_values.py`).

Invariant: a text for a model contains no secret from a placeholder. `check_secrets` raises Refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from guildhall.core.errors import InvalidFile, Refused
from guildhall.core.redaction import MIN_GUESSED_CHARS, looks_secret
from guildhall.core.text_checks import did_you_mean
from guildhall.room.model import MessageText, TextPart

Kind = Literal["output", "env", "params", "source", "workflow"]
WORKFLOW_FIELDS = ("name", "tag")
SOURCE_FIELDS = ("dir",)

_FIXED_NAMES = {"workflow": WORKFLOW_FIELDS, "source": SOURCE_FIELDS}
_OPENING = re.compile(r"\$?\$\{\{")
_INSIDE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)(?:\.([A-Za-z_][A-Za-z0-9_-]*))?\s*")
_MAX_PLACEHOLDER_CHARS = 200
_VARIABLE_PREFIX = "GUILD_"


@dataclass(frozen=True)
class Reference:
    """The name in a placeholder: the output of a setup step, or a name with a prefix such as `params.`."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind == "output" else f"{self.kind}.{self.name}"

    @property
    def variable(self) -> str:
        """Return the name of the environment variable for the value in a command."""
        return self.name if self.kind == "env" else _VARIABLE_PREFIX + str(self).replace(".", "_").replace("-", "_")


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of placeholders."""

    workflow: str
    tag: str
    folder: str = ""  # folder of the workflow file
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])

    def find(self, reference: Reference) -> str | None:
        if reference.kind == "workflow":
            return self.workflow if reference.name == "name" else self.tag
        if reference.kind == "source":
            return self.folder
        return {"output": self.outputs, "env": self.env, "params": self.params}[reference.kind].get(reference.name)

    def get(self, reference: Reference) -> str:
        """Return the value of a placeholder. Raise InvalidFile if it has none."""
        if (value := self.find(reference)) is None:
            reason = "is not set" if reference.kind == "env" else "has no value"
            raise InvalidFile(f"${{{{ {reference} }}}}: {reference.name} {reason}", hint=_unset_hint(reference))
        return value


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names that the placeholders of a text may use."""

    outputs: tuple[str, ...] = ()  # outputs of earlier setup steps
    later_outputs: tuple[str, ...] = ()
    params: Collection[str] = ()
    env: Collection[str] = ()

    def check(self, text: str) -> None:
        """Raise InvalidFile for the first placeholder with an unknown name."""
        for reference in references(text):
            known = {"output": self.outputs, "env": self.env, "params": self.params, **_FIXED_NAMES}
            if reference.name not in known[reference.kind]:
                raise self._unknown_name(reference)

    def _unknown_name(self, reference: Reference) -> InvalidFile:
        placeholder, name = f"${{{{ {reference} }}}}", reference.name
        if reference.kind == "env":
            hint = f"Add `env: [{name}]` to this file. Your settings must allow the variable, too."
            return InvalidFile(f"{placeholder}: the variable {name} is not listed in `env:`", hint=hint)
        if reference.kind == "params":
            message = f"{placeholder}: unknown param {name!r}"
            return InvalidFile(message, hint=did_you_mean(name, self.params) or "Add it to `params:`.")
        if name in self.later_outputs:
            message = f"{placeholder}: the setup step runs later, so its output is not available here"
            return InvalidFile(message, hint="Use the output only in later setup steps, prompts and the kickoff.")
        names_by_prefix = {**_FIXED_NAMES, "params": self.params, "env": self.env}
        known = [*self.outputs, *(f"{prefix}.{each}" for prefix, names in names_by_prefix.items() for each in names)]
        hint = did_you_mean(str(reference), known)
        return InvalidFile(f"{placeholder}: unknown name", hint=hint)


def references(text: str) -> tuple[Reference, ...]:
    """Return the names in the placeholders of a text, without duplicates."""
    return tuple(dict.fromkeys(part for part in _split(text) if isinstance(part, Reference)))


def fill(text: str, values: Values) -> MessageText:
    """Return the text with the values of its placeholders, as quoted parts."""
    parts = (
        TextPart(values.get(part), is_quoted=True) if isinstance(part, Reference) else TextPart(part)
        for part in _split(text)
    )
    return MessageText(tuple(part for part in parts if part.text))


def quote_placeholders(text: str) -> MessageText:
    """Return the text with its placeholders as quoted parts, before they have values."""
    return MessageText(tuple(TextPart(str(part), is_quoted=isinstance(part, Reference)) for part in _split(text)))


def shell_command(text: str) -> str:
    """Return a command in which a reference to an environment variable replaces each placeholder."""
    return "".join(f"${{{part.variable}}}" if isinstance(part, Reference) else part for part in _split(text))


def check_secrets(text: str, values: Values) -> None:
    """Raise Refused if a text for a model would contain a secret."""
    secrets = [value for name, value in values.env.items() if looks_secret(name, value)]
    for reference in references(text):
        placeholder, rule = f"${{{{ {reference} }}}}", "Models and journals must not contain secrets."
        if reference.kind == "env" and looks_secret(reference.name, values.env.get(reference.name, "")):
            hint = f"{rule} Use ${reference.name} in a command of `setup:`, and use only the output of the command."
            raise Refused(f"{placeholder}: the variable {reference.name} looks like a secret", hint=hint)
        value = values.find(reference) or ""  # a setup step has no output yet
        if looks_secret("", value) or any(secret in value for secret in secrets if len(secret) >= MIN_GUESSED_CHARS):
            raise Refused(f"{placeholder}: the value seems to contain a secret", hint=f"{rule} Remove the placeholder.")


def _unset_hint(reference: Reference) -> str | None:
    if reference.kind == "env":
        return f"Set {reference.name}, and allow it: `env: [{reference.name}]` in config.yaml of your home."
    return f"Add --param {reference.name}=VALUE." if reference.kind == "params" else None


def _split(text: str) -> Iterator[str | Reference]:
    """Yield the literal texts and the placeholders in their order."""
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        yield text[position : opening.start()]
        if opening[0].startswith("$$"):
            yield opening[0][1:]
            position = opening.end()
            continue
        end = text.find("}}", opening.end(), opening.end() + _MAX_PLACEHOLDER_CHARS)
        inside = _INSIDE.fullmatch(text, opening.end(), end) if end >= 0 else None
        if inside is None:
            excerpt = text[opening.start() : opening.start() + 40].partition("\n")[0]
            raise InvalidFile(
                f"invalid placeholder {excerpt!r}",
                hint="Write ${{ name }}, ${{ params.x }}, ${{ env.X }}, ${{ workflow.tag }}; $${{ for a literal ${{.",
            )
        yield _make_reference(inside[1], inside[2])
        position = end + 2
    yield text[position:]


def _make_reference(prefix: str, name: str | None) -> Reference:
    """Return the reference to `prefix.name`, or to the output `prefix` if the placeholder has no dot."""
    if name is None:
        return Reference("output", prefix)
    if prefix in ("env", "params", "source", "workflow"):
        return Reference(prefix, name)
    hint = did_you_mean(prefix, ("env", "params", "source", "workflow"))
    raise InvalidFile(f"${{{{ {prefix}.{name} }}}}: unknown name", hint=hint)
