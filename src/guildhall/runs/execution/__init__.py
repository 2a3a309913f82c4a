"""Execution: starts runs, keeps them alive and ends them. Does not decide what a run is made of."""
