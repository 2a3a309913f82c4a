"""The process of a hall: starts and stops it, and serves its HTTP API and the `worker/*` methods.

Does not implement operations: `hall.services` does.
"""
