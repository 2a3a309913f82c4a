"""The command line: parse, call the hall, print.

Above: nothing. Below: `hall.client`. Not a place for decisions: the hall makes them, so that other clients of the hall
behave the same. Nothing heavy is imported before a command needs it.
"""
