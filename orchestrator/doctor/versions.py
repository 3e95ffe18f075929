"""Combinations of versions that are known not to work together: a table, each row with its reference.

A row holds when every condition of it holds. Conditions are version specifiers (PEP 440) on installed packages and
on these facts: `driver` (NVIDIA driver), `cuda` (what torch was built for), `nccl`, `card` (compute capability, one
value per GPU; one card that fits is enough) and `aarch64` (1 on ARM hosts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrator.doctor.finding import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One known bad combination.

    Attributes:
        when: pairs of fact and version specifier.
        what: what goes wrong.
        remedy: what to install instead.
        reference: URL, or owner/repository#number on GitHub.
        date: when the reference was written, or seen for documentation pages.
        severity: how bad it is.
    """

    when: tuple[tuple[str, str], ...]
    what: str
    remedy: str
    reference: str
    date: str
    severity: Severity = Severity.ERROR


_DRIVER: Final = (
    "Install a newer driver, or a torch built for an older CUDA (https://pytorch.org/get-started); data centre cards "
    "can also use NVIDIA's cuda-compat package."
)
_CUDA_DOC: Final = "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"
_NO_KERNEL: Final = "torch has no kernels for this card: `no kernel image is available for execution on the device`"

_DRIVER_ROWS: Final = (
    Row(
        when=(("cuda", ">=13,<14"), ("driver", "<580")),
        what="CUDA 13 needs driver 580 or newer",
        remedy=_DRIVER,
        reference=_CUDA_DOC,
        date="2026-11",
    ),
    Row(
        when=(("cuda", ">=12,<13"), ("driver", "<525")),
        what="CUDA 12 needs driver 525 or newer",
        remedy=_DRIVER,
        reference=_CUDA_DOC,
        date="2026-11",
    ),
    Row(
        when=(("cuda", ">=11,<12"), ("driver", "<450.80.02")),
        what="CUDA 11 needs driver 450.80.02 or newer",
        remedy=_DRIVER,
        reference=_CUDA_DOC,
        date="2026-11",
    ),
    Row(
        when=(("card", "==8.9"), ("driver", "<=520.56.06")),
        what="collectives between GeForce 40 cards hang: this driver says P2P works where it does not",
        remedy="Install a current driver.",
        reference="NVIDIA/nccl-tests#117",
        date="2022-10",
        severity=Severity.WARNING,
    ),
    Row(
        when=(("driver", ">=560,<570"),),
        what="NCCL was seen to hang with P2P under driver 560; 570 mends it",
        remedy="Install driver 570 or newer if collectives hang.",
        reference="dmlc/xgboost#11242",
        date="2025-02",
        severity=Severity.NOTE,
    ),
)
_CHIP_ROWS: Final = (
    Row(
        when=(("card", ">=10"), ("cuda", "<12.8")),
        what=_NO_KERNEL,
        remedy="Install torch 2.7 or newer built for CUDA 12.8 or newer.",
        reference="pytorch/pytorch#150733",
        date="2025-04",
    ),
    Row(
        when=(("card", ">=10"), ("torch", "<2.7")),
        what=_NO_KERNEL,
        remedy="Install torch 2.7 or newer built for CUDA 12.8 or newer.",
        reference="pytorch/pytorch#152069",
        date="2025-04",
    ),
    Row(
        when=(("card", "<7.5"), ("cuda", ">=13")),
        what=_NO_KERNEL,
        remedy="Install a torch built for CUDA 12.6.",
        reference="pytorch/pytorch#190385",
        date="2026-07",
    ),
    Row(
        when=(("card", ">=7,<7.5"), ("cuda", ">=12.8,<13"), ("torch", ">=2.11")),
        what=_NO_KERNEL,
        remedy="Install a torch built for CUDA 12.6.",
        reference="pytorch/pytorch#175253",
        date="2026-02",
    ),
    Row(
        when=(("card", "<7"), ("cuda", ">=12.8,<13")),
        what=_NO_KERNEL,
        remedy="Install a torch built for CUDA 12.6.",
        reference="pytorch/pytorch#172352",
        date="2026-01",
    ),
    Row(
        when=(("card", "<6"), ("bitsandbytes", ">=0.48")),
        what="the bitsandbytes wheels have no kernels for Maxwell cards any more",
        remedy="Use another card, or build bitsandbytes from source.",
        reference="https://huggingface.co/docs/bitsandbytes/v0.48.1/installation",
        date="2026-11",
    ),
)
_NCCL_ROWS: Final = (
    Row(
        when=(("nccl", ">=2.28.3,<2.28.9"),),
        what="large runs can hang: main and proxy threads may run in the wrong order",
        remedy="Install NCCL 2.28.9 or newer (`pip install -U nvidia-nccl-cu12`, or `-cu13`).",
        reference="https://github.com/NVIDIA/nccl (commit NCCL 2.28.9-1)",
        date="2025-11",
        severity=Severity.WARNING,
    ),
    Row(
        when=(("nccl", "==2.29.2"), ("aarch64", "==1")),
        what="NCCL built with gcc older than 10 hangs on ARM",
        remedy="Install NCCL 2.29.3 or newer.",
        reference="https://github.com/NVIDIA/nccl (commit NCCL v2.29.3-1)",
        date="2026-02",
        severity=Severity.WARNING,
    ),
    Row(
        when=(("nccl", ">=2.27,<2.27.7"), ("card", "<10")),
        what="initialisation can fail while symmetric kernels for newer chips are loaded",
        remedy="Install NCCL 2.27.7 or newer.",
        reference="https://github.com/NVIDIA/nccl (commit NCCL 2.27.7-1)",
        date="2025-07",
        severity=Severity.WARNING,
    ),
    Row(
        when=(("nccl", "<2.26.2"), ("card", ">=12")),
        what="collectives fail on these cards: NCCL asks for more shared memory than they have",
        remedy="Install NCCL 2.26.2 or newer.",
        reference="NVIDIA/nccl-tests#287",
        date="2025-03",
    ),
    Row(
        when=(("nccl", "==2.26.2"), ("card", "==12.0")),
        what="messages of 512 KiB and more were seen to end in an illegal memory access; 2.31.2 works",
        remedy="Install a newer NCCL.",
        reference="NVIDIA/nccl#2418",
        date="2026-09",
        severity=Severity.WARNING,
    ),
    Row(
        when=(("nccl", "<2.26.2"), ("torch", ">=2")),
        what="aborting a communicator can hang, so a failed run may not end by itself",
        remedy="Install torch 2.7 or newer, which brings NCCL 2.26.2.",
        reference="pytorch/pytorch#149546",
        date="2025-03",
        severity=Severity.NOTE,
    ),
)
_STACK_ROWS: Final = (
    Row(
        when=(("bitsandbytes", "<=0.45.0"), ("torch", ">=2.6")),
        what="importing bitsandbytes fails: No module named 'triton.ops'",
        remedy="Install bitsandbytes 0.45.5 or newer.",
        reference="bitsandbytes-foundation/bitsandbytes#1492",
        date="2025-03",
    ),
    Row(
        when=(("bitsandbytes", "<0.45.3"), ("cuda", ">=12.8,<13")),
        what="bitsandbytes has no library for this CUDA",
        remedy="Install bitsandbytes 0.46 or newer.",
        reference="bitsandbytes-foundation/bitsandbytes#1510",
        date="2025-02",
    ),
    Row(
        when=(("bitsandbytes", "<=0.46.0"), ("cuda", ">=12.9,<13")),
        what="bitsandbytes has no library for CUDA 12.9",
        remedy="Install bitsandbytes 0.48 or newer.",
        reference="bitsandbytes-foundation/bitsandbytes#1688",
        date="2025-06",
    ),
    Row(
        when=(("bitsandbytes", "<0.48"), ("cuda", ">=13")),
        what="bitsandbytes has no library for CUDA 13",
        remedy="Install bitsandbytes 0.48 or newer.",
        reference="bitsandbytes-foundation/bitsandbytes#1761",
        date="2025-09",
    ),
    Row(
        when=(("deepspeed", "<0.14.4"), ("torch", ">=2.4")),
        what="importing deepspeed fails: names of torch.distributed.elastic that it uses are gone",
        remedy="Install deepspeed 0.14.4 or newer.",
        reference="deepspeedai/DeepSpeed#5603",
        date="2024-06",
    ),
    Row(
        when=(("deepspeed", "<0.14.4"), ("numpy", ">=2")),
        what="importing deepspeed fails: cannot import name 'BUFSIZE' from 'numpy'",
        remedy="Install deepspeed 0.14.4 or newer.",
        reference="deepspeedai/DeepSpeed#5671",
        date="2024-06",
    ),
    Row(
        when=(("transformers", "==5.1.0"), ("deepspeed", ">=0")),
        what="this release of transformers is broken with DeepSpeed",
        remedy="Install another release of transformers.",
        reference="huggingface/trl#4985",
        date="2026-02",
    ),
    Row(
        when=(("peft", "<0.18"), ("transformers", ">=5")),
        what="importing peft fails: cannot import name 'HybridCache' from 'transformers'",
        remedy="Install peft 0.18 or newer.",
        reference="huggingface/trl#4820",
        date="2026-01",
    ),
    Row(
        when=(("peft", ">=0.14"), ("transformers", "<=4.39.3")),
        what="importing peft fails: cannot import name 'EncoderDecoderCache' from 'transformers'",
        remedy="Install a newer transformers.",
        reference="huggingface/peft#2292",
        date="2024-12",
    ),
    Row(
        when=(("transformers", ">=4.52"), ("accelerate", "<1.3")),
        what="the trainer fails: unwrap_model() got an unexpected keyword argument 'keep_torch_compile'",
        remedy="Install accelerate 1.3 or newer.",
        reference="huggingface/transformers#38339",
        date="2025-05",
    ),
    Row(
        when=(("transformers", ">=4.52"), ("torch", "<2.6")),
        what="models and checkpoints that are not safetensors are refused (CVE-2025-32434)",
        remedy="Install torch 2.6 or newer.",
        reference="huggingface/transformers#37785",
        date="2025-04",
        severity=Severity.WARNING,
    ),
)
KNOWN_BAD: Final = (*_DRIVER_ROWS, *_CHIP_ROWS, *_NCCL_ROWS, *_STACK_ROWS)
