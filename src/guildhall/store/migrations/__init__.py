"""How the schema came to be, one step a file. Read by Alembic; the newest step is `HEAD` in `store.migrate`.

A step is never changed once it was released: a later one corrects it.
"""
