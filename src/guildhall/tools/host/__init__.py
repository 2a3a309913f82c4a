"""Tool host: a confined Python process that executes the tools of toolboxes and packages.

`process` is the hall's side, `main` the program inside, `modules` loads packages in it. Code of the hall is not
imported there.
"""
