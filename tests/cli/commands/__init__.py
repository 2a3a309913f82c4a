"""Tests of the commands, in the same folders as the commands."""
