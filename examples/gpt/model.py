"""A GPT over bytes: pre-norm blocks, causal attention, dropout."""
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

BYTE_VALUES = 256


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        cut = self.query_key_value(x).view(batch, length, -1, 3, width // self.heads)  # by heads, so that ranks may share them
        query, key, value = cut.permute(3, 0, 2, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.hidden(self.hidden_norm(x)))


class GPT(nn.Module):
    """Bytes (batch, context) to the logits of each byte that follows (batch, context, 256)."""

    def __init__(self, layers: int, width: int, heads: int, context: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTE_VALUES, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTE_VALUES, bias=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        return self.head(self.norm(self.blocks(x)))
