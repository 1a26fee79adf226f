"""A module served in ten lines: `python -m examples.clients.serve`. The other files here are its clients."""

import torch
from torch import nn

import latebind


def tiny() -> nn.Module:
    """Return a small network with random weights: `(B, 8) float32` to scores `(B, 3) float32`."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).eval()


if __name__ == "__main__":
    latebind.serve(tiny(), torch.randn(16, 8), name="tiny", folder="out/clients", arguments=("--grpc-port", "8001"))
