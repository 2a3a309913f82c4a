"""The parts of a hall and their connections. `Hall` is the only class that creates all of them.

Does not contain operations: `hall.services` implements these with the parts.
"""
