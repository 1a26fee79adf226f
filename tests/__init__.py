"""The tests; they mirror the tree. What holds for all of their processes is set here, before anybody imports torch."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes run tests, and what they start wants the cores too
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits for its siblings leaves them its core
