"""Tests, laid out like src: tests/<package>/test_<module>.py. They use real files, processes and sockets."""
