"""May this happen? Capabilities, rules, limits: judged, never done.

Above: tools, which ask for every call. Below: core. Pure: it looks at a plain Action and answers with a Verdict;
it opens no file, asks no person and remembers nothing.
"""
