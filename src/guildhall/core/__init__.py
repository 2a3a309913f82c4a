"""What every floor may stand on: errors (their hints in nearest), clock, ids, config, paths, events, frame, yaml.

Above: everything. Below: nothing but the standard library, pydantic and ruamel.yaml (imported late).
Not a place for helpers: the list is closed, and adding to it takes a decision record.
"""
