"""The hall: composes all packages into the process that owns a home, and defines the interface that callers use.

Above: the command line (`cli`) and the Python library (`guildhall`), which are clients of the interface.
Below: every other package. The hall passes each package the objects that it needs.
Does not contain domain logic: an operation of more than a few lines belongs to the package of its noun.

Flow of a call: `client` -> `server` (in another process) -> `services` -> `composition` -> the packages below.
"""
