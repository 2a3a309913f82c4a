"""Members: plug-ins with tools, workers or both, spoken to over HTTP; and what they serve. Below it: jobs."""
