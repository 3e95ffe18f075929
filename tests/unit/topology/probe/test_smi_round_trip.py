"""Drawn machines, written as nvidia-smi does and as people paste it, are read back the same."""

from __future__ import annotations

import contextlib
import textwrap
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from topology.errors import TopologyError
from topology.probe.smi import parse_smi, recognises
from topology.probe.smi_text import read_matrices

LEVELS = ("SYS", "NODE", "PHB", "PXB", "PIX")  # by how many leading parts of two addresses agree
NIC_STYLES = ("NIC{}", "mlx5_{}", "rocep{}s0f0", "gpu{}rdma0")


@dataclass(frozen=True)
class Machine:
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    numa: tuple[int, ...]


def plain_label(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
    return LEVELS[same]


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    num_gpus, num_nics = draw(st.integers(1, 9)), draw(st.integers(0, 4))
    style = draw(st.sampled_from(NIC_STYLES))
    names = tuple(f"GPU{at}" for at in range(num_gpus)) + tuple(style.format(at) for at in range(num_nics))
    address = st.tuples(*[st.integers(0, 1)] * 4)
    places = [draw(address) for _ in names]
    labels = {pair: plain_label(places[pair[0]], places[pair[1]]) for pair in combinations(range(len(names)), 2)}
    for pair in combinations(range(num_gpus), 2):
        if draw(st.booleans()):
            labels[pair] = f"NV{draw(st.integers(1, 18))}"
    cells = tuple(
        tuple("X" if a == b else labels[min(a, b), max(a, b)] for b in range(len(names))) for a in range(len(names))
    )
    cpus = tuple(draw(st.sampled_from(["0", "0-15", "0-31,64-95", "0,2,4,6,8,10"])) for _ in range(num_gpus))
    return Machine(names=names, cells=cells, cpus=cpus, numa=tuple(draw(st.integers(0, 9)) for _ in range(num_gpus)))


@dataclass(frozen=True)
class Form:
    between: str
    columns: tuple[str, ...]
    prefix: str
    before: str
    after: str
    newline: str
    is_underlined: bool
    is_glued: bool
    is_old: bool
    is_led: bool
    is_short: bool
    has_blank_lines: bool
    width: int | None


def forms() -> st.SearchStrategy[Form]:
    columns = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
    flags = {name: st.booleans() for name in ("is_underlined", "is_glued", "is_old", "is_led", "is_short")}
    return st.builds(
        Form,
        between=st.sampled_from(["\t", " ", "   ", " \t", " | ", "aligned"]),
        columns=st.sampled_from([(), columns[:1], columns[:2], columns]),
        prefix=st.sampled_from(["", "> ", ">", "# ", "    ", "> > # ", "| ", "[rank0] 12:30:01 "]),
        before=st.sampled_from(["", "$ nvidia-smi topo -m", "```", "see GPU0 and GPU1:\n", "GPU0 GPU1"]),
        after=st.sampled_from(["", "```", "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe", "$"]),
        newline=st.sampled_from(["\n", "\r\n"]),
        has_blank_lines=st.booleans(),
        width=st.none() | st.integers(1, 90),
        **flags,
    )


def broken(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False)


def write(machine: Machine, form: Form) -> str:
    is_aligned = form.between == "aligned"
    is_log = "rank" in form.prefix  # no mail program breaks its lines, and its blank lines are not blank
    between = "\t" if is_aligned else form.between
    gpus = len(machine.cpus)
    names = "".join(machine.names[:gpus]) if form.is_glued else between.join(machine.names[:gpus])
    header = between.join([*([""] if form.is_led else []), names, *machine.names[gpus:], *form.columns])
    lines = [f"\x1b[4m{header}\x1b[0m" if form.is_underlined else header]
    for at, (name, row) in enumerate(zip(machine.names, machine.cells, strict=True)):
        cells = [f" {cell} " if cell == "X" else "SOC" if cell == "SYS" and form.is_old else cell for cell in row]
        tail = [machine.cpus[at], str(machine.numa[at]), "N/A"][: len(form.columns)] if at < gpus else []
        # nvidia-smi prints one tab more before the last column, and blanks after a NIC's row, or not.
        if len(tail) == 3 and between == "\t":
            tail.insert(2, "")
        lines.append(between.join([name, *cells, *tail]) + ("" if at < gpus or form.is_short else between * 3))
    if is_aligned:
        lines = [line.expandtabs(8) for line in lines]
    # Bars alone on a line, as in a table that is broken after each word, leave nothing to go by.
    is_too_narrow = form.between == " | " and (form.width or 0) < 20
    if form.width is not None and not is_log and not is_too_narrow:
        lines = [part for line in lines for part in broken(line, form.width)]
    if form.has_blank_lines and not is_log:
        lines = [part for line in lines for part in ((line,) if form.width else (line, ""))]
    body = [form.before, *lines, "", form.after]
    return form.newline.join(form.prefix + line for text in body for line in (text.split("\n") or [""]))


@settings(max_examples=150, deadline=None)
@given(machines(), forms())
def test_a_drawn_machine_is_read_back(machine: Machine, form: Form) -> None:
    text = write(machine, form)
    (matrix,) = read_matrices(text)
    assert matrix.names == machine.names
    assert matrix.cells == machine.cells
    expected = machine.numa if len(form.columns) > 1 else (None,) * len(machine.numa)
    assert matrix.numa[: len(machine.numa)] == expected
    topology = parse_smi(text, host="box")
    indices = {device.id: device.index or 0 for device in topology.gpus}
    assert all(pair.kind == machine.cells[indices[pair.a]][indices[pair.b]] for pair in topology.pairs)
    assert len(topology.pairs) == len(machine.numa) * (len(machine.numa) - 1) // 2
    assert len(topology.nics) == len(machine.names) - len(machine.numa)
    assert recognises(text)


@settings(max_examples=80, deadline=None)
@given(machines(), forms(), st.data())
def test_a_row_left_out_or_a_label_changed_is_refused(machine: Machine, form: Form, data: st.DataObject) -> None:
    if len(machine.names) < 2:
        return
    at = data.draw(st.integers(0, len(machine.names) - 1))
    if data.draw(st.booleans()):
        rows = write(machine, replace(form, width=None)).splitlines()
        own = [line for line in rows if machine.names[at] in line and " X " in line]
        text = "\n".join(line for line in rows if line not in own)
    else:
        other = (at + 1) % len(machine.names)
        label = "PIX" if machine.cells[at][other] != "PIX" else "SYS"
        row = tuple(label if number == other else cell for number, cell in enumerate(machine.cells[at]))
        cells = tuple(row if number == at else kept for number, kept in enumerate(machine.cells))
        text = write(replace(machine, cells=cells), form)
    try:
        parse_smi(text, host="box")
    except TopologyError:
        return
    raise AssertionError(text)


WORDS = (
    "GPU0",
    "GPU1",
    "NIC0",
    "X",
    "SYS",
    "NV4",
    "HT",
    "0-3",
    "N/A",
    "CPU Affinity",
    "NUMA",
    " ",
    "\t",
    "\n",
    "|",
    ">",
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    recognises(text)
    with contextlib.suppress(TopologyError):
        parse_smi(text, host="box")
