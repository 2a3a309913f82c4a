"""Store: the SQLite database of a home, with its tables, its transactions and its creation.

Above: hall, workflow, projects, jobs, activities, runs, memory, room and workers, each with its SQL in `records.py`.
Below: core.
The store does not interpret rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.store.engine import Store as Store
    from guildhall.store.engine import scratch as scratch
    from guildhall.store.schema import is_created as is_created
    from guildhall.store.schema import prepare as prepare
    from guildhall.store.tables import metadata as metadata

__getattr__, __dir__ = lazy_exports(__name__, __file__)
