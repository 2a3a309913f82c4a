"""Commands for jobs in the background."""
