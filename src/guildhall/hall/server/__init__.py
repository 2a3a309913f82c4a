"""The process of a hall: its HTTP API, its start and end, and the methods that it serves to other programs.

Does not contain operations; see `guildhall.hall.services`."""
