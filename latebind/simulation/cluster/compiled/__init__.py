"""The cluster simulation compiled by numba: the rules of `exact.py`, request by request, for millions of them.

It plays the policies `late` and `graph` (window 0), chains of stages with learned caches that are waited for, several
workers and kinds of machines, all routers, placers and autoscalers, deaths; and the residency policies `late`, `iam`
and `lru` with whole models, in the orders "waits" and "oldest". `covered.py` refuses the rest by name: other policies,
`leave` or `compact` off, stages that repeat or take longer for longer inputs, lookups aside, learned caches that take
memory, stages that come and go by themselves, loads in the order "fifo" or not beside runs.

With more than 64 models in a machine's memory `late` and `iam` score all of them afresh, where the exact policies look
at those that were lowest when last told: figures are then a few per cent apart (decision 26).
"""
