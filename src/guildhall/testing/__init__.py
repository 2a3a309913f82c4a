"""Testing support: a scripted model server for tests of workers and programs.

Above: nothing.
Below: models, hall, rpc, runs, jobs, projects, core.
No part of Guildhall is replaced by a mock. Only the provider is scripted.
"""
