"""How runs, rooms, jobs, commissions, meetings and workflows are printed. Does not call the hall to change anything."""
