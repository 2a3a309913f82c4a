"""Calculations with dates."""
