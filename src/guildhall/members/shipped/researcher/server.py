"""The researcher member: serves the worker, the prompt and the report schema that are in this folder.

Does not define tools of its own.
"""

from guildhall import Member

if __name__ == "__main__":
    Member(__file__).main()
