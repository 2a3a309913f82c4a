"""`guild test`: repeat a recorded run on copies of the project and the home, and compare it with its script.

Does not change the project or the home, except for the test file itself with `--update`.
"""
