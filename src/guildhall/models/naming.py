"""The names of providers and models: `provider:model`, and which one was probably meant."""

from __future__ import annotations

from guildhall.core.errors import ModelUnusable
from guildhall.core.nearest import did_you_mean
from guildhall.models.keys import ADDRESSES, KEYS


def split_name(name: str) -> tuple[str, str]:
    """Provider and model of a name; raises ModelUnusable when there is no such provider."""
    for separator in (":", "/"):
        provider, found, model = name.partition(separator)
        if found and model and _is_provider(provider):
            return provider, model
    provider, found, _ = name.replace("/", ":").partition(":")
    if found:
        raise ModelUnusable(f"there is no provider {provider!r}", hint=did_you_mean(provider, _providers()))
    raise ModelUnusable(f"{name!r} does not say whose model it is", hint=_with_provider(name))


def _is_provider(name: str) -> bool:
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(name)
    except ImportError:
        return True  # known, its package is not installed
    except ValueError:
        return False
    return True


def _providers() -> set[str]:
    from pydantic_ai.models import known_model_names

    return {name.partition(":")[0] for name in known_model_names() if ":" in name} | KEYS.keys() | ADDRESSES.keys()


def _with_provider(model: str) -> str:
    from pydantic_ai.models import known_model_names

    known = list(KEYS)  # whoever made the model comes before those who pass it on
    names = [name for name in known_model_names() if name.partition(":")[2] == model]
    names.sort(key=lambda name: known.index(maker) if (maker := name.partition(":")[0]) in known else len(known))
    return f"Write {names[0]!r}." if names else "Write `provider:model`, such as `anthropic:claude-sonnet-5-5`."


def similar(provider: str, model: str) -> str | None:
    """Which other model of the provider was probably meant."""
    from pydantic_ai.models import known_model_names

    asked = f"{provider}:{model}"
    return did_you_mean(
        asked, (name for name in known_model_names() if name.startswith(f"{provider}:") and name != asked)
    )
