"""FSDP2 as tutorials show it: a model that is made on the meta device, mixed precision, explicit prefetching, an
evaluation and a full checkpoint of rank 0 every few steps. What pawl needs was added."""
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import pawl


@dataclass
class ModelArgs:
    n_layers: int = 3
    vocab_size: int = 64
    max_seq_len: int = 16
    dim: int = 32
    n_heads: int = 4
    dropout_p: float = 0.1


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads, self.head_dim, self.dropout_p = args.n_heads, args.dim // args.n_heads, args.dropout_p
        self.wq, self.wk = nn.Linear(args.dim, args.dim, bias=False), nn.Linear(args.dim, args.dim, bias=False)
        self.wv, self.wo = nn.Linear(args.dim, args.dim, bias=False), nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x):
        bsz, seq_len, _ = x.shape
        q, k, v = (w(x).view(bsz, seq_len, self.n_heads, self.head_dim).transpose(1, 2)
                   for w in (self.wq, self.wk, self.wv))
        output = F.scaled_dot_product_attention(q, k, v, None, self.dropout_p if self.training else 0, is_causal=True)
        return self.wo(output.transpose(1, 2).reshape(bsz, seq_len, -1))

    def reset_parameters(self):
        for w in (self.wq, self.wk, self.wv, self.wo):
            w.reset_parameters()


class TransformerBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(args.dim), Attention(args)
        self.ffn_norm = nn.LayerNorm(args.dim)
        self.feed_forward = nn.Sequential(nn.Linear(args.dim, 4 * args.dim), nn.GELU(),
                                          nn.Linear(4 * args.dim, args.dim))
        self.resid_dropout = nn.Dropout(args.dropout_p)

    def forward(self, x):
        h = x + self.resid_dropout(self.attention(self.attention_norm(x)))
        return h + self.resid_dropout(self.feed_forward(self.ffn_norm(h)))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.pos_embeddings = nn.Embedding(args.max_seq_len, args.dim)
        self.dropout = nn.Dropout(args.dropout_p)
        self.layers = nn.ModuleList(TransformerBlock(args) for _ in range(args.n_layers))
        self.norm, self.output = nn.LayerNorm(args.dim), nn.Linear(args.dim, args.vocab_size, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        h = self.dropout(self.tok_embeddings(tokens) + self.pos_embeddings(positions))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h)).float()

    def reset_parameters(self):
        for module in self.modules():
            if module is not self and hasattr(module, "reset_parameters") and not isinstance(module, Attention):
                module.reset_parameters()


def set_modules_to_prefetch(model, number):
    for i, layer in enumerate(model.layers):
        layer.set_modules_to_forward_prefetch(list(model.layers[i + 1:i + 1 + number]))
        layer.set_modules_to_backward_prefetch(list(reversed(model.layers[max(0, i - number):i])))


def save(model, optim, folder):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optim, options=options)
    if dist.get_rank() == 0 and folder:
        torch.save(states, os.path.join(folder, "checkpoint.pt"))


def main(args):
    job = pawl.init()  # pawl
    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Transformer(ModelArgs())
    fsdp_kwargs = {}
    if args.mixed_precision:
        fsdp_kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **fsdp_kwargs)
    fully_shard(model, **fsdp_kwargs)
    assert isinstance(model, FSDPModule)
    if args.explicit_prefetching:
        set_modules_to_prefetch(model, 2)
    model.to_empty(device="cpu")
    model.reset_parameters()
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    job.protect(model, optim)  # pawl
    for step in job.steps(args.steps):  # pawl
        with step:  # pawl
            if args.explicit_prefetching:
                model.unshard()
            x = torch.randint(0, 64, (4, 16))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optim.step()
            optim.zero_grad()
        if step.lost:  # pawl
            continue  # pawl
        if step % 5 == 0:
            with job.aside("eval"):  # pawl
                model.eval()
                with torch.no_grad():
                    x = torch.arange(16).expand(4, 16)
                    valid = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
                dist.all_reduce(valid)
                model.train()
                save(model, optim, None if step.rehearsal else args.out_dir)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} valid {valid.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--explicit-prefetching", action="store_true")
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--out-dir", default=".")
    torch.set_num_threads(1)
    main(parser.parse_args())
