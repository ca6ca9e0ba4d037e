"""Three small models in plain torch whose checkpoints the matrix exchanges, and the data they learn from.

    gpt     LayerNorm, learned positions, biases, one fused query-key-value matrix (head by head, so that it can be cut)
    llama   RMSNorm, rotary positions (a buffer), grouped queries, SwiGLU, three layers
    moe     as llama, with four experts of which each token takes two

A pipeline stage is the same class with some of its layers, under the same names. First values and data depend on the
names, the seed and the index of a sample in the whole run, never on ranks: every parallelism trains on the same.
"""
import dataclasses
import zlib

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 12  # samples a step over all ranks: two, three and four data-parallel ranks cut it evenly
SEQUENCE = 12


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str
    layers: int
    hidden: int = 24
    heads: int = 4
    groups: int = 4  # of queries that share a key and a value
    head: int = 6
    feed: int = 46  # cut by two it is odd: what shards it again gets uneven pieces
    vocabulary: int = 61
    experts: int = 0


SHAPES = {
    "gpt": Shape("gpt", layers=2),
    "llama": Shape("llama", layers=3, groups=2),
    "moe": Shape("moe", layers=2, groups=2, feed=22, experts=4),
}


class FusedAttention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.head = shape.head
        self.qkv = nn.Linear(shape.hidden, 3 * shape.heads * shape.head)
        self.out = nn.Linear(shape.heads * shape.head, shape.hidden)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (-1, 3, self.head)).unbind(-2)
        return self.out(attend(q, k, v))


class GroupedAttention(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.head = shape.head
        self.share = shape.heads // shape.groups
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.groups * shape.head, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.groups * shape.head, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.register_buffer("frequencies", 100.0 ** -(torch.arange(shape.head // 2) / (shape.head // 2)))

    def turned(self, x):
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), self.frequencies)[:, None, :]
        low, high = x.chunk(2, -1)
        turned = torch.cat([low * angles.cos() - high * angles.sin(), low * angles.sin() + high * angles.cos()], -1)
        return turned.to(x.dtype)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.head)) for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.share, 2) for t in (self.turned(k), v))
        return self.o_proj(attend(self.turned(q), k, v))


def attend(q, k, v):
    """All of batch x positions x heads x head; the answer has its heads joined."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(-2)


class PlainFeed(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.feed)
        self.down = nn.Linear(shape.feed, shape.hidden)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class GatedFeed(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.feed, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.feed, bias=False)
        self.down_proj = nn.Linear(shape.feed, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class ExpertFeed(nn.Module):
    """Every expert sees every token, and weighs zero for those that are not its own: slow, and the same everywhere."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.experts = nn.ModuleList(GatedFeed(shape) for _ in range(shape.experts))

    def forward(self, x):
        best, which = self.router(x).softmax(-1).topk(2, -1)
        weights = torch.zeros(*x.shape[:-1], len(self.experts), dtype=x.dtype)
        weights = weights.scatter(-1, which, best / best.sum(-1, keepdim=True))
        return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts))


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        norm = nn.LayerNorm if shape.kind == "gpt" else nn.RMSNorm
        self.attention_norm = norm(shape.hidden, eps=1e-5)
        self.attention = FusedAttention(shape) if shape.kind == "gpt" else GroupedAttention(shape)
        self.feed_norm = norm(shape.hidden, eps=1e-5)
        self.feed = {"gpt": PlainFeed, "llama": GatedFeed, "moe": ExpertFeed}[shape.kind](shape)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Model(nn.Module):
    """Layers begin..end of the model; the first part also embeds, the last also answers with logits."""

    def __init__(self, shape: Shape, begin: int = 0, end: int | None = None):
        super().__init__()
        end = shape.layers if end is None else end
        if begin == 0:
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
            if shape.kind == "gpt":
                self.positions = nn.Embedding(SEQUENCE, shape.hidden)
        self.layers = nn.ModuleDict({str(i): Layer(shape) for i in range(begin, end)})
        if end == shape.layers:
            self.norm = (nn.LayerNorm if shape.kind == "gpt" else nn.RMSNorm)(shape.hidden, eps=1e-5)
            self.answer = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, x):
        if hasattr(self, "embedding"):
            x = self.embedding(x)
            if hasattr(self, "positions"):
                x = x + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers.values():
            x = layer(x)
        return self.answer(self.norm(x)) if hasattr(self, "answer") else x


def made(kind: str, seed: int, begin: int = 0, end: int | None = None) -> Model:
    """The model or a stage of it, with first values that depend on each parameter's name and the seed alone."""
    model = Model(SHAPES[kind], begin, end)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
            parameter.normal_(0, 0.1, generator=generator)
            if "norm.weight" in name:
                parameter.add_(1)
    return model


def groups_of(model: nn.Module, rates) -> list[dict]:
    """Two groups, as everybody has them: matrices decay, the rest does not. Or one, where it says so."""
    parameters = list(model.parameters())
    if rates.groups == 1:
        return [{"params": parameters, "lr": rates.rate, "weight_decay": rates.decay}]
    return [{"params": [p for p in parameters if p.dim() > 1], "lr": rates.rate, "weight_decay": rates.decay},
            {"params": [p for p in parameters if p.dim() <= 1], "lr": rates.rate / 2, "weight_decay": 0.0}]


def samples(kind: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples of a step: what is seen, and what follows it."""
    vocabulary = SHAPES[kind].vocabulary
    generator = torch.Generator().manual_seed(1_000_003 * (step + 1))
    words = torch.randint(0, vocabulary, (BATCH, SEQUENCE + 1), generator=generator)
    words[:, 1::2] = (words[:, 0::2][:, :words[:, 1::2].shape[1]] * 3 + 1) % vocabulary  # something to learn
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), expected.flatten())
