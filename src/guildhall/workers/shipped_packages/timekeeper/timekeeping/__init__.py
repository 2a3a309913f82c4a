"""Reckoning with dates."""
