"""The hall: the composition root, its operations, and how a caller reaches it.

Above: the command line and the library, which are its clients. Below: everything it wires together. Not a place for
domain logic: a verb that needs more than a few lines belongs to the floor whose noun it is about.
"""
