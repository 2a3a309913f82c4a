"""The client side of a hall: the interface, and the hall of another process behind it.

The command line imports nothing else of the hall. Does not import SQLAlchemy, pydantic or anything else that is slow.
"""
