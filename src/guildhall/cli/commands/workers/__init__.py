"""Commands for what runs are made of: workers, memory, packages, members, trust."""
