"""The bars that the code holds itself to: sizes, names, docstrings and imports.

How it is measured: a function's length is its lines from `def` to its last, less its
docstring, blank lines and lines that hold only a comment; nested functions count for
themselves and for the one around them. A module's length is all of its lines.
Complexity and arguments are ruff's to judge (pyproject.toml has the limits).
"""

import ast
import re
import subprocess  # noqa: TID251 - a fresh interpreter imports the daemon
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import median, quantiles

import pytest

from tests.wire_header import source

ROOT = Path(__file__).parents[1]
AGENT = sorted((ROOT / "agent").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCH = sorted((ROOT / "bench").rglob("*.py"))
PROBES = sorted((ROOT / "probes").glob("*.[ch]"))
TEXTS = [*AGENT, *TESTS, *BENCH, *PROBES, *(ROOT / "tests").rglob("*.c")]
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
Function = ast.FunctionDef | ast.AsyncFunctionDef

# of x86 alone, as user space and as the kernel names them; without a letter of its
# width a register is one only where it is a member
REGISTERS = re.compile(
    r"\b(?:[re](?:ax|bx|cx|dx|si|di|bp|sp|ip)|r(?:8|9|1[0-5])|orig_[re]?ax|PT_REGS_\w+)\b"
    r"|(?:->|\.)\s*(?:[abcd]x|[sd]i|[bi]p)\b"
)
OF_X86 = re.compile(r"\b__(?:x64|ia32|x32)_\w*|\bAUDIT_ARCH_\w+|\bCONFIG_X86\w*")
_CALL = r"(?:\w+(?:->|\.))?(?:nr|id|__NR_\w*|syscall)"
BARE_CALL_NUMBER = re.compile(
    rf"\b{_CALL}\s*[!=]=\s*[1-9]\d*|\b[1-9]\d*\s*[!=]=\s*{_CALL}\b"
    r"|\bcase\s+[1-9]\d*\s*:"
)
TABLES = {
    "agent/sensor/hooks.py": ["MACHINE_PREFIXES"],
    "agent/sensor/headers.py": ["_X86", "REGISTERS", "_caller_registers"],
}
"""Where a machine may be named: these assignments and functions."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(tree(path)):
        if isinstance(node, Function):
            yield node


@cache
def code_lines(path: Path) -> frozenset[int]:
    """The numbers of lines that hold code."""
    nothing = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT}
    nothing |= {tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(StringIO(path.read_text()).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    return frozenset(lines)


def docstring_lines(function: Function) -> set[int]:
    if ast.get_docstring(function) is None:
        return set()
    first = function.body[0]
    return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))


def length(path: Path, function: Function) -> int:
    """Lines of code of a function, from its `def` on."""
    lines = set(range(function.lineno, (function.end_lineno or 0) + 1))
    return len((lines & code_lines(path)) - docstring_lines(function))


def lengths() -> dict[str, int]:
    return {
        f"{name_of(path)}:{one.lineno} {one.name}": length(path, one)
        for path in AGENT
        for one in functions(path)
    }


@pytest.mark.parametrize("path", AGENT + PROBES, ids=name_of)
def test_no_module_and_no_probe_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_is_longer_than_600_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600


def test_half_of_all_functions_have_at_most_8_lines() -> None:
    assert median(lengths().values()) <= 8


def test_nine_of_ten_functions_have_at_most_25_lines() -> None:
    assert quantiles(lengths().values(), n=10)[-1] <= 25


def test_no_function_has_more_than_60_lines() -> None:
    assert {name: size for name, size in lengths().items() if size > 60} == {}


def test_the_pipeline_is_one_page() -> None:
    """DESIGN: the picture of the path, nearly word for word, in under 120 lines."""
    assert len(code_lines(ROOT / "agent/pipeline.py")) < 120


@pytest.mark.parametrize("path", AGENT, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path))


def test_no_module_is_called_by_what_it_is_not() -> None:
    """`utils` and its kin say nothing of what is in them."""
    parts = {part for path in AGENT + TESTS + BENCH for part in _words(path)}
    assert parts & FORBIDDEN_NAMES == set()


def _words(path: Path) -> set[str]:
    return set(re.split(r"[/_.]", name_of(path)))


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_nothing_is_left_for_later_in_a_comment(path: Path) -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    found = [mark for mark in marks if re.search(rf"\b{mark}\b", path.read_text())]
    assert found == []


@pytest.mark.parametrize("path", PROBES, ids=name_of)
def test_probes_name_no_register_and_no_system_call_by_number(path: Path) -> None:
    text = source(path.name)
    for pattern in (REGISTERS, OF_X86, BARE_CALL_NUMBER, re.compile("(?i)x86")):
        assert pattern.findall(text) == []


def outside_the_tables(path: Path) -> str:
    """The code of a module without its docstrings, comments, and tables of machines."""
    left = []
    for node in tree(path).body:
        names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
        names = names[:1] if isinstance(node, ast.Assign | ast.AnnAssign) else []
        if isinstance(node, Function | ast.ClassDef):
            names = [node.name]
        if not set(names) & set(TABLES.get(name_of(path), ())):
            left.append(ast.unparse(node))
    return "\n".join(left)


@pytest.mark.parametrize("path", AGENT, ids=name_of)
def test_the_agent_names_nothing_of_one_machine_outside_its_tables(path: Path) -> None:
    for pattern in (REGISTERS, OF_X86):
        assert pattern.findall(outside_the_tables(path)) == []


def test_the_tables_of_machines_are_where_they_are_said_to_be() -> None:
    for name, tables in TABLES.items():
        text = outside_the_tables(ROOT / name)
        assert [one for one in tables if re.search(rf"^(def )?{one}\b", text)] == []
    whole = (ROOT / "agent/sensor/hooks.py").read_text()
    assert OF_X86.findall(whole)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "mov rdi, 1",
            "orig_rax",
            "ctx->di",
            "regs->si",
            "regs . ax",
            "PT_REGS_PARM1(c)",
        ),
        *("__x64_sys_ptrace(r)", "__ia32_sys_x", "AUDIT_ARCH_I386", "CONFIG_X86_64"),
        *("nr == 59", "ctx->id != 101", "59 == nr", "59 != call.nr", "case 59:"),
        "__NR_execve == 59",
    ],
)
def test_names_and_numbers_of_one_machine_are_known(text: str) -> None:
    patterns = (REGISTERS, OF_X86, BARE_CALL_NUMBER)
    assert any(pattern.search(text) for pattern in patterns)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a->d_inode",
            "x->dir",
            "box->six",
            "di = 1",
            "call.nr",
            "i == 59",
            "nr == 0",
        ),
        *(
            "found->nr != nr",
            "pid->numbers[nr]",
            "case IR_VM_READ:",
            "upid.nr",
            "case 0:",
        ),
    ],
)
def test_other_names_and_numbers_are_not_taken_for_them(text: str) -> None:
    for pattern in (REGISTERS, OF_X86, BARE_CALL_NUMBER):
        assert not pattern.search(text)


def test_no_class_of_ours_has_a_single_child() -> None:
    bases: dict[str, int] = {}
    own = set()
    for path in AGENT:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                own.add(node.name)
                for base in node.bases:
                    bases[ast.unparse(base)] = bases.get(ast.unparse(base), 0) + 1
    assert [
        name for name, children in bases.items() if name in own and children == 1
    ] == []


def imported_by(module: str) -> set[str]:
    """The modules that a fresh interpreter holds after importing one."""
    program = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return set(done.stdout.decode().split())


def test_the_daemon_does_not_import_the_compiler() -> None:
    modules = imported_by("agent.daemon")
    assert "agent.pipeline" in modules
    assert "bcc" not in modules
    assert "agent.sensor.loader" not in modules


def test_an_audit_imports_no_probes_and_no_daemon() -> None:
    modules = imported_by("agent.check")
    assert {"bcc", "agent.daemon", "agent.sensor.loader"} & modules == set()
