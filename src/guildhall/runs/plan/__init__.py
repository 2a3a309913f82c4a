"""The plan: what a worker could do if it ran, worked out before anything happens.

Does not start anything that could have an effect."""
