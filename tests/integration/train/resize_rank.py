"""One rank of a planned run, in this process; afterwards, which tensors of the old rank are still alive.

    python resize_rank.py RUN_DIR/plan.json OLD_RANK

Prints one line of JSON: shapes of tensors that have the old rank as a size.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch

from orchestrator.planner.plan import loads
from orchestrator.train import loop
from orchestrator.train.rank import run_rank


def alive(rank: int) -> list[list[int]]:
    gc.collect()
    return [
        list(found.shape)
        for found in gc.get_objects()
        if issubclass(type(found), torch.Tensor) and not found.is_meta and rank in found.shape and found.numel()
    ]


def main() -> None:
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    counted: list[list[list[int]]] = []
    finish = loop.finish

    def watched(run: loop.Run, tokenizer: object) -> None:
        run.saver.close()  # the last checkpoint of the old rank may be on its way to the disk
        counted.append(alive(rank))
        finish(run, tokenizer)

    loop.finish = watched
    run_rank(loads(path.read_text()), path.parent)
    print("ALIVE " + json.dumps(counted[0]))


if __name__ == "__main__":
    main()
