"""Makes sure that all ranks of a group are about to do the same, before they wait for each other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from orchestrator.errors import Problem, UserError

_FINGERPRINT_BYTES = 32
_NAME_BYTES = 64


def agree(group: dist.ProcessGroup, name: str, fingerprint: bytes, *, device: torch.device, fault: str = "") -> None:
    """Exchange the fingerprint of what each rank holds; all ranks call this once, and all fail alike.

    Args:
        group: of all ranks concerned.
        name: what this rank holds, in words.
        fingerprint: 32 bytes, or fewer where there is a `fault`.
        device: where the group's tensors live.
        fault: why this rank cannot take part; then all refuse.

    Raises:
        UserError: on every rank, naming the ranks that hold something else and what.
    """
    told = ("!" + fault if fault else name).encode()[:_NAME_BYTES]
    record = fingerprint[:_FINGERPRINT_BYTES].ljust(_FINGERPRINT_BYTES, b"\0") + told.ljust(_NAME_BYTES, b"\0")
    mine = torch.tensor(list(record), dtype=torch.uint8, device=device)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group=group)
    records = [bytes(tensor.tolist()) for tensor in all_of_them]
    names = [record[_FINGERPRINT_BYTES:].rstrip(b"\0").decode(errors="replace") for record in records]
    problems = [
        Problem(where=f"rank {rank}", found=text[1:], remedy="give all ranks the same schedule")
        for rank, text in enumerate(names)
        if text.startswith("!")
    ]
    holders: dict[bytes, list[int]] = {}
    for rank, record in enumerate(records):
        holders.setdefault(record[:_FINGERPRINT_BYTES], []).append(rank)
    if not problems and len(holders) > 1:
        held = "; ".join(
            f"rank {', '.join(map(str, ranks))}: {names[ranks[0]]} {print_.hex()[:12]}"
            for print_, ranks in holders.items()
        )
        remedy = "let one rank choose the schedule, and send it to the others"
        problems = [Problem(where="schedule", found=f"the ranks hold different ones ({held})", remedy=remedy)]
    if problems:
        raise UserError(*problems)
