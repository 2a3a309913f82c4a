"""The client side of a hall: the interface, its wire format, and the client of a hall in another process.

Every command imports these modules.
Does not import SQLAlchemy, pydantic or any other slow module.
Does not implement operations: `hall.services` does.
"""
