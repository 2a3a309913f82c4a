"""Tools: what they are, the gate that every call passes, and the built-in ones.

Above: workers declare them, runs assemble them. Below: policy, which the gate asks. Not a home for domain tools: a
domain that offers some has its own `toolbox.py`.
"""
