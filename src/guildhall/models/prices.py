"""What tokens cost, by the price list that comes with genai-prices. Nothing is fetched from the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_ai.usage import RequestUsage


def cost(provider: str, model: str, usage: RequestUsage) -> float | None:
    """The dollars that this usage costs, cached tokens at their own price; None when the model has no price."""
    from genai_prices import calc_price

    try:
        price = calc_price(usage, model, provider_id=_listed(provider))
    except (LookupError, ValueError):  # not in the list; counts that do not add up
        return None
    return float(price.total_price)


def has_price(provider: str, model: str) -> bool:
    """Whether the list has a price for the model. No client is needed to know that."""
    from genai_prices import Usage, calc_price

    try:
        calc_price(Usage(input_tokens=1000, output_tokens=1000), model, provider_id=_listed(provider))
    except (LookupError, ValueError):
        return False
    return True


def _listed(provider: str) -> str:
    """The provider's name in the price list: an API's suffix and a gateway's prefix say nothing about the price."""
    name = provider.removeprefix("gateway/")
    for suffix in ("-chat", "-responses"):
        name = name.removesuffix(suffix)
    return name
