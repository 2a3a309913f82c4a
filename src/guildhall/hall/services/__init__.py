"""The services of a hall: implement the interface of `hall.client.interface` in this process.

Above: the HTTP API, the library, members, and commands that open a hall inside their own process.
Below: `hall.testrun`, and the parts of the hall in `hall.composition`.
Does not contain domain logic: the packages below the hall do.
"""
