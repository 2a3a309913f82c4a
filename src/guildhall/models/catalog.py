"""From a model's name to the source of its answers; and which keys there are to choose by, never their values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ModelUnusable, NotFound
from guildhall.models.keys import KEYS, variable_with_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.models.login import Login
    from guildhall.models.model import Source

AUTO = "auto"
SCRIPT = "script:"
REPLAY = "replay:"
CURSOR = "cursor:"  # asked by the program of a runtime, never here

# What `auto` stands for, by the first provider in this order that has a key.
AUTO_MODELS: Mapping[str, str] = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6.1-terra",
    "google": "google:gemini-3.8-flash",
    "mistral": "mistral:mistral-large-latest",
    "groq": "groq:openai/gpt-oss-120b",
    "deepseek": "deepseek:deepseek-v4-pro",
}


@dataclass(frozen=True, kw_only=True)
class DetectedKey:
    """A key that is set: whose it is and where it stands."""

    provider: str
    variable: str


def source_for(
    model: str,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    recording: Callable[[str], Source] | None = None,
    login: Login | None = None,
) -> Source:
    """Who answers for this model. `recording` finds the answers of a recorded run; files are looked for in `cwd`.

    `login` is used where Anthropic's key is not set, by what can use it: a program that speaks for itself.
    """
    if model == AUTO:
        model = AUTO_MODELS["anthropic"] if login and not detected_keys(environ) else auto_model(environ)
    if model.startswith(SCRIPT):
        from guildhall.models.script import ScriptSource, load_script

        path = cwd / Path(_rest(model, SCRIPT, "a file: `script:answers.yaml`")).expanduser()
        return ScriptSource(path, load_script(path))
    if model.startswith(REPLAY):
        run = _rest(model, REPLAY, "a run: `replay:r-...`")
        if recording is None:
            raise NotFound(f"there is no record of {run} to replay here")
        return recording(run)
    if model.startswith(CURSOR):
        from guildhall.models.elsewhere import elsewhere

        return elsewhere(model, environ)
    from guildhall.models.providers import provider_source

    return provider_source(model, environ, login)


def has_price(model: str, *, cwd: Path, environ: Mapping[str, str]) -> bool | None:
    """Whether a model has a price, as far as that can be known without a key and without asking anybody."""
    try:
        model = auto_model(environ) if model == AUTO else model
        if model.startswith(SCRIPT):
            from guildhall.models.script import load_script

            return load_script(cwd / Path(_rest(model, SCRIPT, "a file")).expanduser()).price is not None
    except GuildError:
        return None
    if model.startswith(REPLAY):
        return True
    from guildhall.models import prices

    provider, _, name = model.partition(":")
    return prices.has_price(provider, name)


def auto_model(environ: Mapping[str, str]) -> str:
    """The model that the keys allow."""
    for provider, model in AUTO_MODELS.items():
        if variable_with_key(provider, environ):
            return model
    raise ModelUnusable(
        "no model can be chosen: no provider's key is set",
        hint="Set ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model with --model. `guild demo` needs none.",
    )


def detected_keys(environ: Mapping[str, str]) -> list[DetectedKey]:
    """The keys that are set, each variable once."""
    found: dict[str, DetectedKey] = {}
    for provider in KEYS:
        if variable := variable_with_key(provider, environ):
            found.setdefault(variable, DetectedKey(provider=provider, variable=variable))
    return list(found.values())


def _rest(model: str, prefix: str, expected: str) -> str:
    rest = model.removeprefix(prefix).strip()
    if not rest:
        raise ModelUnusable(f"{prefix!r} needs the name of {expected}")
    return rest
