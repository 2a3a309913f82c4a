"""The command line: parse, call the hall, print.

Above: nothing. Below: `hall.client`, the only way to anything that happens. Not a place for decisions: what a command
does is done by the hall, so that the page and the library do the same. Nothing heavy is imported before a command
needs it.
"""
