"""The services of a hall, carried out in this process: one module for each service of `hall.client.interface`.

Above: the HTTP API, the library, and commands that are the hall themselves. Below: the hall's parts. Not a place for
domain logic: a verb that needs more than a few lines belongs to the package of its noun.
"""
