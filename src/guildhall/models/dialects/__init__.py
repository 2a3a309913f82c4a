"""Dialects: read and write the wire formats of Anthropic and OpenAI, as a provider does.

Above: `models.passthrough` and `hall.doors`, which speak these formats over HTTP.
Below: the message types of pydantic-ai. A request is read into these types, and an answer is written from them.
Does not call providers: `models.providers` and `models.passthrough` do.
"""
