"""A snapshot segment in another process's memory, read and damaged from outside; the bytes are those of
docs/format.md."""
import struct
from dataclasses import dataclass

PAGE = 4096
SEALED = 2


@dataclass
class Slot:
    pid: int
    state: int
    generation: int
    step: int
    payload_address: int
    payload_bytes: int

    def read(self, offset, size):
        """Of the payload."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(self.payload_address + offset)
            return memory.read(size)

    def flip_bit(self, share=0.5):
        """One bit of the payload, as a bad memory cell would. PermissionError where that is not allowed."""
        address = self.payload_address + int(self.payload_bytes * share)
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            byte = memory.read(1)[0]
            memory.seek(address)
            memory.write(bytes([byte ^ 0x10]))


def pages_up(size):
    return -(-size // PAGE) * PAGE


def replica_slots(pid, seat):
    """The slots of the seat's replica in the pawld `pid`, oldest step first; empty where it holds none."""
    return sorted((slot for begin in _begins(pid, seat) for slot in slots_at(pid, begin)), key=lambda slot: slot.step)


def replica_layout(pid, seat):
    """The rows of the layout text there, as lists of columns."""
    begin, = _begins(pid, seat)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(begin + 56)
        size, = struct.unpack("<Q", memory.read(8))
        memory.seek(begin + PAGE)
        return [line.split("\t") for line in memory.read(size).decode().splitlines()]


def _begins(pid, seat):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        return [int(line.split("-")[0], 16) for line in file if f".replica.{seat} " in line][:1]


def slots_at(pid, begin):
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        def read(offset, form):
            memory.seek(begin + offset)
            return struct.unpack(form, memory.read(struct.calcsize(form)))
        magic, = read(0, "<8s")
        if magic != b"PAWLARN1":
            raise ValueError(f"process {pid}: no segment of pawl at {begin:#x}")
        version, = read(8, "<I")
        if version != 2:
            raise ValueError(f"process {pid}: segment of format {version} at {begin:#x}, not 2")
        slot_count, payload_bytes = read(20, "<IQ")
        bucket_count, = read(44, "<I")
        slot_offset, slot_bytes = read(64, "<QQ")
        shelf_count, = read(92, "<I")
        extent_count, = read(160, "<I")
        payload_offset = pages_up(256 + 64 * extent_count + 8 * shelf_count) + pages_up(16 * bucket_count)
        slots = []
        for index in range(slot_count):
            offset = slot_offset + index * slot_bytes
            word, = read(offset, "<Q")
            slots.append(Slot(pid, word & 3, word >> 3 & (1 << 21) - 1, word >> 24,
                              begin + offset + payload_offset, payload_bytes))
        return slots
