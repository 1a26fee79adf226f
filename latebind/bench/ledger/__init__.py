"""A client that keeps a ledger: every request must get exactly one final answer, its own, and a correct one."""
