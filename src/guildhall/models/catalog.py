"""Model catalog: returns the source of a model name, resolves `auto` by the keys that are set, knows prices.

    auto                the default model of the first provider with a key
    script:FILE         a scripted model
    replay:RUN          the answers of a recorded run, without cost
    cursor:MODEL        a model that only the Cursor program calls
    provider:MODEL      a provider that pydantic-ai supports

Does not call providers: `providers` does. Does not return the values of keys: it names only provider and variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ModelFailed, ModelUnusable, NotFound
from guildhall.models.credentials import KEYS, Login, variable_with_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.model import OnText, Query, Source


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


def source_for(
    model: str,
    *,
    cwd: Path,
    environ: Mapping[str, str],
    recording: Callable[[str], Source] | None = None,
    login: Login | None = None,
) -> Source:
    """Return the source of a model. `recording` finds the answers of a recorded run. Files are relative to `cwd`.

    `login` replaces a missing key of Anthropic, for programs that can use it.
    """
    if model == AUTO:
        model = AUTO_MODELS["anthropic"] if login and not detected_keys(environ) else auto_model(environ)
    if model.startswith(SCRIPT):
        from guildhall.models.scripted.source import ScriptSource, load_script

        path = cwd / Path(_rest(model, SCRIPT, "a file: `script:answers.yaml`")).expanduser()
        return ScriptSource(path, load_script(path))
    if model.startswith(REPLAY):
        run = _rest(model, REPLAY, "a run: `replay:r-...`")
        if recording is None:
            raise NotFound(f"there is no record of {run} to replay here")
        return recording(run)
    if model.startswith(CURSOR):
        if variable_with_key("cursor", environ) is None:
            variable = KEYS["cursor"][0]
            raise ModelUnusable(f"{model} needs a key, and {variable} is not set", hint=f"export {variable}=...")
        return _ProgramSource(model)
    from guildhall.models.providers import provider_source

    return provider_source(model, environ, login)


def has_price(model: str, *, cwd: Path, environ: Mapping[str, str]) -> bool | None:
    """Whether a model has a price, as far as that can be known without a key and without asking anybody."""
    try:
        model = auto_model(environ) if model == AUTO else model
        if model.startswith(SCRIPT):
            from guildhall.models.scripted.source import load_script

            return load_script(cwd / Path(_rest(model, SCRIPT, "a file")).expanduser()).price is not None
    except GuildError:
        return None
    if model.startswith(REPLAY):
        return True
    from guildhall.models import providers

    provider, _, name = model.partition(":")
    return providers.has_price(provider, name)


def auto_model(environ: Mapping[str, str]) -> str:
    """Return the model that the keys allow. Raise ModelUnusable if there is no key."""
    for provider, model in AUTO_MODELS.items():
        if variable_with_key(provider, environ):
            return model
    raise ModelUnusable(
        "no model can be chosen: no provider's key is set",
        hint="Set ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model with --model. `guild demo` needs none.",
    )


def detected_keys(environ: Mapping[str, str]) -> list[str]:
    """Return the variables of the keys that are set, each once."""
    variables = (variable_with_key(provider, environ) for provider in KEYS)
    return list(dict.fromkeys(variable for variable in variables if variable))


def _rest(model: str, prefix: str, expected: str) -> str:
    rest = model.removeprefix(prefix).strip()
    if not rest:
        raise ModelUnusable(f"{prefix!r} needs the name of {expected}")
    return rest


@dataclass(frozen=True)
class _ProgramSource:
    """The source of a model that only the program of a runtime calls. Its cost is unknown, and it takes only text."""

    name: str

    def cost(self, usage: RequestUsage) -> None:
        return None

    def takes(self, media_type: str) -> bool:
        return False

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        raise ModelFailed(f"{self.name} is asked by the program that executes the run, and by nobody else")


@dataclass(frozen=True)
class RecordingSource:
    """Gives the answers of a recorded run again, one after another. They were paid for then and cost nothing now.

    Where the recorded run had called others, each run of the new tree gets the answers of the one in its place; else
    whoever asks gets those of the run, whatever the worker is named.
    """

    run: str
    tree: Mapping[tuple[str, int], Sequence[ModelResponse]]  # by worker and which run of it; the run itself first

    @property
    def name(self) -> str:
        return f"replay:{self.run}"

    def cost(self, usage: RequestUsage) -> float | None:
        return 0.0

    def takes(self, media_type: str) -> bool:
        return True

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        only = next(iter(self.tree.values())) if len(self.tree) == 1 else None
        answers = self.tree.get((query.worker, query.ordinal)) if only is None else only
        if answers is None:
            raise self._mismatch(f"has no run {query.ordinal + 1} of the worker {query.worker}")
        if query.step >= len(answers):
            raise self._mismatch(f"has {len(answers)} answers and another one was asked for")
        answer = answers[query.step]
        if answer.text:
            on_text(answer.text)
        return answer

    def _mismatch(self, what: str) -> ModelFailed:
        hint = "The new run took another path than the recorded one; use a real model or a script."
        return ModelFailed(f"the recording of {self.run} {what}", hint=hint)
