"""Commands that start, follow, control, inspect and repeat runs."""
