"""Attacks on the boundaries of Guildhall. Each test repeats a class of attacks that succeeded once, or must not."""
