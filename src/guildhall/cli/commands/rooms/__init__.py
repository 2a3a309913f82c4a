"""Commands for workflows that stay: start, send, schedule, documents, proposals."""
