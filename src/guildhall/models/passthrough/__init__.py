"""Passthrough: the model door for programs, which checks and forwards requests in a provider's format.

Does not know provider formats: `models.dialects` does. Does not serve HTTP: `hall.doors` does.
"""
