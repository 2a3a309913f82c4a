"""Built-in tools: files, search, shell, web pages and web search.

Does not check permissions, because every call has passed the gate (`tools.gate`).
"""
