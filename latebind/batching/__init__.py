"""Which requests run together: what a run costs, who is admitted, and the policies. Pure."""
