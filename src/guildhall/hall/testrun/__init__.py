"""`guild test`: repeats a recorded run on copies of the project and the home, and compares it with its script.

Does not change the project or the home, except for the test file itself with `--update`.
"""
