"""Settings that hurt are told, with the reason; others are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.environment.choices import ALGORITHMS, PROTOCOLS, UnknownTokenError, allowed_by
from orchestrator.environment.given import SHELL, Interface, Setting, UserEnvironment
from orchestrator.environment.harm import harms
from orchestrator.environment.read import read_user_environment


def reasons(name: str, value: str, *, ports: tuple[str, ...] = (), interfaces: tuple[str, ...] = ()) -> str:
    users = UserEnvironment(
        settings=(Setting(name=name, value=value, source=SHELL),),
        interfaces=tuple(Interface(name=each, addresses=("10.0.0.1",)) for each in interfaces),
    )
    return " | ".join(str(harm) for harm in harms(users, ports=ports))


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("NCCL_P2P_DISABLE", "1", "NVLink"),
        ("NCCL_P2P_DISABLE", "0x1", "NVLink"),
        ("NCCL_P2P_LEVEL", "2", "use a word"),
        ("NCCL_P2P_LEVEL", "0", "NVLink"),
        ("NCCL_P2P_LEVEL", "sys", "hung"),
        ("NCCL_P2P_LEVEL", "NODE", "no level"),
        ("NCCL_NET_GDR_LEVEL", "3", "use a word"),
        ("NCCL_SHM_DISABLE", "1", "network"),
        ("NCCL_IB_DISABLE", "1", "sockets"),
        ("NCCL_ALGO", "Tree", "allgather, reducescatter, broadcast, reduce"),
        ("NCCL_ALGO", "NVLS", "broadcast, reduce: they fail"),
        ("NCCL_ALGO", "rings", "knows no rings"),
        ("NCCL_ALGO", "^ring", "allgather"),
        ("NCCL_PROTO", "LL128", "corrupt"),
        ("NCCL_PROTO", "^LL,Simple", "corrupt"),
        ("NCCL_PROTO", "LL129", "knows no"),
        ("NCCL_CUMEM_ENABLE", "0", "containers"),
        ("NCCL_NVLS_ENABLE", "0", "NVSwitch"),
        ("NCCL_MAX_NCHANNELS", "4", "all groups"),
        ("NCCL_IB_HCA", "mlx5_1", "=mlx5_1"),
        ("NCCL_IB_HCA", "^mlx5_1", "^=mlx5_1"),
        ("GLOO_SOCKET_IFNAME", "=eth0", "without"),
        ("CUDA_LAUNCH_BLOCKING", "1", "overlaps"),
    ],
)
def test_told(name: str, value: str, word: str) -> None:
    assert word in reasons(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_P2P_DISABLE", "true"),  # no number: NCCL reads 0
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_ALGO", "ring"),
        ("NCCL_ALGO", "allreduce:tree"),
        ("NCCL_ALGO", "^nvls"),
        ("NCCL_IB_HCA", "=mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_CUMEM_ENABLE", "1"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_P2P_DISABLE", ""),
    ],
)
def test_not_told(name: str, value: str) -> None:
    assert reasons(name, value) == ""


def test_a_prefix_is_told_only_where_it_matches_more() -> None:
    ports = ("mlx5_0", "mlx5_1", "mlx5_10:2", "mlx5_11")
    assert "mlx5_10, mlx5_11" in reasons("NCCL_IB_HCA", "mlx5_0,mlx5_1", ports=ports)
    assert reasons("NCCL_IB_HCA", "mlx5_0,mlx5_11:1", ports=ports) == ""
    assert reasons("NCCL_IB_HCA", "mlx5", ports=ports) == ""
    assert "eth10" in reasons("NCCL_SOCKET_IFNAME", "eth1", interfaces=("lo", "eth1", "eth10"))
    assert reasons("NCCL_SOCKET_IFNAME", "eth1", interfaces=("lo", "eth1", "eth2")) == ""


def test_a_setting_that_another_hides_is_not_told() -> None:
    users = UserEnvironment(
        settings=(
            Setting(name="NCCL_P2P_DISABLE", value="0", source=SHELL),
            Setting(name="NCCL_P2P_DISABLE", value="1", source="/etc/nccl.conf"),
        )
    )
    assert harms(users) == ()


@given(st.sets(st.sampled_from(ALGORITHMS), min_size=1), st.booleans())
def test_a_list_and_its_negation_share_the_members_out(chosen: set[str], upper: bool) -> None:
    text = ",".join(sorted(chosen))
    text = text.upper() if upper else text
    kept, others = allowed_by(text, ALGORITHMS), allowed_by(f"^{text}", ALGORITHMS)
    for name in kept:
        assert kept[name] == chosen
        assert others[name] == set(ALGORITHMS) - chosen


def test_a_list_of_one_collective_leaves_the_others() -> None:
    found = allowed_by("ring,,tree;AllReduce:nvls;reduce:^ring;", ALGORITHMS)
    assert found["allreduce"] == {"nvls"}
    assert found["allgather"] == {"ring", "tree"}
    assert found["reduce"] == set(ALGORITHMS) - {"ring"}


@pytest.mark.parametrize(
    "value",
    ["gather:ring", "broadcast,reduce:ring", "allreduce:tree;ring", "ring, tree", "allreduce:ring;allgather:x", ":"],
)
def test_what_nccl_refuses_is_refused(value: str) -> None:
    with pytest.raises(UnknownTokenError):
        allowed_by(value, ALGORITHMS)


@given(st.text(max_size=20) | st.text(alphabet="ring,;:^=0 ", max_size=12))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_HCA", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"):
        assert isinstance(reasons(name, text), str)
    assert PROTOCOLS


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("NCCL_IB_HCA", "mlx5_7", "no port of this machine is called so (it has mlx5_0, mlx5_1)"),
        ("NCCL_IB_HCA", "=mlx5", "called so"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_9:1", "is called mlx5_9 (it has"),
        ("NCCL_IB_HCA", "mlx4", "called so"),
        ("NCCL_SOCKET_IFNAME", "eth7", "no interface that runs of this machine"),
        ("NCCL_IB_HCA", "mlx5", ""),
        ("NCCL_IB_HCA", "=mlx5_0", ""),
        ("NCCL_IB_HCA", "^mlx5_7", ""),
    ],
)
def test_names_of_nothing_are_told(name: str, value: str, word: str) -> None:
    told = reasons(name, value, ports=("mlx5_0", "mlx5_1"), interfaces=("eth0", "eth1"))
    assert word in told
    assert ("of this machine" in told) == bool(word)
    assert "of this machine" not in reasons(name, value)  # nothing is known of its ports


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "here.xml").write_text("<system/>")
    environ = {"NCCL_TOPO_FILE": str(tmp_path / "gone.xml"), "NCCL_GRAPH_FILE": str(tmp_path / "here.xml")}
    users = read_user_environment(environ, etc=tmp_path / "none", home=tmp_path)
    assert users.absent == ("NCCL_TOPO_FILE",)
    told = [str(harm) for harm in harms(users)]
    assert any(line.startswith("NCCL_TOPO_FILE=") and "there is no file" in line for line in told)
    assert not any(line.startswith("NCCL_GRAPH_FILE=") and "there is no file" in line for line in told)
    environ["NCCL_GRAPH_FILE"] = str(tmp_path / "gone.xml")
    users = read_user_environment(environ, etc=tmp_path / "none", home=tmp_path)
    told = [str(harm) for harm in harms(users) if harm.setting.name == "NCCL_GRAPH_FILE"]
    assert len(told) == 2  # that it is missing, and what holds of any such file
    assert not read_user_environment({"NCCL_TOPO_FILE": ""}, etc=tmp_path / "none", home=tmp_path).absent
