"""The wire formats of model providers, from the provider's side: what clients send, what they are answered.

Above: the wire server, which speaks them over HTTP. Below: pydantic-ai's messages, into which a request is read and
from which an answer is written. Not a client of any provider: those are pydantic-ai's own.
"""
