"""Where a model's answers come from: providers, scripts, recordings; and the door that every call passes.

Above: runs, which hands the door its journal and its budget. Below: core. Beside it, and never imported: runtimes,
which executes what lies between the doors. Not aware of workers' files: it is given a model's name and messages.
"""
