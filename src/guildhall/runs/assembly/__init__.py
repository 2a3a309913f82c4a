"""Assembly: a worker, a request and a frame become exactly what a run executes.

Does not execute anything and does not write anything."""
