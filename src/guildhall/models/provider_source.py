"""Provider source: calls any model that pydantic-ai supports (`provider:model`), and computes prices.

Each call uses a connection of its own. A source works in any event loop and leaves nothing open.
Does not retry: `door` does, and the retries of the clients are switched off.
Does not read keys from this process: the caller passes in the environment.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.clock import SystemClock
from guildhall.core.config import ModelTimeouts
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
from guildhall.core.ids import fingerprint
from guildhall.core.redaction import redact
from guildhall.core.text_checks import did_you_mean, nearest
from guildhall.models import credentials
from guildhall.models.credentials import KEY_VARIABLES, URL_VARIABLES, Login, find_key_variable
from guildhall.models.model import OnText, Query, Upstream, display_url, is_transient, system_text
from guildhall.models.provider_errors import TRANSIENT_ERRORS, build_error, clean_line, error_class, provider_message

if TYPE_CHECKING:
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
    """Return the provider and the model of a name. Raise ModelUnusable if the provider is unknown."""
    for separator in (":", "/"):
        provider, found, model = name.partition(separator)
        if found and model and _is_provider(provider):
            return provider, model
    provider, found, model = name.replace("/", ":").partition(":")
    is_file = name.endswith((".yaml", ".yml", ".json")) and ":" not in name
    if found and not model and _is_provider(provider):
        raise ModelUnusable(f"invalid model {name!r}: the model is missing", hint=_name_hint(name))
    if found and not is_file:
        known = {name.partition(":")[0] for name in _known_names()} | KEY_VARIABLES.keys() | URL_VARIABLES.keys()
        raise ModelUnusable(f"unknown provider {provider!r}", hint=did_you_mean(provider, known))
    hint = f"For a script, write script:{name}." if is_file else _name_hint(name)
    raise ModelUnusable(f"invalid model {name!r}: the provider is missing", hint=hint)


def _is_provider(name: str) -> bool:
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(name)
    except ImportError:
        return True  # its package is not installed
    except ValueError:
        return False
    return True


def _name_hint(model: str) -> str:
    known = list(KEY_VARIABLES)  # the maker of a model is listed before resellers
    names = [name for name in _known_names() if name.partition(":")[2] == model]
    names.sort(key=lambda name: known.index(maker) if (maker := name.partition(":")[0]) in known else len(known))
    return f"Write {names[0]!r}." if names else "Write `provider:model`, such as `anthropic:claude-sonnet-5-5`."


def _known_names() -> list[str]:
    from pydantic_ai.models import known_model_names

    return [name for name in known_model_names() if ":" in name]


def nearest_model(name: str) -> str | None:
    """Return a hint with the known model of the provider that is most similar to an unknown model, or None."""
    provider, _, model = name.partition(":")
    known = [other.partition(":")[2] for other in _known_names() if other.partition(":")[0] == provider]
    known += _priced_models(provider)
    guess = None if model in known else nearest(model, known)
    return f"Did you mean '{provider}:{guess}'?" if guess else None


def _priced_models(provider: str) -> list[str]:
    """Return the models of a provider in the price list."""
    from genai_prices import data_snapshot

    providers = data_snapshot.get_snapshot().providers
    listed = _price_list_id(provider)
    return [model.id for entry in providers if entry.id == listed for model in entry.models]


def _price_list_id(provider: str) -> str:
    """Return the name of a provider in the price list, which has no gateways and no API suffixes."""
    return provider.removeprefix("gateway/").removesuffix("-chat").removesuffix("-responses")


def cost(provider: str, model: str, usage: AbstractUsage, service_tier: str | None = None) -> float | None:
    """Return the cost in dollars, with cached tokens at their own price, or None if the model has no price."""
    from genai_prices import calc_price

    try:
        context = {"service_tier": service_tier} if service_tier else None
        price = calc_price(usage, model, provider_id=_price_list_id(provider), price_context=context)
    except (LookupError, ValueError):  # an unlisted model, or inconsistent counts
        return None
    return float(price.total_price)


def has_price(provider: str, model: str) -> bool:
    from genai_prices import Usage

    return cost(provider, model, Usage(input_tokens=1000, output_tokens=1000)) is not None


_PLACEHOLDER_KEY = "api-key-not-set"  # for servers of the user: clients require some key
_DEFAULT_URLS = {"ANTHROPIC_BASE_URL": "https://api.anthropic.com", "OPENAI_BASE_URL": "https://api.openai.com/v1"}
_VARIABLE = re.compile(r"`([A-Z][A-Z0-9_]{3,})`")
# Models without image input that the profiles of pydantic-ai do not describe, at any provider.
_TEXT_ONLY_MODELS = re.compile(
    r"^deepseek:|\bdeepseek-|gpt-oss|gpt-3\.5|\bo1-mini|\bo3-mini|codestral|\bcommand-r|llama-?3\.[13]"
)
_EXTRAS = {"google-cloud": "google", "bedrock-mantle": "bedrock"}  # of pydantic-ai, if not named as the provider
_CLIENT_OPTIONS = {"openai_client", "anthropic_client"}  # of providers that accept our HTTP client
# The APIs whose requests can be forwarded unchanged, by provider.
_OPENAI = ("openai-responses", "openai-chat")
_APIS = {
    "anthropic": ("anthropic",),
    "openai": _OPENAI,
    "openai-responses": _OPENAI,
    "openai-chat": _OPENAI,
    "ollama": ("openai-chat",),
    "vllm": ("openai-chat",),
}
# Providers whose complete answers always have a finish reason. Without it, the answer is incomplete.
_REPORT_FINISH_REASON = frozenset({"anthropic", "openai"})


def create_provider_source(
    name: str, environ: Mapping[str, str], login: Login | None = None, timeouts: ModelTimeouts | None = None
) -> ProviderSource:
    """Return the source of `provider:model` or `provider/model`. Raise ModelUnusable if it cannot work.

    `login` replaces a missing Anthropic key for requests that are forwarded unchanged.
    """
    source = ProviderSource(*split_name(name), environ, login, timeouts)
    source.check()
    return source


class ProviderSource:
    """A model of a provider."""

    def __init__(
        self,
        provider: str,
        model: str,
        environ: Mapping[str, str],
        login: Login | None = None,
        timeouts: ModelTimeouts | None = None,
    ) -> None:
        self._provider = provider
        self._model = model
        self._environ = environ
        self._login = login if provider == "anthropic" and find_key_variable(provider, environ) is None else None
        self._timeouts = timeouts or ModelTimeouts()
        self._ssl: SSLContext | None = None
        self._profile: ModelProfile = {}

    @property
    def name(self) -> str:
        return f"{self._provider}:{self._model}"

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        return cost(self._provider, self._model, usage, service_tier)

    def check(self) -> None:
        """Raise ModelUnusable if a package, a key or an address is missing."""
        import httpx2

        self._ssl = httpx2.create_ssl_context()
        self._profile = self._create_model(self._create_client()).profile

    def accepts(self, media_type: str) -> bool:
        """Return True if the model may accept the type.

        Unknown models count as accepting it. If such a model rejects a file, the run fails with the provider's message.
        """
        if _TEXT_ONLY_MODELS.search(f"{self._provider}:{self._model}"):
            return False
        if media_type.startswith("image/"):
            return self._profile.get("supports_image_input", True)
        if self._provider == "ollama":  # its API supports images only
            return False
        documents = self._profile.get("supported_document_media_types")
        return self._profile.get("supports_document_input", True) and (documents is None or media_type in documents)

    def upstream(self, api: str) -> Upstream | None:
        """Return the upstream for this API, or None. Raise KeyRefused if a login has expired."""
        if api not in _APIS.get(self._provider, ()):
            return None
        found = self._credentials()
        key = found["api_key"] if self._login is None else self._login.read_token(SystemClock())
        is_bearer = self._provider != "anthropic" or self._login is not None
        secrets = credentials.secret_values(self._environ)
        if self._login is not None:
            secrets[key] = "the login"
        return Upstream(
            name=self.name,
            url=str(found["base_url"]).rstrip("/"),
            model=self._model,
            headers={"authorization": f"Bearer {key}"} if is_bearer else {"x-api-key": key},
            has_login=self._login is not None,
            ssl=self._ssl,
            timeouts=self._timeouts,
            make_error=self._provider_error,
            redact=lambda text: redact(text, secrets),
        )

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings that do not change the request to the provider. Sends nothing.

        The client library drops such settings silently. Without our own HTTP client, only its list of them is known.
        """
        names = [name for name in settings if name != "cache"]
        if self._provider.startswith("gateway/") or not self._accepted_options().keys() & _CLIENT_OPTIONS:
            ignored: frozenset[str] = self._create_model(self._create_client()).unsupported_settings
            return [name for name in names if name in ignored]
        whole = await self._build_request(settings)
        others = [{key: value for key, value in settings.items() if key != name} for name in names]
        return [name for name, other in zip(names, others, strict=True) if await self._build_request(other) == whole]

    async def _build_request(self, settings: Mapping[str, Any]) -> bytes:
        """Return the body of a request with these settings, which is not sent."""
        import httpx2
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.exceptions import ModelAPIError, UserError
        from pydantic_ai.messages import ModelRequest

        bodies: list[bytes] = []

        def reject(request: httpx2.Request) -> httpx2.Response:
            bodies.append(request.content)
            raise httpx2.ConnectError("not sent")

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(reject)) as client:
            model, messages = self._create_model(client), [ModelRequest.user_text_prompt("Hello.")]
            with warnings.catch_warnings(action="ignore"), suppress(ModelAPIError):
                try:
                    async with model_request_stream(model, messages, model_settings=cast("Any", settings)):
                        pass
                except UserError as error:
                    raise ModelUnusable(f"model_settings: {self.name}: {self._clean(error.message)}") from None
        return bodies[0]

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError

        if self._login is not None:
            raise KeyRefused(
                f"{self.name} needs ANTHROPIC_API_KEY: a Claude login works only with `runtime: claude`",
                hint="Set ANTHROPIC_API_KEY, or use `runtime: claude`.",
            )
        is_charged = False

        def on_accepted() -> None:
            nonlocal is_charged
            is_charged = True

        async with self._create_client() as client:
            model = self._create_model(client)
            try:
                async with model:
                    return await _call_model(model, query, self._call_settings(model, query), on_text, on_accepted)
            except ModelAPIError as error:
                failure = self._convert_error(error, has_response=is_charged)
                failure.charged = is_charged
                raise failure from None
            except (UnexpectedModelBehavior, UserError) as error:
                raise ModelFailed(f"{self.name}: {self._clean(error.message)}", charged=is_charged) from None

    def _create_client(self) -> httpx2.AsyncClient:
        import httpx2

        async def on_head(response: httpx2.Response) -> None:
            """Replace the timeout of the first byte by the timeout between bytes."""
            response.request.extensions["timeout"]["read"] = self._timeouts.between_bytes

        timeout = httpx2.Timeout(self._timeouts.first_byte, connect=self._timeouts.connect)
        hooks = {"response": [on_head]}
        verify = self._ssl or httpx2.create_ssl_context()
        return httpx2.AsyncClient(verify=verify, timeout=timeout, event_hooks=hooks)

    def _create_model(self, client: httpx2.AsyncClient) -> Model[Any]:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model

        try:
            return infer_model(self.name, lambda _: self._create_provider(client))
        except ImportError:
            raise ModelUnusable(
                f"{self.name} needs a package that is not installed",
                hint=f"Install it: pip install 'pydantic-ai-slim[{_EXTRAS.get(self._provider, self._provider)}]'",
            ) from None
        except (UserError, ValueError) as error:
            variables = _VARIABLE.findall(str(error))
            if not variables:
                raise ModelUnusable(f"cannot use {self.name}: {self._clean(str(error))}") from None
            raise self._missing_variable(variables[0]) from None

    def _create_provider(self, client: httpx2.AsyncClient) -> Provider[Any]:
        """Return a provider that uses this client, if possible, and does not retry."""
        from pydantic_ai.providers import infer_provider, infer_provider_class

        if self._provider.startswith("gateway/"):
            return infer_provider(self._provider)
        accepted = self._accepted_options()
        options = {name: value for name, value in self._credentials().items() if name in accepted}
        if accepted.keys() & _CLIENT_OPTIONS:
            options["http_client"] = client
        provider = infer_provider_class(self._provider)(**options)
        if hasattr(provider.client, "max_retries"):
            provider.client.max_retries = 0
        return provider

    def _accepted_options(self) -> Mapping[str, inspect.Parameter]:
        from pydantic_ai.providers import infer_provider_class

        return inspect.signature(infer_provider_class(self._provider)).parameters

    def _credentials(self) -> dict[str, Any]:
        """Return the key and the URL from the environment that was passed in, not from this process."""
        found: dict[str, Any] = {}
        address = URL_VARIABLES.get(self._provider)
        if address:
            url = self._environ.get(address) or _DEFAULT_URLS.get(address)
            if url is None:
                raise self._missing_variable(address)
            found["base_url"] = url
        if variable := find_key_variable(self._provider, self._environ):
            found["api_key"] = self._environ[variable].strip()
        elif self._login is not None or self._provider in KEY_VARIABLES:
            if self._login is None and not (address and self._environ.get(address)):
                raise self._missing_variable(KEY_VARIABLES[self._provider][0])
            found["api_key"] = _PLACEHOLDER_KEY
        return found

    def _missing_variable(self, variable: str) -> ModelUnusable:
        return ModelUnusable(
            f"{self.name} needs {variable}, which is not set",
            hint=f"Set {variable}, or choose another model. `guild demo` needs no key.",
        )

    def _timeout_reason(self, error: BaseException, *, has_response: bool) -> str | None:
        """Return the timeout that caused an error, or None if another problem did."""
        import httpx2

        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, httpx2.TimeoutException):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return None
        if isinstance(cause, httpx2.ConnectTimeout):
            return f"no connection within {self._timeouts.connect:g} s"
        if has_response:
            return f"no data for {self._timeouts.between_bytes:g} s"
        return f"no response within {self._timeouts.first_byte:g} s"

    def _convert_error(self, error: ModelAPIError, *, has_response: bool) -> ModelFailed:
        """Convert an error of pydantic-ai. Its class decides if status and message are not conclusive."""
        from pydantic_ai.exceptions import ModelServerError

        if (timeout := self._timeout_reason(error, has_response=has_response)) is not None:
            return self._build_error(NotReachable, timeout)
        status = getattr(error, "status_code", None)
        failed = self._provider_error(status, error.body, error.retry_after)
        known = _mapped_class(error)
        kind = known if type(failed) is ModelFailed else None
        if kind is None and (status or provider_message(error.body)):
            return failed
        reason = self._clean(provider_message(error.body) or (f"HTTP {status}" if status else error.message))
        is_passing = known in TRANSIENT_ERRORS or isinstance(error, ModelServerError)
        transient = is_passing if status is None else is_transient(status)
        more = {"status": status, "retry_after": error.retry_after, "transient": transient}
        return self._build_error(kind or ModelFailed, reason, **more)

    def _provider_error(self, status: int | None, body: Any, retry_after: float | None = None) -> ModelFailed:
        """Return the error for a failure. It quotes the provider's message without secrets."""
        kind = error_class(status, str(body))
        reason = self._clean(provider_message(body) or (f"HTTP {status}" if status else "no reason given"))
        return self._build_error(kind, reason, status=status, retry_after=retry_after)

    def _build_error(self, kind: type[ModelFailed], reason: str, **more: Any) -> ModelFailed:
        address = URL_VARIABLES.get(self._provider, "")
        has_no_key = self._login is None and find_key_variable(self._provider, self._environ) is None
        if kind is KeyRefused and has_no_key and self._provider in KEY_VARIABLES and self._environ.get(address):
            message = f"{self.name} needs a key, and no key is set"
            hint = f"Set {KEY_VARIABLES[self._provider][0]}: the server of {address} requires a key."
            return build_error(kind, self.name, reason, message=message, hint=hint, **more)
        message = None
        if kind is NotReachable and address:
            url = self._environ.get(address) or _DEFAULT_URLS.get(address, "")
            message = f"{self.name} cannot be reached at {display_url(url)}"
        return build_error(kind, self.name, reason, message=message, hint=self._hint(kind), **more)

    def _hint(self, kind: type[ModelFailed]) -> str | None:
        if kind is KeyRefused and self._login is not None:
            return "Log in again: `claude setup-token`, or `claude`."
        if kind is KeyRefused:
            key = KEY_VARIABLES.get(self._provider, ("its key",))[0]
            variable = find_key_variable(self._provider, self._environ) or key
            return f"Check the value of {variable} and its access to this model."
        if kind is not UnknownModel:
            return None
        if self._provider in ("openai", "openai-responses") and self._environ.get("OPENAI_BASE_URL"):
            chat = f"openai-chat:{self._model}"
            return f"Check the name of the model. If the server has no Responses API (/responses), write {chat!r}."
        return nearest_model(self.name) or "Check that your account has access to this model."

    def _call_settings(self, model: Model[Any], query: Query) -> ModelSettings:
        """Return the settings of a query, without retries of the client and with a cache key for OpenAI.

        Equal keys lead to the same cache. The key is not sent to a server that only imitates Chat Completions.
        """
        settings: dict[str, Any] = {**query.settings}
        is_set = model.provider is not None and hasattr(model.provider.client, "max_retries")
        if not is_set and "max_retries" not in model.unsupported_settings:
            settings["max_retries"] = 0
        is_openai = self._provider in ("openai", "openai-responses") or (
            self._provider == "openai-chat" and not self._environ.get("OPENAI_BASE_URL")
        )
        if settings.get("cache") and is_openai:
            tools = [tool.name for tool in query.parameters.function_tools]
            settings["openai_prompt_cache_key"] = fingerprint([query.worker, system_text(query.messages), tools])
        return cast("ModelSettings", settings)

    def _clean(self, text: str) -> str:
        return clean_line(text, credentials.secret_values(self._environ))


async def _call_model(
    model: Model[Any],
    query: Query,
    settings: ModelSettings,
    on_text: OnText,
    on_accepted: Callable[[], None],
) -> ModelResponse:
    """Return the answer. Its text is published while it is streamed, or at once if the model cannot stream.

    Calls `on_accepted` when the provider has accepted the request.
    """
    from pydantic_ai.direct import model_request, model_request_stream

    messages = query.messages  # unprepared: the preparation of pydantic-ai would add text to the prompt
    shown = query.parameters
    try:
        async with model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=shown
        ) as stream:
            on_accepted()
            async for event in stream:
                if piece := _event_text(event):
                    on_text(piece)
            response = stream.get()
    except NotImplementedError:
        response = await model_request(model, messages, model_settings=settings, model_request_parameters=shown)
        on_accepted()
        if response.text:
            on_text(response.text)
    if response.state == "incomplete" or (response.finish_reason is None and model.system in _REPORT_FINISH_REASON):
        text = f"{model.model_id}: the answer ended before it was complete"
        raise ModelFailed(text, transient=True, charged=True)
    return response


def _event_text(event: Any) -> str | None:
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return None


def _mapped_class(error: ModelAPIError) -> type[ModelFailed] | None:
    """Return the error class for an exception class of pydantic-ai, or None."""
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
