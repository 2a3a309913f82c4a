"""For tests, ours and those of users: a scripted model server, and suites that an implementation must pass.

Above: nothing, no other floor imports it. Below: everything. Not a place for stand-ins of our own parts: what is here
lets the real ones run without a provider.
"""
