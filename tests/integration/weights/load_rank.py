"""One rank that loads: `python load_rank.py RANK SIZE FILE FOLDER CACHE CUT [measure|fault|resident]...`.

Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from transformers import BitsAndBytesConfig

from launch.parent_death import die_with_parent
from orchestrator.errors import UserError
from orchestrator.weights.cache import BaseCache, cache_key
from orchestrator.weights.checkpoint import Checkpoint, open_checkpoint
from orchestrator.weights.cut import Tier, cut_by_weights
from orchestrator.weights.exchange import Team
from orchestrator.weights.load import Target, load_base
from orchestrator.weights.load_plan import load_peak
from orchestrator.weights.packing import Packing, pack
from orchestrator.weights.produce import part_bytes
from orchestrator.weights.shards import Shards
from orchestrator.weights.skeleton import BaseSource, Skeleton, build_skeleton

CPU = torch.device("cpu")


def status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def live_peak(measured: Any) -> int:
    """Most bytes that torch held at once beyond those at the beginning."""
    events = [x for x in measured.profiler.kineto_results.events() if x.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda x: x.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def skeleton_of(checkpoint: Checkpoint) -> Skeleton:
    quant = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    source = BaseSource(folder=checkpoint.folder, dtype=torch.bfloat16, quantization=quant, device=CPU)
    # Tables and code that bitsandbytes loads with its first call are no part of what loading takes.
    small = Packing(quant_type="nf4", shape=(64, 64), dtype=torch.bfloat16, nested_block=256)
    into = {role: torch.empty(nbytes, dtype=torch.uint8) for role, nbytes in part_bytes(small).items()}
    pack(torch.zeros(64, 64), small, into)
    return build_skeleton(source, checkpoint)


def load(target: Target, cache: BaseCache | None, *, measure: bool) -> dict[str, Any]:
    said: list[str] = []
    out: dict[str, Any] = {"said": said}
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, began = status_bytes("VmRSS"), time.monotonic()
    if measure:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
            loaded = load_base(target, said.append, cache)
        out["live_peak"] = live_peak(measured)
    else:
        loaded = load_base(target, said.append, cache)
    out |= {"seconds": time.monotonic() - began, "rss_peak": status_bytes("VmHWM") - before}
    return out | {
        "read_bytes": loaded.read_bytes,
        "cached_bytes": loaded.cached_bytes,
        "scratch_bytes": loaded.scratch_bytes,
        "resident_bytes": loaded.kept_bytes,
    }


def main() -> None:
    die_with_parent()
    rank, size, meet, folder, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), sys.argv[5]
    weights, options = [int(x) for x in sys.argv[6].split("/")], sys.argv[7:]
    wait = timedelta(seconds=100)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=size, timeout=wait)
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(folder)
    skeleton = skeleton_of(checkpoint)
    residents = [0] if "resident" in options else []
    cut = cut_by_weights(skeleton.layout, weights, Tier.host, residents)
    team = Team(members=tuple(range(size)), me=rank, group=dist.new_group())
    key = cache_key(skeleton, checkpoint, CPU)
    cache = BaseCache(root=Path(root), key=key, model=str(folder), fingerprint=checkpoint.fingerprint)
    shards = Shards(cut, rank, CPU)
    whole = {layer: torch.empty(skeleton.layout.layer_bytes[layer], dtype=torch.uint8) for layer in cut.residents}

    def put(layer: int, begin: int, data: torch.Tensor) -> None:
        if layer in whole:
            whole[layer][begin : begin + data.numel()].copy_(data)
        else:
            shards.write(layer, begin, data)

    if "fault" in options and rank == 1:
        object.__setattr__(checkpoint, "files", tuple(Path("/nowhere") for _ in checkpoint.files))
    target = Target(skeleton=skeleton, checkpoint=checkpoint, cut=cut, team=team, put=put, device=CPU)
    try:
        out = load(target, None if root == "-" else cache, measure="measure" in options)
    except UserError as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
        os._exit(0)
    peak = load_peak(skeleton, cut, team.members, rank, CPU)
    held = [shards.memory[Tier.host], *whole.values()]
    pieces = [[piece.rank, at, piece.begin, piece.end] for at, found in enumerate(cut.layers) for piece in found]
    out |= {
        "held": sum(x.numel() for x in held),
        "plan": {name: getattr(peak, name) for name in ("kept", "raw", "made", "incoming", "passing", "total")},
        "stored_bytes": checkpoint.nbytes,
        "layer_bytes": list(skeleton.layout.layer_bytes),
        "pieces": pieces,
    }
    if "dump" in options:
        out["bytes"] = [bytes(x.numpy()).hex() for x in held]
        out["head"] = bytes(skeleton.model.get_output_embeddings().weight.view(torch.uint8).numpy()).hex()
    print(json.dumps(out), flush=True)
    os._exit(0)  # groups are left as they are


if __name__ == "__main__":
    main()
