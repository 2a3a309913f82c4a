"""Plan: predicts the possible effects of a worker before it runs, and renders them for the user.

Does not start anything that could have an effect.
"""
