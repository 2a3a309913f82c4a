"""The tests, laid out as src is: tests/<floor>/test_<module>.py. They use real files, processes and sockets."""
