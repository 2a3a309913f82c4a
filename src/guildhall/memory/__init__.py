"""What workers remember: small named texts in plain files, in three scopes, with a record of who wrote them.

Above: runs, which puts the memory into a prompt and hands over the model call that condenses it; the hall, for the
person's commands. Below: workers (whose memory it is), tools (the memory tools), store (the record), core. Beside it,
and never imported: models and runtimes. The files are the memory; the record is not, and says only how they came to be.
"""
