"""Conformance checks that every runtime and every document store must pass (docs/conformance.md)."""
