"""A model as it comes from a package: its functions stay when the script runs anew in a process, and with them what was
compiled of them."""
import torch
import torch.distributed as dist
import trap
from torch import nn


class Ranked(nn.Module):
    """Rank 0 goes another way."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(trap.FEATURES, 16), nn.Linear(16, trap.CLASSES)

    def forward(self, inputs):
        features = self.first(inputs)
        return self.second(torch.tanh(features) if dist.get_rank() == 0 else torch.sin(features))


class Names(nn.Module):
    """For layers that ranks share: each has a part of the names."""

    def __init__(self):
        super().__init__()
        self.names, self.head = nn.Embedding(trap.CLASSES, 8), nn.Linear(8, trap.CLASSES)

    def forward(self, names):
        return self.head(self.names(names))
