"""What users test their own workers and programs with: a scripted model server.

Above: nothing, no other floor imports it. Below: everything. Does not replace parts of Guildhall by stand-ins: the real
parts run, without a provider.
"""
