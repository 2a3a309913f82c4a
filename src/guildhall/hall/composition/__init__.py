"""The parts of a hall and how they fit together. `Hall` is the only class that creates all of them.

Does not contain operations: services ask the parts for what they need.
"""
