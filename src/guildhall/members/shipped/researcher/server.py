"""The researcher. What is special about it lies beside this file: its worker, its prompt, the form of its report."""

from guildhall import Member

if __name__ == "__main__":
    Member(__file__).main()
