"""The process that reads NVML: it prints the readings as JSON, or ends with what the driver's library does to it."""

from __future__ import annotations

import json
import math
import os
import signal
import sys

from topology.probe.nvml import read_nvml
from topology.probe.readings_codec import encode

_GRACE_SECONDS = 5


def main(limit_seconds: float) -> None:
    """Read, and print one line. Ends by itself soon after the limit, should the parent be gone by then."""
    if hasattr(signal, "alarm"):
        # Left to its default the signal ends the process, in whichever call of the driver it hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(limit_seconds) + _GRACE_SECONDS)
    # Libraries that print do so elsewhere from here on.
    answer = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(encode(read_nvml(os.environ)))
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        stream.write(text + "\n")
    sys.stdout.flush()
    # Nothing of what libraries do at their end can spoil the answer.
    os._exit(0)
