"""Commands for git repositories: projects, commissions, meetings."""
