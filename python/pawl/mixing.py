"""mixed(): 64 bits to 64 bits, for orders and seeds that every process computes alike. Part of what a seed means: it
never changes."""
from __future__ import annotations

_MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """One to one, each bit depending on all (the finaliser of splitmix64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
