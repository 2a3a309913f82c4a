"""Testing support for users: a scripted model server for tests of their own workers and programs.

Above: nothing. No other package imports it.
Below: models, hall, rpc, runs, jobs, projects, core.
Does not replace parts of Guildhall by mocks: the real parts run, without a provider.
"""
