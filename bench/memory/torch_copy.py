"""torch's end of bench/memory: copies tensors into a slot's memory, one after another, with as many threads as each
line of standard input says, and answers with the seconds, and those of cores. Arguments: the segment's path, where the
slot begins, then where each tensor begins in it and how many bytes it has, in turn."""

import mmap
import sys
import time

import torch


def main() -> None:
    path, begin, numbers = sys.argv[1], int(sys.argv[2]), [int(each) for each in sys.argv[3].split(",")]
    places = list(zip(numbers[0::2], numbers[1::2], strict=True))
    with open(path, "r+b") as segment:
        memory = mmap.mmap(segment.fileno(), 0)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    targets = [whole[begin + at : begin + at + size].view(torch.float32) for at, size in places]
    sources = [torch.full((size // 4,), 1.5) for _, size in places]
    print("ready", flush=True)
    for line in sys.stdin:
        torch.set_num_threads(int(line))
        begun, used = time.perf_counter(), time.process_time()
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        print(time.perf_counter() - begun, time.process_time() - used, flush=True)


main()
