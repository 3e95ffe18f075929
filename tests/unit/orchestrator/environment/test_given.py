"""What the user has set, and where NCCL would find it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.environment.given import SHELL, Setting, UserEnvironment, joined, parse_conf
from orchestrator.environment.read import read_user_environment

NAMES = st.sampled_from(["NCCL_DEBUG", "NCCL_ALGO", "GLOO_SOCKET_IFNAME", "PATH", "#NCCL_PROTO"])
VALUES = st.text(alphabet="ab =#:,^", max_size=6)


def as_nccl_reads(*texts: str, environment: dict[str, str]) -> dict[str, str]:
    """A plain reference: character by character, setting only what is not set."""
    found = dict(environment)
    for text in texts:
        for line in text.split("\n"):
            if line[:1] == "#":
                continue
            at = 0
            while at < len(line) and line[at] != "=":
                at += 1
            if at < len(line) and at:
                found.setdefault(line[:at], line[at + 1 :])
    return found


@given(
    st.dictionaries(st.sampled_from(["NCCL_DEBUG", "NCCL_ALGO"]), VALUES.filter(bool)),
    st.lists(st.tuples(NAMES, VALUES)),
    st.lists(st.tuples(NAMES, VALUES)),
)
def test_files_count_as_nccl_reads_them(
    environment: dict[str, str], user: list[tuple[str, str]], etc: list[tuple[str, str]]
) -> None:
    texts = ["\n".join(f"{name}={value}" for name, value in lines) for lines in (user, etc)]
    own = [Setting(name=name, value=value, source=SHELL) for name, value in environment.items()]
    settings = joined(own, *(parse_conf(text, "file") for text in texts))
    expected = as_nccl_reads(*texts, environment=environment)
    found = UserEnvironment(settings=settings)
    for name in ("NCCL_DEBUG", "NCCL_ALGO", "GLOO_SOCKET_IFNAME"):
        setting = found.get(name)
        assert (setting.value if setting else "") == expected.get(name, "")
    assert found.get("PATH") is None
    assert len({setting.name for setting in found.effective}) == len(found.effective)


def test_files_are_read_in_the_order_in_which_they_count(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=INFO\nNCCL_ALGO=ring\n")
    etc = tmp_path / "etc.conf"
    etc.write_text("NCCL_DEBUG=TRACE\nNCCL_CROSS_NIC=0\n")
    found = read_user_environment({"NCCL_ALGO": "tree", "HOME": "/nowhere"}, etc=etc, home=tmp_path)
    assert {setting.name: (setting.value, setting.source) for setting in found.effective} == {
        "NCCL_ALGO": ("tree", SHELL),
        "NCCL_DEBUG": ("INFO", str(tmp_path / ".nccl.conf")),
        "NCCL_CROSS_NIC": ("0", str(etc)),
    }
    other = tmp_path / "other.conf"
    other.write_text("NCCL_DEBUG=VERSION\n")
    found = read_user_environment({"NCCL_CONF_FILE": str(other)}, etc=etc, home=tmp_path)
    debug = found.get("NCCL_DEBUG")
    assert debug is not None
    assert debug.value == "VERSION"


def test_files_that_are_missing_or_no_text_are_no_error(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_bytes(b"\xff\xfe\x00=\nNCCL_DEBUG=INFO")
    found = read_user_environment({}, etc=tmp_path, home=tmp_path)
    assert [str(setting) for setting in found.settings] == [f"NCCL_DEBUG=INFO ({tmp_path / '.nccl.conf'})"]


def test_interfaces_are_read_only_where_asked(tmp_path: Path) -> None:
    assert read_user_environment({}, etc=tmp_path, home=tmp_path).interfaces == ()
    found = read_user_environment({}, network=True, etc=tmp_path, home=tmp_path)
    assert found.host
    assert any("127.0.0.1" in each.addresses for each in found.interfaces)
