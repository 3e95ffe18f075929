from __future__ import annotations

import time
import tracemalloc

import pytest

from topology.errors import TopologyError
from topology.model import Topology
from topology.probe.nccl_xml import parse_nccl_xml


def parse(*cpus: str, version: int = 1) -> Topology:
    text = f'<system version="{version}">\n' + "\n".join(cpus) + "\n</system>\n"
    return parse_nccl_xml(text.encode(), host="box")


def cpu(*inside: str, numa: int = 0, more: str = "") -> str:
    return f'<cpu numaid="{numa}" {more}>\n' + "\n".join(inside) + "\n</cpu>"


def pci(address: str, *inside: str, kind: str = "0x060400", speed: str = "16 GT/s", width: str = "16") -> str:
    head = f'<pci busid="{address}" class="{kind}" link_speed="{speed}" link_width="{width}">'
    return head + "".join(inside) + "</pci>"


def gpu(address: str, *links: str, sm: int = 80, speed: str = "16 GT/s", width: str = "16") -> str:
    inside = f'<gpu dev="{int(address[5:7], 16)}" sm="{sm}" rank="0" gdr="1">' + "".join(links) + "</gpu>"
    return pci(address, inside, kind="0x030200", speed=speed, width=width)


def net(name: str, speed: object = 100_000, port: int = 1) -> str:
    return f'<nic><net name="{name}" dev="0" speed="{speed}" port="{port}" guid="0x1" maxconn="1" gdr="1"/></nic>'


def refused(content: bytes) -> str:
    with pytest.raises(TopologyError) as caught:
        parse_nccl_xml(content, host="box")
    return caught.value.found


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ('<pci busid="0000:01:00.0">', "line 4: XML not well formed (mismatched tag)"),
        ("<pci/>", "line 3: <pci> without busid"),
        ('<pci busid="here"/>', "line 3: <pci> with busid='here', no PCI address"),
        ('<gpu dev="0"/>', "line 3: <gpu> directly inside <cpu>"),
        ("some text", "text between XML elements: 'some text'"),
        (gpu("0000:01:00.0") + "\n" + gpu("0000:01:00.0"), "line 4: the GPU 0000:01:00.0 again, first on line 3"),
        (net("a") + "\n" + net("a"), "line 4: the port a:1 again, first on line 3"),
        (pci("0000:01:00.0", "<gpu sm='90'/><gpu sm='80'/>"), "holds 2 GPUs of different dev or sm"),
        (pci("0000:01:00.0", "<gpu/>", net("a")), "both a GPU and a NIC"),
        (pci("0000:01:00.0", "<gpu/>", pci("0000:02:00.0")), "is a gpu with other functions below it"),
        (pci("0000:01:00.0", width="wide"), "link_width='wide'"),
        ("</cpu><cpu>", "line 3: <cpu> without numaid"),
        ('</cpu><cpu numaid="0">', "line 3: the NUMA node 0 again, first on line 2"),
        ('</cpu><cpu numaid="1" host_hash="0x1"/><cpu numaid="2" host_hash="0x2">', "line 2: <cpu> without host_hash"),
        ('</cpu><cpu numaid="1" host_hash="here">', "host_hash='here'"),
        (net("a") + '</cpu><cpu numaid="1">' + pci("0000:01:00.0", net("a")), "the port a:1 again"),
    ],
)
def test_what_the_format_has_not_is_refused_by_line(inside: str, told: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(cpu(inside))
    assert told in caught.value.found


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1: XML not well formed (no element found)"),
        (b"\x01\xff", "line 1: XML not well formed"),
        (b"<system version='1'>\n\x00", "line 2: a NUL byte"),
        (b"<?xml version='1.0' encoding='UTF-16'?><system version='1'/>", "line 1: the encoding 'UTF-16'"),
        (b"<?xml version='1.0' encoding='latin-1'?><system name='\xe9' version='1'/>", "the encoding 'latin-1'"),
        (b"<system name='\xe9' version='1'/>", "line 1: XML not well formed (not well-formed (invalid token)"),
        (b"<graphs version='1'/>", "line 1: the outermost element is <graphs>, not <system> (a search result"),
        (b"<system/>", "line 1: <system> without any <cpu>"),
        (b"<system version='3'><cpu numaid='0'/></system>", "version '3'; known are 1 (NCCL) and 2 (RCCL)"),
        (
            b"<system version='1'>\n<cpu numaid='0'>\n<pci ",
            "line 3: XML not well formed (unclosed token); the input ends",
        ),
        (b"<system version='1'>&amp;x;</system>", "text between XML elements"),
        (b"<system version='1'>&x;</system>", "not well formed (undefined entity)"),
    ],
)
def test_other_files_are_refused(content: bytes, told: str) -> None:
    assert told in refused(content)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(TopologyError) as caught:
        parse(cpu(*['<pci busid="x"/>'] * 30))
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 10 more"


LAUGHS = b"<!DOCTYPE s [<!ENTITY a 'ha'>" + b"".join(b"<!ENTITY a%d '&a;&a;'>" % at for at in range(40)) + b"]>"


SMALL = "<?xml version='1.0'?><system version='1'><cpu numaid='0'/></system>"


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "line 1: a NUL byte"),
        ("utf-16-be", "line 1: a NUL byte"),
        ("utf-32-le", "line 1: a NUL byte"),
        ("utf-7", None),
        ("utf-8-sig", None),
        ("cp037", "line 1: XML not well formed"),
    ],
)
def test_text_in_other_encodings_is_refused_unless_it_is_ascii(encoding: str, told: str | None) -> None:
    content = SMALL.encode(encoding)
    if told is None:
        assert parse_nccl_xml(content.replace(b"+ADw-", b"<"), host="box").devices == ()
    else:
        assert told in refused(content)


def test_an_encoding_by_name_does_not_matter_to_ascii() -> None:
    content = SMALL.replace("?>", " encoding='ISO-8859-1'?>").encode()
    assert parse_nccl_xml(content, host="box").devices == ()


def hosts(num_hosts: int, num_cpus: int, num_gpus: int) -> bytes:
    gpus = "".join(f"<pci busid='{at >> 8:04x}:{at & 255:02x}:0.0' class='0x03'/>" for at in range(num_gpus))
    gpus = gpus.replace(":0.0", ":00.0")
    one = "".join(f"<cpu numaid='{node}' host_hash='HASH'>{'' if node else gpus}</cpu>" for node in range(num_cpus))
    return (
        f"<system version='1'>{''.join(one.replace('HASH', hex(at + 1)) for at in range(num_hosts))}</system>".encode()
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<system version='1'>" + b" " * 100_000_000, "bytes, more than"),
        (b"<system version='1'><cpu numaid='0'>" + b"<pci busid='0:1:0.0'>" * 90_000, "nested deeper than 64"),
        (b"<system version='1'>" + b"<x>" * 600_000, "nested deeper than 64"),
        (b"<system version='1'>" + b"<x/>" * 500_000, "more than 8192 elements"),
        (b"<system " + b" ".join(b"a%d=''" % at for at in range(170_000)) + b"/>", "more than 64 attributes"),
        (b"<system version='" + b"1" * 2_000_000 + b"'/>", "a value longer than"),
        (LAUGHS + b"<system version='1'>&a39;</system>", "DOCTYPE"),
        (b"<!DOCTYPE s SYSTEM 'file:///etc/passwd'><system version='1'/>", "DOCTYPE"),
        (b"<!DOCTYPE s [<!ENTITY % p SYSTEM 'http://127.0.0.1/'> %p;]><system version='1'/>", "DOCTYPE"),
        (
            b"<system version='1'><cpu numaid='0'>" + b"<nic><net name='a+a'/></nic>" * 4_000 + b"</cpu></system>",
            "again",
        ),
        (bytes(range(256)) * 8_000, "a NUL byte"),
        (b"\xff\xfe" + b"<\0" * 1_000_000, "XML not well formed"),
        (b"\xff\xfe<\0\x00\xdc" * 9, "line 1: marked as UTF-16-LE text, but not"),
        (b"<system version='1'>" + b"<cpu numaid='0' affinity='" + b"f," * 600 + b"'/></system>", "longer than"),
        (b"<" + b"a" * 2_000_000, "not well formed"),
        (hosts(1, 1, 300), "300 GPUs and 1 cpu elements; one host has fewer"),
        (hosts(120, 64, 0), "a NVLink domain has fewer"),
        (hosts(20, 1, 250), "a NVLink domain has fewer"),
    ],
    ids=[
        *("large", "deep", "deep-unknown", "many", "attributes", "value", "laughs", "external", "parameter-entity"),
        *("merged", "binary", "utf-16", "half-utf-16", "mask", "name", "gpus", "cpus", "hosts"),
    ],
)
def test_hostile_input_is_refused_in_bounded_time_and_memory(content: bytes, told: str) -> None:
    started = time.process_time()
    assert told in refused(content)
    assert time.process_time() - started < 2
    tracemalloc.start()
    refused(content)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 100_000_000


@pytest.mark.parametrize("content", [hosts(4_000, 1, 0), hosts(1, 1, 256), hosts(60, 2, 32)])
def test_the_largest_files_that_are_read_take_no_longer(content: bytes) -> None:
    started = time.process_time()
    assert parse_nccl_xml(content, host="box").hosts
    assert time.process_time() - started < 2
