"""Provider source: asks any model that pydantic-ai supports (`provider:model`), and computes prices.

Each call uses a connection of its own. A source works in any event loop and leaves nothing open.
Does not retry: `door` does, and the retries of the clients are switched off.
Does not read keys from this process: the caller passes in the environment.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock
from guildhall.core.errors import (
    ContextTooLong,
    KeyRefused,
    ModelFailed,
    ModelUnusable,
    NoCredit,
    NotReachable,
    Overloaded,
    RateLimited,
    UnknownModel,
)
from guildhall.core.redaction import redact
from guildhall.core.text import did_you_mean
from guildhall.models import credentials
from guildhall.models.credentials import ADDRESSES, KEYS, Login, variable_with_key
from guildhall.models.model import OnText, Query, Upstream, is_transient
from guildhall.models.provider_errors import PASSING, explained, kind_of, one_line, said_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from ssl import SSLContext

    import httpx2
    from genai_prices.types import AbstractUsage
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.providers import Provider
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage


def split_name(name: str) -> tuple[str, str]:
    """Return the provider and the model of a name. Raise ModelUnusable if there is no such provider."""
    for separator in (":", "/"):
        provider, found, model = name.partition(separator)
        if found and model and _is_provider(provider):
            return provider, model
    provider, found, _ = name.replace("/", ":").partition(":")
    if found:
        known = {name.partition(":")[0] for name in _known_names()} | KEYS.keys() | ADDRESSES.keys()
        raise ModelUnusable(f"there is no provider {provider!r}", hint=did_you_mean(provider, known))
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


def _with_provider(model: str) -> str:
    """Return a hint for a model name without a provider."""
    known = list(KEYS)  # the maker of a model comes before providers that pass it on
    names = [name for name in _known_names() if name.partition(":")[2] == model]
    names.sort(key=lambda name: known.index(maker) if (maker := name.partition(":")[0]) in known else len(known))
    return f"Write {names[0]!r}." if names else "Write `provider:model`, such as `anthropic:claude-sonnet-5-5`."


def _known_names() -> list[str]:
    from pydantic_ai.models import known_model_names

    return [name for name in known_model_names() if ":" in name]


def cost(provider: str, model: str, usage: AbstractUsage) -> float | None:
    """Return the dollars that this usage costs, cached tokens at their own price, or None if the model has no price."""
    from genai_prices import calc_price

    try:
        price = calc_price(usage, model, provider_id=_listed(provider))
    except (LookupError, ValueError):  # not in the list; counts that do not add up
        return None
    return float(price.total_price)


def has_price(provider: str, model: str) -> bool:
    """Return True if the list has a price for the model. This needs no client."""
    from genai_prices import Usage

    return cost(provider, model, Usage(input_tokens=1000, output_tokens=1000)) is not None


def _listed(provider: str) -> str:
    """The provider's name in the price list: an API's suffix and a gateway's prefix say nothing about the price."""
    return provider.removeprefix("gateway/").removesuffix("-chat").removesuffix("-responses")


_NO_KEY = "api-key-not-set"  # what servers of one's own are sent: clients insist on some key
_DEFAULT_ADDRESSES = {"ANTHROPIC_BASE_URL": "https://api.anthropic.com", "OPENAI_BASE_URL": "https://api.openai.com/v1"}
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]{3,})`")
# Models without eyes that pydantic-ai's profiles say nothing about, wherever they are served.
_READ_ONLY_TEXT = re.compile(
    r"^deepseek:|\bdeepseek-|gpt-oss|gpt-3\.5|\bo1-mini|\bo3-mini|codestral|\bcommand-r|llama-?3\.[13]"
)
_EXTRAS = {"google-cloud": "google", "bedrock-mantle": "bedrock"}  # of pydantic-ai, where they are not the provider
_READ_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 10.0
# Which formats a provider takes as they are.
_OPENAI = ("openai-responses", "openai-chat")
_APIS = {
    "anthropic": ("anthropic",),
    "openai": _OPENAI,
    "openai-responses": _OPENAI,
    "openai-chat": _OPENAI,
    "ollama": ("openai-chat",),
    "vllm": ("openai-chat",),
}
# Providers whose every whole answer says why it ended: one that does not say was cut off on the way.
_SAY_WHY_THEY_END = frozenset({"anthropic", "openai"})


def provider_source(name: str, environ: Mapping[str, str], login: Login | None = None) -> ProviderSource:
    """Return the source of a `provider:model` (or `provider/model`). Raise ModelUnusable if it cannot work.

    `login` replaces a missing key of Anthropic for requests that are passed on unchanged.
    """
    source = ProviderSource(*split_name(name), environ, login)
    source.check()
    return source


class ProviderSource:
    """Asks one model of one provider."""

    def __init__(self, provider: str, model: str, environ: Mapping[str, str], login: Login | None = None) -> None:
        self._provider = provider
        self._model = model
        self._environ = environ
        self._login = login if provider == "anthropic" and variable_with_key(provider, environ) is None else None
        self._ssl: SSLContext | None = None
        self._profile: ModelProfile = {}

    @property
    def name(self) -> str:
        return f"{self._provider}:{self._model}"

    def cost(self, usage: RequestUsage) -> float | None:
        return cost(self._provider, self._model, usage)

    def check(self) -> None:
        """Raise ModelUnusable if a package, a key or an address is missing."""
        import httpx2

        self._ssl = httpx2.create_ssl_context()
        self._profile = self._built(self._client()).profile

    def takes(self, media_type: str) -> bool:
        """As pydantic-ai knows it of the model and of what its adapter can send; some it does not know are known here.

        Where nobody knows, the provider is asked: its refusal ends the run, in its words.
        """
        if _READ_ONLY_TEXT.search(f"{self._provider}:{self._model}"):
            return False
        if media_type.startswith("image/"):
            return self._profile.get("supports_image_input", True)
        if self._provider == "ollama":  # its API has pictures, and no other files
            return False
        documents = self._profile.get("supported_document_media_types")
        return self._profile.get("supports_document_input", True) and (documents is None or media_type in documents)

    def upstream(self, api: str) -> Upstream | None:
        """Raises KeyRefused where a login has run out."""
        if api not in _APIS.get(self._provider, ()):
            return None
        found = self._credentials()
        key = found["api_key"] if self._login is None else self._login.token(SystemClock())
        is_bearer = self._provider != "anthropic" or self._login is not None
        secrets = credentials.secrets(self._environ)
        if self._login is not None:
            secrets[key] = "the login"
        return Upstream(
            name=self.name,
            url=str(found["base_url"]).rstrip("/"),
            model=self._model,
            headers={"authorization": f"Bearer {key}"} if is_bearer else {"x-api-key": key},
            login=self._login is not None,
            ssl=self._ssl,
            failure=self._failure,
            clean=lambda text: redact(text, secrets),
        )

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError

        if self._login is not None:
            raise KeyRefused(
                f"{self.name} cannot be asked in this way with a login",
                hint="A login with Claude is for `runtime: claude`. Set ANTHROPIC_API_KEY for all others.",
            )
        charged = False

        def accepted() -> None:
            nonlocal charged
            charged = True

        async with self._client() as client:
            model = self._built(client)
            try:
                async with model:
                    return await _ask(model, query, on_text, accepted)
            except ModelAPIError as error:
                failure = self._explained(error)
                failure.charged = charged
                raise failure from None
            except (UnexpectedModelBehavior, UserError) as error:
                raise ModelFailed(f"{self.name}: {self._clean(error.message)}", charged=charged) from None

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        timeout = httpx2.Timeout(_READ_TIMEOUT, connect=_CONNECT_TIMEOUT)
        return httpx2.AsyncClient(verify=self._ssl or httpx2.create_ssl_context(), timeout=timeout)

    def _built(self, client: httpx2.AsyncClient) -> Model[Any]:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        try:
            return infer_model(self.name, lambda _: self._connected(client))
        except ImportError:
            raise ModelUnusable(
                f"{self.name} needs a package that is not installed",
                hint=f"Install it: pip install 'pydantic-ai-slim[{_EXTRAS.get(self._provider, self._provider)}]'",
            ) from None
        except (UserError, ValueError) as error:
            variables = _VARIABLE.findall(str(error))
            if not variables:
                raise ModelUnusable(f"{self.name} cannot be used: {self._clean(str(error))}") from None
            raise self._unset(variables[0]) from None

    def _connected(self, client: httpx2.AsyncClient) -> Provider[Any]:
        """The provider, on this connection where it takes one, and without retries of its own."""
        from pydantic_ai.providers import infer_provider, infer_provider_class

        if self._provider.startswith("gateway/"):
            return infer_provider(self._provider)
        maker = infer_provider_class(self._provider)
        accepted = inspect.signature(maker).parameters
        options = {name: value for name, value in self._credentials().items() if name in accepted}
        if accepted.keys() & {"openai_client", "anthropic_client"}:
            options["http_client"] = client
        provider = maker(**options)
        if hasattr(provider.client, "max_retries"):
            provider.client.max_retries = 0
        return provider

    def _credentials(self) -> dict[str, Any]:
        """Key and address from the environment that was handed in, not from this process's."""
        found: dict[str, Any] = {}
        address = ADDRESSES.get(self._provider)
        if address:
            url = self._environ.get(address) or _DEFAULT_ADDRESSES.get(address)
            if url is None:
                raise self._unset(address)
            found["base_url"] = url
        if variable := variable_with_key(self._provider, self._environ):
            found["api_key"] = self._environ[variable].strip()
        elif self._login is not None or self._provider in KEYS:
            if self._login is None and not (address and self._environ.get(address)):
                raise self._unset(KEYS[self._provider][0])
            found["api_key"] = _NO_KEY
        return found

    def _unset(self, variable: str) -> ModelUnusable:
        return ModelUnusable(
            f"{self.name} cannot be asked: {variable} is not set",
            hint=f"Set {variable}, or choose another model. `guild demo` needs none.",
        )

    def _explained(self, error: ModelAPIError) -> ModelFailed:
        """What pydantic-ai says of a failure, told apart like any other; where that says nothing, by its class."""
        from pydantic_ai.exceptions import ModelServerError

        status = getattr(error, "status_code", None)
        failed = self._failure(status, error.body, error.retry_after)
        known = _kind(error)
        kind = known if type(failed) is ModelFailed else None
        if kind is None and (status or said_in(error.body)):
            return failed
        said = self._clean(said_in(error.body) or (f"HTTP {status}" if status else error.message))
        passes = known in PASSING or isinstance(error, ModelServerError) if status is None else is_transient(status)
        return self._told(kind or ModelFailed, said, status=status, retry_after=error.retry_after, transient=passes)

    def _failure(self, status: int | None, body: Any, retry_after: float | None = None) -> ModelFailed:
        """A provider's failure in our words. Its own words are kept, without any key that may be in them."""
        kind = kind_of(status, str(body))
        said = self._clean(said_in(body) or (f"HTTP {status}" if status else "it did not say why"))
        return self._told(kind, said, status=status, retry_after=retry_after)

    def _told(self, kind: type[ModelFailed], said: str, **more: Any) -> ModelFailed:
        address = ADDRESSES.get(self._provider, "")
        keyless = self._login is None and variable_with_key(self._provider, self._environ) is None
        if kind is KeyRefused and keyless and self._provider in KEYS and self._environ.get(address):
            words = f"{self.name} wants a key, and none is set"
            hint = f"Set {KEYS[self._provider][0]}: the server that {address} names wants one."
            return explained(kind, self.name, said, words=words, hint=hint, **more)
        return explained(kind, self.name, said, hint=self._hint(kind), **more)

    def _hint(self, kind: type[ModelFailed]) -> str | None:
        if kind is KeyRefused and self._login is not None:
            return "Log in again: `claude setup-token`, or `claude`."
        if kind is KeyRefused:
            variable = variable_with_key(self._provider, self._environ) or KEYS.get(self._provider, ("its key",))[0]
            return f"Check {variable}: is it right, and may it use this model?"
        if kind is not UnknownModel:
            return None
        names = (name for name in _known_names() if name.startswith(f"{self._provider}:") and name != self.name)
        return did_you_mean(self.name, names)

    def _clean(self, text: str) -> str:
        """The text on one line, not too long, without the values of credentials."""
        return one_line(text, credentials.secrets(self._environ))


async def _ask(model: Model[Any], query: Query, on_text: OnText, accepted: Callable[[], None]) -> ModelResponse:
    """Return the answer. Its text is published while it is streamed, or at once if the model cannot stream.

    `accepted` is called when the provider has accepted the request.
    """
    from pydantic_ai.direct import model_request, model_request_stream

    shown = query.parameters
    messages = query.messages  # as they are: pydantic-ai's preparation would add words of its own to the prompt
    settings = _settings(model, query)
    try:
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=shown
        ) as stream:
            accepted()
            async for event in stream:
                if piece := _piece(event):
                    on_text(piece)
            response = stream.get()
    except NotImplementedError:
        response = await model_request(model, messages, model_settings=settings, model_request_parameters=shown)
        accepted()
        if response.text:
            on_text(response.text)
    if response.state == "incomplete" or (response.finish_reason is None and model.system in _SAY_WHY_THEY_END):
        text = f"{model.model_id}: the answer broke off before it was complete"
        raise ModelFailed(text, transient=True, charged=True)
    return response


def _settings(model: Model[Any], query: Query) -> ModelSettings:
    """The query's settings, and no retries where a client is told about them with each request."""
    settings = query.settings.copy()
    is_set = model.provider is not None and hasattr(model.provider.client, "max_retries")
    if not is_set and "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0
    return settings


def _piece(event: Any) -> str | None:
    """The text that an event brings, if it brings some of the answer's text."""
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return None


def _kind(error: ModelAPIError) -> type[ModelFailed] | None:
    """The class of a failure by what pydantic-ai has found out, also of providers whose words are not known here."""
    from pydantic_ai import exceptions

    kinds: list[tuple[type[Exception], type[ModelFailed]]] = [
        (exceptions.ModelAuthenticationError, KeyRefused),
        (exceptions.ModelNotFoundError, UnknownModel),
        (exceptions.ModelContextWindowExceededError, ContextTooLong),
        (exceptions.ModelQuotaExceededError, NoCredit),
        (exceptions.ModelRateLimitError, RateLimited),
        (exceptions.ModelUnavailableError, Overloaded),
        (exceptions.ModelConnectionError, NotReachable),
        (exceptions.ModelRequestTimeout, NotReachable),
    ]
    return next((ours for theirs, ours in kinds if isinstance(error, theirs)), None)
