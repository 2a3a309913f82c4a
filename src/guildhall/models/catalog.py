"""Model catalog: returns the source of a model name, and resolves `auto` by the keys that are set.

    auto                the default model of the first provider with a key
    script:FILE         a scripted model
    replay:RUN          the responses of a recorded run, without cost
    cursor:MODEL        a model that only the Cursor program calls
    provider:MODEL      a provider that pydantic-ai supports

Does not call providers: `provider_source` does. Returns the variables of keys, never their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ModelFailed, ModelUnusable, NotFound
from guildhall.models.credentials import KEY_VARIABLES, Login, find_key_variable

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.config import ModelTimeouts
    from guildhall.models.model import OnText, Query, Source


AUTO = "auto"
SCRIPT = "script:"
REPLAY = "replay:"
CURSOR = "cursor:"  # only the program of the runtime calls these models

# The models of `auto`. The first provider with a key is used.
AUTO_MODELS: Mapping[str, str] = {
    "anthropic": "anthropic:claude-sonnet-5-5",
    "openai": "openai:gpt-6.1-terra",
    "google": "google:gemini-3.8-flash",
    "mistral": "mistral:mistral-large-latest",
    "groq": "groq:openai/gpt-oss-120b",
    "deepseek": "deepseek:deepseek-v4-pro",
}


def create_source(
    model: str,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    recording: Callable[[str], Source] | None = None,
    login: Login | None = None,
    timeouts: ModelTimeouts | None = None,
) -> Source:
    """Return the source of a model name.

    `recording` returns the source of a recorded run. Paths are relative to `cwd`. `login` replaces a missing Anthropic
    key for programs that can use it.
    """
    if model == AUTO:
        model = AUTO_MODELS["anthropic"] if login and not detected_keys(environ) else auto_model(environ)
    if model.startswith(SCRIPT):
        from guildhall.models.scripted.source import ScriptSource, load_script

        path = cwd / Path(_strip_prefix(model, SCRIPT, "script:answers.yaml")).expanduser()
        return ScriptSource(path, load_script(path))
    if model.startswith(REPLAY):
        run_id = _strip_prefix(model, REPLAY, "replay:r-7k2m9x4qpw")
        if recording is None:
            raise NotFound(f"cannot replay {run_id}: recorded runs cannot be read here")
        return recording(run_id)
    if model.startswith(CURSOR):
        if find_key_variable("cursor", environ) is None:
            variable = KEY_VARIABLES["cursor"][0]
            hint = f"Set {variable} in the environment, or choose another model."
            raise ModelUnusable(f"{model} needs a key, and {variable} is not set", hint=hint)
        return _ProgramSource(model)
    from guildhall.models.provider_source import create_provider_source

    return create_provider_source(model, environ, login, timeouts)


def has_price(model: str, *, cwd: Path, environ: Mapping[str, str]) -> bool | None:
    """Return True if a model has a price, or None if that is unknown. Needs no key and no network."""
    try:
        model = auto_model(environ) if model == AUTO else model
        if model.startswith(SCRIPT):
            from guildhall.models.scripted.source import load_script

            path = cwd / Path(_strip_prefix(model, SCRIPT, "script:answers.yaml")).expanduser()
            return load_script(path).price is not None
    except GuildError:
        return None
    if model.startswith(REPLAY):
        return True
    from guildhall.models import provider_source

    provider, _, name = model.partition(":")
    return provider_source.has_price(provider, name)


def auto_model(environ: Mapping[str, str]) -> str:
    """Return the default model of the first provider with a key. Raise ModelUnusable if no key is set."""
    for provider, model in AUTO_MODELS.items():
        if find_key_variable(provider, environ):
            return model
    raise ModelUnusable(
        "cannot choose a model: no provider key is set",
        hint="Set the key of a provider, such as ANTHROPIC_API_KEY or OPENAI_API_KEY. `guild demo` needs no key.",
    )


def detected_keys(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the set variables that contain keys, each once."""
    variables = (find_key_variable(provider, environ) for provider in KEY_VARIABLES)
    return list(dict.fromkeys(variable for variable in variables if variable))


def _strip_prefix(model: str, prefix: str, example: str) -> str:
    rest = model.removeprefix(prefix).strip()
    if not rest:
        raise ModelUnusable(f"invalid model {model!r}: nothing follows the prefix", hint=f"Write it like {example}.")
    return rest


@dataclass(frozen=True)
class _ProgramSource:
    """A model that only the program of a runtime calls. Its cost is unknown, and it accepts only text."""

    name: str

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> None:
        return None

    def accepts(self, media_type: str) -> bool:
        return False

    def upstream(self, api: str) -> None:
        return None

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        return []

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        hint = "Set `runtime: cursor` in the worker file, or choose another model."
        raise ModelFailed(f"cannot call {self.name}: it needs `runtime: cursor`", hint=hint)


@dataclass(frozen=True)
class RecordingSource:
    """Source of the responses of a recorded run, in order and without cost.

    If the recording has child runs, each run of the new tree gets the responses of the recorded run with its worker and
    ordinal. Otherwise every caller gets the responses of the only run, whatever its worker.
    """

    run: str
    answers_by_run: Mapping[tuple[str, int], Sequence[ModelResponse]]  # by worker and ordinal; the root run is first

    @property
    def name(self) -> str:
        return f"replay:{self.run}"

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        return 0.0

    def accepts(self, media_type: str) -> bool:
        return True

    def upstream(self, api: str) -> None:
        return None

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        return []

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        runs = self.answers_by_run
        answers = next(iter(runs.values())) if len(runs) == 1 else runs.get((query.worker, query.ordinal))
        if answers is None:
            raise self._mismatch(f"has no run {query.ordinal + 1} of the worker {query.worker!r}")
        if query.step >= len(answers):
            raise self._mismatch(f"has only {len(answers)} responses")
        answer = answers[query.step]
        if answer.text:
            on_text(answer.text)
        return answer

    def _mismatch(self, problem: str) -> ModelFailed:
        hint = "The new run differs from the recorded run. Use a real model or a script."
        return ModelFailed(f"the recording of {self.run} {problem}", hint=hint)
