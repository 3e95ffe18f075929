"""Text and Markdown of what `bench/namespaces.py` measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final

from orchestrator.collectives.fit import Sample, fit_links

_MIB: Final = 2**20
# Bytes on the wire for each that the interface counts: it sees large segments once, the shaper each packet's headers.
_WIRE_SHARE: Final = 1514 / 1448
_BITS: Final = 8
_HEAD: Final = (
    "# Collectives measured on shaped hosts",
    "",
    "Written by `python bench/namespaces.py --table docs/routes_measured.md` (root; network namespaces as hosts, links",
    "shaped by tbf, two gloo ranks a host, ranks sharing the cores of one machine). Medians; the ways took turns.",
    "M is the buffer of an all-reduce, the gathered result, and what each rank sends in an all-to-all. The last column",
    "is the share of its link's rate that the busiest host reached, packet headers counted (1,448 of 1,514 bytes are",
    "payload): at 100% only a schedule that sends less can be faster. Small sizes exceed it, since a shaped link lets",
    "256 KiB pass at once after a pause. `nice` of the ranks and the load of other work stand in the titles.",
)


def printed(answer: dict[str, Any]) -> str:
    """A few lines for the terminal."""
    lines = [_title(answer)]
    for row in _rows(answer):
        runs = " ".join(f"{1e3 * seconds:.1f}" for seconds in row["seconds"])
        lines.append(
            f"  {row['collective']:14} {row['size_bytes'] / _MIB:8.3f} MiB  {_way(row):34} {_ms(row):9.1f} ms "
            f"x{row['gain']:.2f}  egress {row['egress_bytes'] / _MIB:7.2f} MiB  link {row['link']:4.0%}  runs {runs}"
        )
    return "\n".join([*lines, *("  " + line for line in _links(answer))])


def table(answers: Sequence[dict[str, Any]]) -> str:
    """The page: one table for each network."""
    lines = list(_HEAD)
    for answer in answers:
        lines += ["", f"## {_title(answer)}", ""]
        lines += [
            "| collective | MiB | way | median ms | fastest - slowest | gain over gloo | sent by a host, MiB | link |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        for row in _rows(answer):
            spread = f"{1e3 * min(row['seconds']):.0f} - {1e3 * max(row['seconds']):.0f}"
            lines.append(
                f"| {row['collective']} | {row['size_bytes'] / _MIB:g} | {_way(row)} | {_ms(row):.1f} | {spread} "
                f"| {row['gain']:.2f} | {row['egress_bytes'] / _MIB:.2f} | {row['link']:.0%} |"
            )
        lines += ["", *(line + "  " for line in _links(answer))]
    return "\n".join(lines).rstrip() + "\n"


def _title(answer: dict[str, Any]) -> str:
    before, after = answer["load_before_and_after"]
    nice = f"nice {answer['nice']}, " if answer["nice"] else ""
    load = f"{nice}load {before:.0f} to {after:.0f} on {answer['machine']['cores']} cores"
    return (
        f"{answer['bits_per_second'] / 1e6:g} Mb/s, {answer['hosts']} hosts x {answer['slots']} ranks, "
        f"{answer['runs']} runs, {answer['when']}, {load}"
    )


def _way(row: dict[str, Any]) -> str:
    if row["way"] == "gloo":
        return "gloo"
    return f"{row['way']}, {row['piece_bytes'] >> 10} KiB, depth {row['depth']}"


def _ms(row: dict[str, Any]) -> float:
    seconds: list[float] = row["seconds"]
    return 1e3 * median(seconds)


def _rows(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The measured rows, each with its gain over the library at the same size and the link's share."""
    library = {
        (row["collective"], row["size_bytes"]): median(row["seconds"])
        for row in answer["collectives"]
        if row["way"] == "gloo"
    }
    for row in answer["collectives"]:
        seconds = median(row["seconds"])
        wire_seconds = row["egress_bytes"] * _WIRE_SHARE * _BITS / answer["bits_per_second"]
        gain = library[row["collective"], row["size_bytes"]] / seconds
        yield {**row, "gain": gain, "link": wire_seconds / seconds}


def _links(answer: dict[str, Any]) -> Iterator[str]:
    """What the links do, alone and one message each way."""
    samples: dict[bool, list[Sample]] = defaultdict(list)
    for item in answer["links"]:
        samples[item["both_ways"]] += [
            Sample(link=item["link"], size_bytes=item["size_bytes"], seconds=seconds) for seconds in item["seconds"]
        ]
    for both, found in samples.items():
        for link, fit in fit_links(found).items():
            what = "one message each way" if both else "one message"
            yield (
                f"{link}, {what}: {1e6 * fit.alpha_seconds:.0f} us + bytes / {fit.bytes_per_second / 1e6:.1f} MB/s "
                f"(off by {fit.worst_error:.0%} at most)"
            )
