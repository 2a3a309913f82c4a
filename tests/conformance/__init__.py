"""What every runtime and every document store does, as checks that each of ours has to pass (docs/conformance.md)."""
