"""One fork server for all tests of a process: what they start need not import torch each time."""

from latebind.forks.client import ForkServer

FORKS = ForkServer()
