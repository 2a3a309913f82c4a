"""The database of a home: tables, transactions, creation.

Above: every floor that remembers something; its SQL is in its own `records.py`. Below: core.
Not aware of any domain: it knows tables, not what a run or an ask means.
"""
