"""The built-in tools: files, search, shell, web pages and web search.

Does not check permissions: every call has passed the gate."""
