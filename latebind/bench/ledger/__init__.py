"""A client that keeps a ledger: every request gets exactly one final answer, its own, and right."""
