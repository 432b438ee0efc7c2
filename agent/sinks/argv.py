"""argv as evidence: the array, how much there was, its hash, and what is missing.

In: the raw argv of an exec that worked or failed. Out: members of a record. An argument
is never invented, merged or dropped in silence; where text can't hold its bytes, they
stand in base64 beside it.
"""

import base64
import hashlib
from functools import lru_cache

import msgspec

from agent.events import Exec, ExecFailed, Flag
from agent.sinks.text import flags, quote, text

_MAX_LINE = 1 << 16
"""Characters of command_line, which is for searching: args hold all of it. With both
whole, the longest argv would not fit into a line of the log."""
_encode = msgspec.json.Encoder().encode
_EMPTY = hashlib.sha256()
_CUT = int(Flag.ARGV_FAULT) | int(Flag.ARGV_CUT)


def arguments(args: list[bytes]) -> str:
    """Return the members "args", "args_count" and "command_line", and a comma."""
    words = [text(arg) for arg in args]
    return (
        f'"args":{_encode(words).decode()},"args_count":{len(args)},'
        f'"command_line":{quote(" ".join(words)[:_MAX_LINE])},'
    )


@lru_cache(maxsize=1024)
def environment(variables: tuple[bytes, ...]) -> str:
    """Return the member "env_vars" and a comma, if there are any."""
    if not variables:
        return ""
    return f'"env_vars":{_encode([text(one) for one in variables]).decode()},'


def facts(event: Exec, args: list[bytes]) -> str:
    """Return the object of ir.argv for a program that runs."""
    cut = event.flags & _CUT
    return (
        f'{{"count":{event.argc},"bytes":{event.argv_bytes},'
        f'"sha256":"{_sha256(event.argv)}",{_missing(cut)}{_exact(args)}}}'
    )


def caller_facts(event: ExecFailed, args: list[bytes]) -> str:
    """Return the same for an exec that failed: all of it is the caller's word."""
    cut = event.flags & _CUT
    return (
        f'{{"count":{event.argc},"bytes":{len(event.argv)},'
        f'"sha256":"{_sha256(event.argv)}",{_missing(cut)},"caller_memory":true'
        f"{_exact(args)}}}"
    )


def _missing(cut: int) -> str:
    return f'"truncated":true,"reasons":{flags(cut)}' if cut else '"truncated":false'


def _sha256(data: bytes) -> str:
    # a copy: OpenSSL 3 looks the algorithm up anew for each fresh object
    digest = _EMPTY.copy()
    digest.update(data)
    return digest.hexdigest()


def _exact(args: list[bytes]) -> str:
    """Return the member with the exact bytes, when text can't hold them."""
    try:
        b"\0".join(args).decode()
    except UnicodeDecodeError:
        exact = [base64.b64encode(arg).decode() for arg in args]
        return f',"raw_base64":{_encode(exact).decode()}'
    return ""
