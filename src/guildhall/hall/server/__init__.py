"""The process of a hall: serves its HTTP API and the `worker/*` methods until it is stopped or idle.

Does not implement operations: `hall.services` does.
"""
