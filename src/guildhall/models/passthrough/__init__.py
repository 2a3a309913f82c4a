"""The model door for programs: requests in a provider's own format, checked, forwarded and answered in that format.

Does not know provider formats; see `guildhall.models.dialects`."""
