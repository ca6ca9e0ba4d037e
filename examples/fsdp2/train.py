"""Teaches a small transformer to reverse rows of numbers, sharded by FSDP2: each rank holds its part of the weights.

    torchrun --nproc-per-node 2 examples/fsdp2/train.py
    pawl run --standalone --nnodes 2 --spares 1 examples/fsdp2/train.py
    pawl drill -- python examples/fsdp2/train.py
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pawl

NUMBERS, LENGTH, WIDTH, HEADS, LAYERS = 16, 12, 64, 4, 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.attention_norm, self.hidden_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.hidden(self.hidden_norm(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number, self.place = nn.Embedding(NUMBERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUMBERS)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.number(numbers) + self.place(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def shard(model: Transformer, mixed_precision: bool) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed_precision else (
        MixedPrecisionPolicy())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16")
    options = parser.parse_args()

    torch.set_num_threads(1)
    job = pawl.init()
    torch.manual_seed(0)
    model = Transformer()
    shard(model, options.mixed_precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    rows = torch.randint(NUMBERS, (2048, LENGTH), generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(rows, rows.flip(1))
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    torch.manual_seed(1 + dist.get_rank())  # dropout is each rank's own
    job.protect(model, optimizer, scheduler)

    for numbers, reversed_numbers in job.loop(loader, epochs=options.epochs):
        optimizer.zero_grad()
        logits = model(numbers).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), reversed_numbers.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        if job.step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {job.step}: loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
