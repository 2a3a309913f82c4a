"""Guildhall runs AI workers that are files."""
