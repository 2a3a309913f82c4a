"""Dialects: read and write the wire formats of Anthropic and OpenAI, as a provider does.

Above: `models.passthrough` and `hall.doors`, which speak these formats over HTTP.
Below: the message types of pydantic-ai. A request is read into these types, and an answer is written from them.
Does not call providers: `models.provider_source` and `models.passthrough` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.models.dialects.anthropic import Anthropic as Anthropic
    from guildhall.models.dialects.base import Dialect as Dialect
    from guildhall.models.dialects.base import InvalidMessage as InvalidMessage
    from guildhall.models.dialects.openai_chat import OpenAIChat as OpenAIChat
    from guildhall.models.dialects.openai_responses import OpenAIResponses as OpenAIResponses

__getattr__, __dir__ = lazy_exports(__name__, __file__)
