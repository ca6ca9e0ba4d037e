"""The GPT of examples/gpt whose spare does not rehearse: what a spare costs that parks cold."""
import functools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt"))

import train  # noqa: E402

import pawl  # noqa: E402

pawl.init = functools.partial(pawl.init, rehearse=False)
train.main()
