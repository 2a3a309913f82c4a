"""Commands for the hall's process and for other programs that use it."""
