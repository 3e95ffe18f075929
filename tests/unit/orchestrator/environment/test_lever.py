"""What a launch sets, what it leaves alone, and whose setting wins."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.spec import RESERVED_NAMES
from orchestrator.environment.given import SHELL, Interface, Setting, UserEnvironment
from orchestrator.environment.lever import Lever, levers, variables
from orchestrator.environment.policy import RULES, Policy, is_allowed
from topology.errors import TopologyError
from topology.model import Device, DeviceKind, Host, Topology
from topology.presets import preset, preset_names
from topology.probe import read_topology

CORPUS = Path(__file__).resolve().parents[4].parent / "shared" / "corpus"
NOBODY = UserEnvironment()
# The row of the table that no launch may set by itself.
FORBIDDEN = {
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO", "NCCL_NET_GDR_LEVEL"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE", "NCCL_PXN_DISABLE"),
    *("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE", "NCCL_TUNER_CONFIG_FILE"),
    *("NCCL_TUNER_PLUGIN", "NCCL_CROSS_NIC", "NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_QPS_PER_CONNECTION"),
}


def user(**given_by_user: str) -> UserEnvironment:
    return UserEnvironment(
        settings=tuple(Setting(name=name, value=value, source=SHELL) for name, value in given_by_user.items())
    )


def by_name(
    topology: Topology, environment: UserEnvironment = NOBODY, devices: tuple[str, ...] = ()
) -> dict[str, Lever]:
    return {lever.name: lever for lever in levers(topology, devices, environment)}


def check_policy(found: tuple[Lever, ...]) -> None:
    for lever in found:
        assert lever.name not in FORBIDDEN
        assert lever.evidence
        assert lever.source
        if lever.name in RULES:
            assert is_allowed(lever.name)
    names = [name for name, _ in variables(found)]
    assert len(set(names)) == len(names)
    assert not set(names) & (FORBIDDEN | RESERVED_NAMES)
    assert all(value for _, value in variables(found))


def test_the_table_forbids_what_may_not_be_set() -> None:
    assert {name for name in FORBIDDEN if name in RULES and not is_allowed(name)} == FORBIDDEN
    assert {name for name, rule in RULES.items() if rule.policy is Policy.always} == {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
    }
    assert not is_allowed("NCCL_UNHEARD_OF")


@pytest.mark.parametrize("name", preset_names())
def test_no_drawn_machine_gets_a_forbidden_variable(name: str) -> None:
    for nodes in (1,) if name == "cpu" else (1, 2):
        found = levers(preset(name, nodes=nodes), (), NOBODY)
        check_policy(found)
        assert dict(variables(found)).keys() <= {"NCCL_DEBUG", "NCCL_IB_HCA"}


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus lies outside the repository")
@pytest.mark.parametrize("folder", ["smi", "nccl_xml"])
def test_no_machine_of_the_corpus_gets_a_forbidden_variable(folder: str) -> None:
    count = 0
    for path in sorted((CORPUS / folder).rglob("*.*")):
        try:
            topology = read_topology(path)
        except TopologyError:
            continue
        check_policy(levers(topology, (), NOBODY))
        count += 1
    assert count > 20


@lru_cache
def dgx_alone() -> Topology:
    return preset("dgx_h100")


@lru_cache
def dgx() -> Topology:
    return preset("dgx_h100", nodes=2)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from(sorted({*RULES, "NCCL_NET", "FI_PROVIDER"})), st.sampled_from(["", "0", "1", "x", "=eth0"])
    )
)
def test_what_the_user_has_set_is_never_set(given_by_user: dict[str, str]) -> None:
    check_users_win(dgx_alone(), given_by_user)


def test_what_the_user_has_set_is_never_set_between_hosts() -> None:
    check_users_win(dgx(), dict.fromkeys(RULES, "1"))
    check_users_win(dgx(), {"NCCL_IB_HCA": "=mlx5_0"})
    check_users_win(dgx(), {"NCCL_IB_HCA": ""})  # the launch would keep it


def check_users_win(topology: Topology, given_by_user: dict[str, str]) -> None:
    found = levers(topology, (), user(**given_by_user))
    check_policy(found)
    set_by_user = set(given_by_user)
    assert not {name for name, _ in variables(found)} & set_by_user
    reported = {lever.name for lever in found if lever.overridden_by}
    assert reported == (set_by_user & {lever.name for lever in found}) - RESERVED_NAMES


def test_a_setting_in_a_file_of_nccls_wins_too() -> None:
    setting = Setting(name="NCCL_DEBUG", value="INFO", source="/etc/nccl.conf")
    found = by_name(preset("dgx_h100"), UserEnvironment(settings=(setting,)))["NCCL_DEBUG"]
    assert found.overridden_by == "NCCL_DEBUG=INFO (/etc/nccl.conf)"
    assert not found.is_pulled


def test_devices_are_named_by_uuid_in_the_order_of_the_ranks() -> None:
    topology = preset("4xv100-16gb")
    ids = tuple(device.id for device in topology.gpus)
    chosen = (ids[2], ids[0])
    found = by_name(topology, user(CUDA_VISIBLE_DEVICES="0,1,2"), chosen)
    assert found["CUDA_DEVICE_ORDER"].value == "PCI_BUS_ID"
    shown = found["CUDA_VISIBLE_DEVICES"]
    assert shown.value == ",".join(chosen)
    assert "replaces CUDA_VISIBLE_DEVICES=0,1,2" in shown.evidence
    assert shown.is_pulled


def test_each_host_gets_its_own_devices() -> None:
    shown = by_name(dgx())["CUDA_VISIBLE_DEVICES"]
    assert shown.value == ""
    assert [device for device, _ in shown.by_device] == [device.id for device in dgx().gpus]


def test_cpu_ranks_get_no_variable_of_gpus() -> None:
    found = levers(preset("cpu"), (), NOBODY)
    assert variables(found) == ()
    assert not [lever.name for lever in found if lever.name.startswith(("NCCL", "CUDA"))]


def test_slots_of_cpus_may_repeat() -> None:
    topology = preset("cpu")
    names = tuple(device.id for device in topology.devices)
    assert levers(topology, (*names, *names), NOBODY) == levers(topology, names, NOBODY)


def test_an_order_that_is_not_the_best_is_kept_and_told() -> None:
    topology = preset("dgx1_v100")
    ids = tuple(device.id for device in topology.gpus)
    kept = by_name(topology, devices=ids)["order of ranks"]
    best = tuple(kept.value.split(","))
    assert best != ids
    assert not kept.applies
    assert by_name(topology)["order of ranks"].applies
    assert by_name(topology, devices=best)["order of ranks"].applies


def test_islands_that_pay_are_told() -> None:
    pairs = by_name(preset("a100_pcie_pairs_x8"))["island size"]
    assert (pairs.value, pairs.applies) == ("2", True)
    assert by_name(preset("dgx_h100"))["island size"].applies is False


def test_cpus_are_told_and_not_yet_bound() -> None:
    found = by_name(preset("dgx_h100"))["CPUs of each rank"]
    assert dict(found.by_device)[preset("dgx_h100").gpus[0].id] == "0-55,112-167"
    assert not found.applies
    assert "not applied yet" in found.evidence


def test_compute_ports_are_chosen_exactly_between_hosts_only() -> None:
    found = by_name(dgx())["NCCL_IB_HCA"]
    assert found.value.startswith("=mlx5_0:1,mlx5_3:1")
    assert "mlx5_1:1" not in found.value.removeprefix("=").split(",")
    assert "mlx5_1:1" in found.evidence
    assert not by_name(preset("dgx_h100"))["NCCL_IB_HCA"].applies
    assert not by_name(preset("hgx_b200", nodes=2))["NCCL_IB_HCA"].applies


def test_a_plugin_keeps_its_fabric() -> None:
    assert not by_name(preset("p5", nodes=2))["NCCL_IB_HCA"].applies
    assert not by_name(dgx(), user(NCCL_NET="gIB"))["NCCL_IB_HCA"].applies
    assert by_name(dgx(), user(NCCL_NET="IB"))["NCCL_IB_HCA"].applies


def test_interfaces_are_set_only_where_the_default_is_wrong() -> None:
    wrong = (
        Interface(name="lo", addresses=("127.0.0.1",)),
        Interface(name="br-1", addresses=("172.18.0.1",)),
        Interface(name="eth0", addresses=("10.0.0.5",)),
    )
    host = dgx().hosts[0].name
    users = UserEnvironment(host=host, interfaces=wrong, host_addresses=("127.0.1.1",))
    assert (
        dict(variables(levers(dgx(), (), users))).items()
        >= {
            "NCCL_SOCKET_IFNAME": "=eth0",
            "GLOO_SOCKET_IFNAME": "eth0",
        }.items()
    )
    right = UserEnvironment(host=host, interfaces=wrong[::2], host_addresses=("10.0.0.5",))
    elsewhere = UserEnvironment(host="laptop", interfaces=wrong, host_addresses=("127.0.1.1",))
    for topology, environment in ((dgx(), right), (dgx(), elsewhere), (preset("dgx_h100"), users)):
        assert not {name for name, _ in variables(levers(topology, (), environment)) if "IFNAME" in name}


def test_devices_that_nothing_joins_can_be_launched_on() -> None:
    gpus = tuple(
        Device(id=f"GPU-{at}", host="box", kind=DeviceKind.gpu, name="card", memory_bytes=None, uuid=f"GPU-{at}")
        for at in range(2)
    )
    topology = Topology(hosts=(Host(name="box", memory_bytes=None, cores=None, devices=gpus),))
    found = by_name(topology)
    assert found["CUDA_VISIBLE_DEVICES"].value == "GPU-0,GPU-1"
    assert found["NCCL_DEBUG"].is_pulled


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(TopologyError, match="GPU-elsewhere"):
        levers(dgx(), ("GPU-elsewhere",), NOBODY)
