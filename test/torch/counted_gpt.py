"""The GPT of examples/gpt, which after each step also marks how many groups there are."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt"))

import record  # noqa: E402
import torch.distributed as dist  # noqa: E402
import train  # noqa: E402

from pawl import groups  # noqa: E402


class Counting(record.Record):
    def step(self, step, loss, batches):
        super().step(step, loss, batches)
        if not record.is_rehearsal(step):
            mark = {"step": int(step), "pid": os.getpid(), "groups": groups.live_count(),
                    "created": groups.created_count()}
            with open(os.path.join(self.folder, f"marks.{dist.get_rank()}.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps(mark) + "\n")


train.Record = Counting
train.main()
