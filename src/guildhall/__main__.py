"""`python -m guildhall` is the command `guild`."""

import sys

from guildhall.cli.main import entry

if __name__ == "__main__":
    sys.exit(entry())
