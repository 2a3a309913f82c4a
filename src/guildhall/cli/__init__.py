"""Command line: parses the arguments of `guild`, calls the hall and prints the result.

Above: nothing.
Below: hall, through `hall.client`, and the types of the packages below it.
Does not decide anything. The hall decides, so that all clients of the hall behave alike. Heavy modules are not imported
before a command needs them.
"""

from __future__ import annotations

from guildhall.core.lazy_exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guildhall.cli.main import entry as entry

__getattr__, __dir__ = lazy_exports(__name__, __file__)
