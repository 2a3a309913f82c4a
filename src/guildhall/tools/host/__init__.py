"""The tool host: a confined Python process that executes the tools of other people's code.

`process` is the hall's side, `main` the program inside, `modules` what it loads.
Nothing of the hall is importable there."""
