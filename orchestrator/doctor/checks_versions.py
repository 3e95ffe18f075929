"""Versions: known bad combinations, stated requirements, and libraries built for another CUDA or chip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from orchestrator.doctor.evidence import LoadEvidence, MachineEvidence, PackageEvidence
from orchestrator.doctor.finding import Finding, error, note, passed, unread, warning
from orchestrator.doctor.versions import KNOWN_BAD, Row

Facts = Mapping[str, tuple[Version, ...]]

# The first release known to take a library of the same major CUDA version where the exact one is missing
# (bitsandbytes/cextension.py of 0.50.2).
_BNB_FALLBACK: Final = Version("0.50.2")
_NEEDED: Final = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")


def check_versions(
    packages: PackageEvidence,
    machine: MachineEvidence,
    loads: tuple[LoadEvidence, ...],
    table: tuple[Row, ...] = KNOWN_BAD,
) -> tuple[Finding, ...]:
    """Judge driver, torch and the stack above it."""
    facts = facts_of(packages, machine)
    return (
        *_known_bad(facts, _unknown(packages, machine, facts), _open_rows(table, loads)),
        *_requirements(packages),
        *_torch(packages, machine),
        *_bitsandbytes(packages, facts),
        *_archs(machine, loads),
    )


def facts_of(packages: PackageEvidence, machine: MachineEvidence) -> Facts:
    """Everything the table's conditions speak about, as versions; what is unknown is left out."""
    facts: dict[str, tuple[Version, ...]] = {}
    for name, text in packages.versions:
        facts[canonicalize_name(name)] = _versions([text])
    nccl = [text for name, text in packages.versions if canonicalize_name(name).startswith("nvidia-nccl-cu")]
    cards = {gpu.capability.value for gpu in machine.gpus if gpu.capability.value is not None}
    facts["nccl"] = _versions(nccl)
    facts["driver"] = _versions([machine.driver.value or ""])
    facts["cuda"] = _versions([packages.torch_cuda.value or ""])
    facts["card"] = _versions(f"{major}.{minor}" for major, minor in sorted(cards))
    facts["aarch64"] = _versions(["1" if packages.machine == "aarch64" else "0"])
    return {name: versions for name, versions in facts.items() if versions}


def _open_rows(table: tuple[Row, ...], loads: tuple[LoadEvidence, ...]) -> tuple[Row, ...]:
    """The rows still to be looked at: a copy that was measured has shown that CUDA starts on this driver."""
    starts = any(load.bytes_per_second is not None for load in loads)
    return tuple(row for row in table if not (starts and {fact for fact, _ in row.when} == {"cuda", "driver"}))


def _versions(texts: Iterable[str]) -> tuple[Version, ...]:
    found = []
    for text in texts:
        try:
            # The local part (+cu128) names a build of the same release, and would not compare equal to it.
            found.append(Version(Version(text).public))
        except InvalidVersion:
            continue
    return tuple(found)


def _holds(row: Row, facts: Facts) -> bool:
    return all(
        any(SpecifierSet(specifier).contains(version, prereleases=True) for version in facts.get(fact, ()))
        for fact, specifier in row.when
    )


def _known_bad(facts: Facts, unknown: frozenset[str], table: tuple[Row, ...]) -> Iterator[Finding]:
    check = "versions"
    held = [row for row in table if _holds(row, facts)]
    for row in held:
        parts = [f"{fact} {'/'.join(map(str, facts[fact]))} ({specifier})" for fact, specifier in row.when]
        yield Finding(
            check=check,
            severity=row.severity,
            title=row.what,
            evidence=f"{', '.join(parts)}; {row.reference} ({row.date})",
            remedy=row.remedy,
        )
    undecided = sum(any(fact in unknown for fact, _ in row.when) for row in table)
    if undecided:
        title = f"{undecided} of {len(table)} known bad combinations could not be looked for"
        yield note(check, title, f"of unknown version: {', '.join(sorted(unknown))}")
    yield passed(check, f"{len(table) - len(held) - undecided} known bad combinations do not hold here")


def _unknown(packages: PackageEvidence, machine: MachineEvidence, facts: Facts) -> frozenset[str]:
    """Facts that exist here and could not be read; a package that is not installed is no unknown."""
    has_cuda = packages.torch_cuda.error not in {"CPU_BUILD", "NOT_INSTALLED"}
    exists = {
        "driver": bool(machine.gpus),
        "card": any(gpu.capability.value is None for gpu in machine.gpus),
        "cuda": has_cuda,
        "nccl": has_cuda,
    }
    return frozenset(fact for fact, here in exists.items() if here and fact not in facts)


def _requirements(packages: PackageEvidence) -> Iterator[Finding]:
    """What `pip check` looks at, for the packages a run needs."""
    check, versions = "requirements", {str(canonicalize_name(name)): text for name, text in packages.versions}
    absent = [name for name in _NEEDED if name not in versions]
    if absent:
        remedy = "`pip install trainmaster` brings them."
        yield error(check, f"not installed: {', '.join(absent)}", "importlib.metadata finds no such package", remedy)
    broken = [text for owner, line in packages.requirements if (text := _broken(owner, line, versions)) is not None]
    if broken:
        remedy = "Install what is asked for; `pip check` shows the same for all packages."
        title = f"{len(broken)} stated requirement(s) of installed packages are not met"
        yield warning(check, title, "; ".join(broken), remedy)
    elif packages.requirements:
        yield passed(check, f"{len(packages.requirements)} stated requirements are met")


def _broken(owner: str, line: str, versions: Mapping[str, str]) -> str | None:
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return None
    installed = versions.get(canonicalize_name(wanted.name))
    if installed is None or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
        return None
    try:
        fits = wanted.specifier.contains(Version(installed), prereleases=True)
    except InvalidVersion:
        return None
    return None if fits else f"{owner} asks for {wanted.name}{wanted.specifier}, installed is {installed}"


def _torch(packages: PackageEvidence, machine: MachineEvidence) -> Iterator[Finding]:
    check, cuda = "torch-cuda", packages.torch_cuda
    if cuda.error == "CPU_BUILD":
        evidence = f"{cuda.source}: {dict(packages.versions).get('torch', 'unknown version')}"
        remedy = "Install a torch for the driver's CUDA: https://pytorch.org/get-started."
        if machine.gpus:
            yield error(check, "torch is a build without CUDA and cannot use these GPUs", evidence, remedy)
        else:
            yield note(check, "torch is a build without CUDA: right for a host without GPUs", evidence)
    elif cuda.value is None:
        yield unread(check, "which CUDA torch was built for", (cuda,))
    else:
        yield passed(check, f"torch was built for CUDA {cuda.value}")


def _bitsandbytes(packages: PackageEvidence, facts: Facts) -> Iterator[Finding]:
    check, cuda, own = "bitsandbytes-cuda", packages.torch_cuda.value, facts.get("bitsandbytes")
    if own is None or cuda is None:
        return
    if packages.bnb_cuda.value is None:
        yield unread(check, "which CUDA bitsandbytes was built for", (packages.bnb_cuda,))
        return
    shipped = packages.bnb_cuda.value
    evidence = f"torch: CUDA {cuda}; bitsandbytes {own[0]} ships {', '.join(shipped) or 'no CUDA library'}"
    remedy = "Install a newer bitsandbytes, or a torch built for one of these."
    same_major = [version for version in shipped if version.split(".")[0] == cuda.split(".")[0]]
    if packages.bnb_override is not None:
        title = "BNB_CUDA_VERSION overrides which library bitsandbytes loads"
        evidence = f"BNB_CUDA_VERSION={packages.bnb_override!r}; {evidence}"
        yield warning(check, title, evidence, "Unset it unless you know that this library is the right one.")
    elif cuda in shipped:
        yield passed(check, f"bitsandbytes has a library for CUDA {cuda}")
    elif same_major and own[0] >= _BNB_FALLBACK:
        yield note(check, f"bitsandbytes has no library for CUDA {cuda} and takes the nearest", evidence)
    else:
        yield error(check, f"bitsandbytes has no library for CUDA {cuda}: 4-bit layers fail", evidence, remedy)


def _archs(machine: MachineEvidence, loads: tuple[LoadEvidence, ...]) -> Iterator[Finding]:
    """The chips torch was built for, as the load process told them."""
    archs = next((load.archs for load in loads if load.archs), ())
    if not archs:
        return
    lines = [_arch(arch) for arch in archs]
    for capability in sorted({gpu.capability.value for gpu in machine.gpus if gpu.capability.value is not None}):
        major, minor = capability
        # Machine code runs on the same major version with the same or a later minor one; PTX on anything later.
        fits = any(
            (kind == "compute" and built <= capability) or (kind == "sm" and built[0] == major and built[1] <= minor)
            for kind, built in lines
        )
        if not fits:
            remedy = "Install a torch whose build has this chip: https://pytorch.org/get-started."
            title = f"torch has no kernels for chips of compute capability {major}.{minor}"
            yield error("torch-archs", title, f"torch.cuda.get_arch_list(): {', '.join(archs)}", remedy)


def _arch(text: str) -> tuple[str, tuple[int, int]]:
    kind, _, number = text.partition("_")
    digits = "".join(filter(str.isdigit, number)) or "0"
    return kind, (int(digits[:-1] or 0), int(digits[-1]))
