"""The services of a hall: implement the interface of `hall.client.interface` in this process.

Above: the HTTP API, the library, members, and commands that open a hall inside their own process.
Below: `hall.composition`, the parts of the hall.
Does not contain domain logic: an operation of more than a few lines belongs to the package of its noun.
"""
