"""The scripted model: answers from a YAML file in place of a provider, and the `test:` section of such a file.

Does not run tests; see `guildhall.hall.testrun`."""
