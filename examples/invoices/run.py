"""Run the clerk from Python and approve its calls."""

from pathlib import Path

from guildhall import Worker


def approve(ask):
    print(ask["title"], ask["body"], sep="\n")
    return "yes"


clerk = Worker.load("clerk", cwd=Path(__file__).parent)
result = clerk.run("Add up the invoices", approver=approve)
print(result.status, result.output, f"{result.usage.turns} turns", f"${result.cost_usd:.4f}")
