"""What an XID asks of a run: rules kept as data (`xid_policy.json`, with their source), and how they go together.

A GPU is never reset by us: a verdict says what a person must do, and what the run does without that GPU meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from orchestrator.monitor.finding import Response
from orchestrator.monitor.readings import Xid

__all__ = ["Policy", "Rule", "XidVerdict", "judge_xids", "policy"]

_ORDER: Final = tuple(Response)
_CHANGED_TO: Final = re.compile(r"\bto 0x([0-9a-f]{1,4})\b", re.IGNORECASE)
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is done about some XIDs, or about a recovery action of the driver.

    Attributes:
        name: the catalog's name of their group; of a recovery action its words.
        response, person: of the run and of a person.
        repeated, person_repeated: the same when it comes again on the same GPU; None where that changes nothing.
    """

    name: str
    response: Response
    person: str
    repeated: Response | None = None
    person_repeated: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The table.

    Attributes:
        burst_seconds: XIDs of a GPU that follow each other within it come from one fault.
        repeat_hours: within which a fault counts as repeated.
        by_number: rules by XID.
        unknown: for all others.
        by_products: XIDs that follow others, so that those are the cause.
        never_by_products: XIDs that tell of the hardware wherever they stand in a burst.
        disputed: XIDs of which sources disagree, and how.
        double_bit, with_double_bit, remapped: the XID of a double-bit error, and its rule together with one of others.
        qualifiers: what some XIDs add to the words.
        recovery_xid: the XID that tells a new recovery action.
        recovery: rules by recovery action (NVML field 230).
        recovery_words: by which that XID names them where it gives no number, longest first.
        recovery_unknown: for all others.
    """

    version: int
    date: str
    source: str
    burst_seconds: float
    repeat_hours: float
    by_number: dict[int, Rule]
    unknown: Rule
    by_products: frozenset[int]
    never_by_products: frozenset[int]
    disputed: dict[int, str]
    double_bit: int
    with_double_bit: frozenset[int]
    remapped: Rule
    qualifiers: dict[int, str]
    recovery_xid: int
    recovery: dict[int, Rule]
    recovery_words: tuple[tuple[str, int], ...]
    recovery_unknown: Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class XidVerdict:
    """What is done.

    Attributes:
        action: of the run.
        quarantine: the GPU (or its host) stays out of later plans until a person clears it.
        person_must: what only a person can do; empty where nothing.
        why: with the XIDs and the rule.
    """

    action: Response
    quarantine: bool
    person_must: str
    why: str


def judge_xids(xids: Sequence[Xid], history: Sequence[Xid] = (), recovery_action: int | None = None) -> XidVerdict:
    """Judge new XIDs of one GPU.

    The first XID of a burst is its cause, but for those that only follow others. The driver's own recovery action (NVML
    field 230, or the words of XID 154) overrides what the numbers say; that nothing is needed does so for errors that
    are no certain fault of the hardware.

    Args:
        xids: new ones, of one GPU; none where only the recovery action changed.
        history: earlier ones of the same GPU, of this run or others.
        recovery_action: of that GPU now; None where it is not known.

    Raises:
        ValueError: they are of several GPUs.
    """
    devices = {xid.device for xid in xids if xid.device}
    if len(devices) > 1:
        msg = f"XIDs of one GPU are judged together, not those of {', '.join(sorted(devices))}"
        raise ValueError(msg)
    rules = policy()
    *before, burst = _bursts(xids, history, rules) or [()]
    cause, told = _numbers_say(burst, before, rules)
    asked = _driver_asks(burst, recovery_action, rules)
    if asked is None:
        return _verdict(cause, told)
    rule, words = asked
    if rule.response is not Response.ignore:
        return _verdict(rule, "; ".join(filter(None, (words, told))))
    settled = rule if not burst or cause.response is Response.ignore else _lowered(cause, burst, rules)
    return _verdict(settled, "; ".join(filter(None, (told, words))))


def _bursts(xids: Sequence[Xid], history: Sequence[Xid], rules: Policy) -> list[tuple[Xid, ...]]:
    """Cut all XIDs where a pause is, oldest first; the new ones lie in the last burst, whatever their clocks say."""
    found: list[tuple[Xid, ...]] = []
    newest = min((xid.time for xid in xids), default=0.0)
    for xid in (*sorted(history, key=lambda one: one.time), *xids):
        is_new = any(xid is one for one in xids)
        at = max(xid.time, newest) if is_new else xid.time
        is_next = bool(found) and at - found[-1][-1].time <= rules.burst_seconds
        if is_next or (is_new and xid is not xids[0]):
            found[-1] = (*found[-1], xid)
        else:
            found.append((xid,))
    return found if xids else [*found, ()]


def _numbers_say(burst: Sequence[Xid], before: Sequence[Sequence[Xid]], rules: Policy) -> tuple[Rule, str]:
    """Return the rule that the numbers of a burst lead to, with the words for it."""
    burst = [xid for xid in burst if xid.number != rules.recovery_xid]
    if not burst:
        return Rule(name="", response=Response.ignore, person=""), ""
    numbers = {xid.number for xid in burst}
    lead = _lead(burst, rules)
    certain = [xid for xid in burst if xid.number in rules.never_by_products]
    found = [_rule(xid, before, rules) for xid in (lead, *certain)]
    if rules.double_bit in numbers and numbers & rules.with_double_bit:
        found.append(rules.remapped)
    # The first of equally grave ones; but the rule for a pair says more than that for its first.
    rule = max(reversed(found), key=lambda one: _ORDER.index(one.response))
    told = f"XID {lead.number}{f' ({lead.words})' if lead.words else ''}"
    if len(burst) > 1:
        told += f", first of {', '.join(str(xid.number) for xid in burst)}"
    notes = [rules.disputed.get(lead.number, ""), *(text for at, text in rules.qualifiers.items() if at in numbers)]
    told += f": {rule.name} by the Xid catalog (policy {rules.version} of {rules.date})"
    return rule, "; ".join(filter(None, (told, *notes)))


def _lead(burst: Sequence[Xid], rules: Policy) -> Xid:
    """Return the cause of a burst: the first that does not merely follow others."""
    return next((xid for xid in burst if xid.number not in rules.by_products), burst[0])


def _rule(xid: Xid, before: Sequence[Sequence[Xid]], rules: Policy) -> Rule:
    """Return the rule for an XID, the stricter one where the same came before on that GPU."""
    rule = rules.by_number.get(xid.number, rules.unknown)
    if rule.repeated is None:
        return rule
    recent = [_lead(burst, rules) for burst in before if xid.time - burst[-1].time <= rules.repeat_hours * _HOUR]
    same = [one for one in recent if rules.by_number.get(one.number, rules.unknown) is rule]
    if rule is rules.unknown:
        same = [one for one in same if one.number == xid.number]
    if not same:
        return rule
    again = f"{rule.name}, again within {rules.repeat_hours:.0f} hours,"
    return Rule(name=again, response=rule.repeated, person=rule.person_repeated or rule.person)


def _driver_asks(burst: Sequence[Xid], recovery_action: int | None, rules: Policy) -> tuple[Rule, str] | None:
    """Return the rule for what the driver asks for, with words; the field counts before the newest XID 154."""
    if recovery_action:
        rule = rules.recovery.get(recovery_action, rules.recovery_unknown)
        return rule, f"the driver asks for recovery action {recovery_action} ({rule.name})"
    told = [xid for xid in burst if xid.number == rules.recovery_xid]
    if told:
        value = _recovery_value(told[-1].words, rules)
        rule = rules.recovery_unknown if value is None else rules.recovery.get(value, rules.recovery_unknown)
        return rule, f"XID {rules.recovery_xid} ({told[-1].words or 'no words'})"
    if recovery_action is None or not burst:
        return None
    # Right after an error the field may not be set yet: that it is not decides only where sources disagree.
    if _lead(burst, rules).number not in rules.disputed:
        return None
    return rules.recovery[0], "the driver asks for no recovery"


def _recovery_value(words: str, rules: Policy) -> int | None:
    match = _CHANGED_TO.search(words)
    if match is not None:
        return int(match[1], 16)
    text = words.lower().rpartition(" to ")[2]
    return next((value for name, value in rules.recovery_words if name in text), None)


def _lowered(cause: Rule, burst: Sequence[Xid], rules: Policy) -> Rule:
    """Return the rule where the driver asks for nothing: what is no certain fault of the hardware needs a restart."""
    is_certain = any(xid.number in rules.never_by_products for xid in burst)
    if is_certain or cause.response in {Response.restart, Response.stop}:
        return cause
    return Rule(name=cause.name, response=Response.restart, person="")


def _verdict(rule: Rule, why: str) -> XidVerdict:
    return XidVerdict(
        action=rule.response,
        quarantine=rule.response in {Response.drop_device, Response.drop_host},
        person_must=rule.person,
        why=why or "no XID, and the driver asks for nothing",
    )


@cache
def policy() -> Policy:
    """Return the table that comes with the package."""
    data: dict[str, Any] = json.loads((files("orchestrator.monitor") / "xid_policy.json").read_text(encoding="utf-8"))
    by_number = {}
    for name, row in data["buckets"].items():
        rule = _read(name, row)
        by_number.update(dict.fromkeys(row["xids"], rule))
    double = data["double_bit"]
    recovery = data["recovery"]
    words = [(word, row["value"]) for row in recovery for word in row["words"]]
    return Policy(
        version=data["version"],
        date=data["date"],
        source=data["source"],
        burst_seconds=data["burst_seconds"],
        repeat_hours=data["repeat_hours"],
        by_number=by_number,
        unknown=_read("unknown number", data["unknown"]),
        by_products=frozenset(data["by_products"]),
        never_by_products=frozenset(data["never_by_products"]),
        disputed={int(number): text for number, text in data["disputed"].items()},
        double_bit=double["xid"],
        with_double_bit=frozenset(double["with"]),
        remapped=_read("double-bit error with a row remapping", double),
        qualifiers={int(number): text for number, text in data["qualifiers"].items()},
        recovery_xid=data["recovery_xid"],
        recovery={row["value"]: _read(row["words"][0], row) for row in recovery},
        recovery_words=tuple(sorted(words, key=lambda pair: -len(pair[0]))),
        recovery_unknown=_read("unknown recovery action", data["recovery_unknown"]),
    )


def _read(name: str, row: dict[str, Any]) -> Rule:
    repeated = row.get("repeated")
    return Rule(
        name=name,
        response=Response(row["response"]),
        person=row["person"],
        repeated=None if repeated is None else Response(repeated),
        person_repeated=row.get("person_repeated", ""),
    )
