"""What a record must be to be ECS 9.4: the fields used here, their types and values.

In: a record as a decoded JSON object. Out: nothing, or an AssertionError that names the
field. Taken from the field reference of ECS; `ir` is ours and not looked at.
"""

import re
from typing import Any

KINDS = {"event", "state", "pipeline_error", "alert"}
CATEGORIES = {"process", "host"}
TYPES = {
    # the reference's own example for "denied" is a process
    "process": {"access", "change", "denied", "end", "info", "start"},
    "host": {"access", "change", "end", "info", "start"},
}
OUTCOMES = {"success", "failure", "unknown"}
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")
UUID7 = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
)

_ID = {"id": str}
_USER = {"id": str, "name": str}
PROCESS: dict[str, Any] = {
    "pid": int,
    "vpid": int,
    "entity_id": str,
    "start": DATE,
    "end": DATE,
    "exit_code": int,
    "name": str,
    "executable": str,
    "working_directory": str,
    "args": [str],
    "args_count": int,
    "command_line": str,
    "env_vars": [str],
    "thread": {"id": int},
    "group_leader": {"pid": int},
    "session_leader": {"pid": int},
    **dict.fromkeys(("user", "real_user", "saved_user"), _USER),
    **dict.fromkeys(("group", "real_group", "saved_group"), _ID),
}
PROCESS["parent"] = {
    name: PROCESS[name] for name in ("pid", "entity_id", "start", "name", "executable")
}
FIELDS: dict[str, Any] = {
    "@timestamp": DATE,
    "ecs": {"version": str},
    "host": {"id": str, "name": str, "boot": _ID},
    "agent": {"type": str, "version": str},
    "event": {
        "id": UUID7,
        "sequence": int,
        "kind": str,
        "category": [str],
        "type": [str],
        "action": str,
        "outcome": str,
    },
    "error": {"code": str},
    "process": PROCESS,
}


def assert_ecs(record: dict[str, Any]) -> None:
    """Fail unless every member outside `ir` is an ECS field of the right type."""
    outside = {name: value for name, value in record.items() if name != "ir"}
    _check("", outside, FIELDS)
    event = record["event"]
    assert event["kind"] in KINDS
    assert set(event["category"]) <= CATEGORIES
    allowed = set().union(*(TYPES[category] for category in event["category"]))
    assert set(event["type"]) <= allowed
    assert event.get("outcome", "success") in OUTCOMES
    assert {"id", "sequence", "action"} <= set(event)


def _check(path: str, value: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert isinstance(value, dict), path
        for name, inner in value.items():
            assert name in expected, f"{path}.{name} is no field of ECS that we use"
            _check(f"{path}.{name}", inner, expected[name])
    elif isinstance(expected, list):
        assert isinstance(value, list), path
        for inner in value:
            _check(path, inner, expected[0])
    elif isinstance(expected, re.Pattern):
        assert isinstance(value, str), path
        assert expected.fullmatch(value), f"{path}: {value!r}"
    else:
        assert type(value) is expected, f"{path}: {value!r}"
