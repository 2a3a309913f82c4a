"""Scripted model: answers from a YAML file in place of a provider, and the `test:` section of such a file.

Does not run tests: `hall.testrun` does.
"""
