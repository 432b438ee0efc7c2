"""The documents say what the program does.

In: README, the changelog, everything in docs/ and deploy/agent.yaml. Out: their
commands are run, their lists and links are held against the code. Commands that need
root run with folders and pins of the test's own, whatever folders the example names.
"""

import itertools
import json
import os
import re
import shutil
import subprocess  # noqa: TID251 - runs the commands of the documents
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from agent import check, control, errors
from agent.checks import hidden, parentage, probes, process
from agent.config import Config, read_config
from agent.sensor.hooks import RUNGS, SENSES
from agent.sinks.segment import SegmentWriter
from tests.wire_header import source

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RECORDS = ROOT / "docs/records.md"
ARCHITECTURE = ROOT / "docs/architecture.md"
MANUALS = {"ir-agent": control, "ir-check": check}
PAGES = sorted(
    [
        README,
        ROOT / "CHANGELOG.md",
        ROOT / "rules/README.md",
        *ROOT.glob("docs/**/*.md"),
    ]
)
CONSOLES = [README, RECORDS, *(ROOT / f"docs/man/{name}.8.md" for name in MANUALS)]
PINS = Path(f"/sys/fs/bpf/ir-agent-docs-{os.getpid()}")
MOST_README_LINES = 150
# Members whose keys are values: kinds, CPUs, programs, configuration keys.
OPEN = ("kinds", "positions", "accounted", "config", "host_namespaces", "verdicts")

needs_root = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="loads probes"),
]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in this language."""
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", page.read_text())


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"(?ms)^#+ {heading}\n(.*?)(?=^#|\Z)", page.read_text())
    assert found, f"{page.name} has no section {heading}"
    return found[1]


def manual(program: str) -> Path:
    return ROOT / f"docs/man/{program}.8.md"


# The commands of the documents


class Command(NamedTuple):
    """One command of a document, and the lines it is said to print."""

    text: str
    output: list[str]


def commands(block: str) -> list[Command]:
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            assert found, f"output before the first command: {line}"
            found[-1].output.append(line)
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which the two commands use folders and pins of this test."""
    place = tmp_path_factory.mktemp("docs")
    folders = f"--state {place}/state"
    both = f"{folders} --runtime {place}/run --pins {PINS}"
    reads_records = f'case $1 in records|verify) set -- "$@" {folders};;'
    asks = f'process) set -- "$@" {folders} --pins {PINS};;'
    for program, given in (
        ("ir-agent", f'set -- "$@" {both}'),
        ("ir-check", f'{reads_records} {asks} *) set -- "$@" {both};; esac'),
    ):
        code = f"import sys; from {MANUALS[program].__name__} import main"
        call = f'exec {sys.executable} -c "{code}; sys.exit(main())" "$@"'
        (place / program).write_text(f"#!/bin/sh\n{given}\n{call}\n")
        (place / program).chmod(0o755)
    yield f"{place}:{os.environ['PATH']}"
    if PINS.exists():
        subprocess.run([place / "ir-agent", "unload"], check=True, stdout=-3)


def run(block: list[Command], path: str) -> list[tuple[int, str]]:
    """Run commands in one shell; exit status and output of each."""
    script = "".join(f'{one.text}\nprintf "\\n=%s=\\n" $?\n' for one in block)
    done = subprocess.run(
        ["/bin/bash"],
        input=f"exec 2>&1\n{script}",
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    *parts, rest = re.split(r"\n=(\d+)=\n", done.stdout)
    assert not rest
    return [
        (int(code), said) for said, code in zip(parts[::2], parts[1::2], strict=True)
    ]


def shape(text: str) -> list[str]:
    """Output without what differs from run to run: hashes, numbers, the pins."""
    text = re.sub(r"/sys/fs/bpf/\S+", "PINS", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "HASH", text)
    # one line a sense; on which rung it is on this kernel is for other tests to say
    senses = "|".join(sense.name for sense in SENSES)
    text = re.sub(rf"(?m)^({senses}) {{2,}}.*", r"\1", text)
    text = re.sub(r" {2,}", "  ", text)
    return [re.sub(r"\d+", "N", line).rstrip() for line in text.strip().splitlines()]


BLOCKS = [
    pytest.param(found, id=f"{page.name}-{number}", marks=needs_root)
    for page in CONSOLES
    for number, block in enumerate(blocks(page, "console"))
    if (found := commands(block.replace(".venv/bin/", "")))[0].text[:5] != "make "
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_commands_of_the_documents_do_what_they_are_shown_to_do(
    block: list[Command], path: str
) -> None:
    if any("ps " in one.text for one in block) and not shutil.which("ps"):
        pytest.skip("no ps on this machine")
    for one, (code, said) in zip(block, run(block, path), strict=True):
        if one.text.startswith(("ir-", "make")):
            assert code == 0, f"{one.text}: {said}"
        if one.output:
            assert shape(said) == shape("\n".join(one.output)), one.text


@pytest.mark.parametrize("page", CONSOLES, ids=lambda page: page.name)
def test_make_is_asked_only_for_targets_it_has(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?m)^([a-z]+):", makefile))
    for block in blocks(page, "console"):
        for one in commands(block):
            if one.text.startswith("make "):
                assert set(one.text.split()[1:]) <= targets


@pytest.mark.kernel
@needs_root[1]
def test_the_record_of_the_readme_is_what_the_agent_records(path: str) -> None:
    [block] = blocks(README, "json")
    shown = json.loads(block)
    words = " ".join(f"'{word}'" for word in shown["process"]["args"])
    script = f"ir-agent load; {words}; ir-agent run --for 1; ir-check records --json"
    *_, (_, said) = run([Command(script, [])], path)
    records = [json.loads(line) for line in said.splitlines() if line[:1] == "{"]
    args = shown["process"]["args"]
    [real] = [one for one in records if one.get("process", {}).get("args") == args][-1:]
    assert real["ir"]["argv"] == shown["ir"]["argv"]
    assert real["event"]["action"] == shown["event"]["action"]
    assert real["process"]["executable"] == shown["process"]["executable"]
    assert paths(shown) <= paths(real)


# What the documents list


def options(program: str) -> dict[str, set[str]]:
    """The options of each command of a program."""
    parser: ArgumentParser = MANUALS[program]._parser()
    [of] = [one for one in parser._actions if isinstance(one, _SubParsersAction)]
    return {
        name: {text for one in command._actions for text in one.option_strings}
        for name, command in of.choices.items()
    }


def listed(text: str) -> set[str]:
    """What a definition list of a manual page defines."""
    terms = re.findall(r"(?m)^(\*\*.*)\n:", text.replace("\\", ""))
    return {name for term in terms for name in re.findall(r"\*\*([\w-]+)\*\*", term)}


@pytest.mark.parametrize("program", MANUALS)
def test_a_manual_page_lists_every_command(program: str) -> None:
    assert listed(section(manual(program), "COMMANDS")) == set(options(program))


@pytest.mark.parametrize("program", MANUALS)
def test_a_manual_page_lists_every_option_of_every_command(program: str) -> None:
    have = options(program)
    common = set.intersection(*have.values())
    assert listed(section(manual(program), "Of every command")) == common
    for name, own_and_common in have.items():
        if more := own_and_common - common:
            assert listed(section(manual(program), f"Of {name}")) == more


def codes(program: str) -> set[int]:
    table = section(manual(program), "EXIT STATUS")
    return {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", table)}


def raised() -> set[int]:
    kinds = vars(errors).values()
    return {kind.exit_code for kind in kinds if isinstance(kind, type)}


def test_the_exit_codes_of_ir_agent_are_those_of_its_errors() -> None:
    assert codes("ir-agent") == raised() | {0, 1}


def test_the_exit_codes_of_ir_check_are_known_ones() -> None:
    assert codes("ir-check") == {0, 1, errors.AgentError.exit_code, 3, 64}
    assert codes("ir-check") - {0, 1, 3} <= raised()


@pytest.mark.parametrize("program", MANUALS)
def test_a_manual_page_has_the_sections_of_one(program: str) -> None:
    headings = re.findall(r"(?m)^# (.*)$", manual(program).read_text())
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"]
    wanted += ["EXIT STATUS", "FILES", "CAVEATS"]
    assert [one for one in headings if one in wanted] == wanted


def test_the_configuration_shown_is_the_default_with_every_key(tmp_path: Path) -> None:
    shown = shutil.copy(ROOT / "deploy/agent.yaml", tmp_path / "agent.yaml")
    shown.chmod(0o600)  # a checkout may be writable for a group
    assert read_config(shown) == Config()
    lines = shown.read_text().splitlines()
    explained = [
        line.partition(":")[0]
        for before, line in pairwise(lines)
        if before.startswith("# ") and re.match(r"\w+: ", line)
    ]
    assert explained == list(Config.__struct_fields__)


def test_every_rung_that_may_be_forbidden_is_named_where_it_is_explained() -> None:
    [said] = re.findall(r"(?s)\*\*--forbid\*\*.*?\n\n", plain(manual("ir-agent")))
    assert re.findall(r" \*(\w+)\*", said.partition(":")[2]) == [*RUNGS]
    shown = (ROOT / "deploy/agent.yaml").read_text()
    [said] = re.findall(r"(?s)of any sense: (.*?)\.", shown.replace("\n# ", " "))
    assert said.split(", ") == [*RUNGS]


def test_the_checks_that_there_are_are_named() -> None:
    [said] = re.findall(
        r"Only these checks. There is (.*)\.", plain(manual("ir-check"))
    )
    assert tuple(re.findall(r"\*(\w+)\*", said)) == check._CHECKS


def test_the_keys_of_the_audit_are_documented(tmp_path: Path) -> None:
    place = tmp_path / "none"
    checks = probes.check(place, place), parentage.check(place, place)
    documents = [one.document for one in (*checks, hidden.check(place, None))]
    [said] = re.findall(r"(?s)That of \*\*host\*\* .*?\n\n", plain(manual("ir-check")))
    keys = {key for document in documents for key in document}
    keys |= {key for sense in documents[0]["senses"] for key in sense}
    assert keys <= set(re.findall(r"\*(\w+)\*", said))


def test_the_keys_of_a_process_are_documented_and_no_others(tmp_path: Path) -> None:
    document = process.check(str(os.getpid()), tmp_path, tmp_path).document
    rows = table(manual("ir-check"), "THE DOCUMENT OF PROCESS", first="key")
    keys = [key for row in rows for key in re.findall(r"\*(\w+)\*", row[0])]
    assert sorted(keys) == sorted(document)
    told = " ".join(cell for row in rows for cell in row)
    [person, *_] = document["lineage"]
    inner = {*person, *document["proc"], *document["evidence"]}
    assert inner <= set(re.findall(r"\*(\w+)\*", told))
    every = {key for one in document.values() if isinstance(one, dict) for key in one}
    assert every <= set(re.findall(r"\*(\w+)\*", told))


def plain(page: Path) -> str:
    return page.read_text().replace("\\", "")


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= MOST_README_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_into_this_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    for link in links:
        assert ":" in link or (page.parent / link).exists(), link


def test_every_decision_that_the_code_refers_to_exists() -> None:
    for file in (*ROOT.glob("agent/**/*.py"), *ROOT.glob("probes/*")):
        for name in re.findall(r"docs/[\w/.-]+\.md", file.read_text()):
            assert (ROOT / name).exists(), f"{file}: {name}"


# docs/records.md


def paths(value: Any, at: str = "") -> set[str]:
    """The dotted names of all values; an open key is *, elements of a list are []."""
    if isinstance(value, dict) and value:
        known = at.rpartition(".")[2] not in OPEN
        return {
            path
            for key, inner in value.items()
            for path in paths(inner, f"{at}.{key if known else '*'}".lstrip("."))
        }
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {path for inner in value for path in paths(inner, f"{at}[]")}
    return set() if value in ({}, []) else {at}


@cache
def documented() -> set[str]:
    cell = r"@\w+|[\w*\[\]]+(?:\.[\w*\[\]]+)+"
    return set(re.findall(rf"(?m)^\| `({cell})` \|", RECORDS.read_text()))


@cache
def known() -> set[str]:
    """Names a record may have; a list of plain values is a name without []."""
    return {name.removesuffix("[]") for name in documented()} | {"_c"}


def undocumented(record: Any) -> set[str]:
    """Names that are missing."""
    return paths(record) - known()


@pytest.mark.parametrize("number", range(8))
def test_the_examples_are_records_with_documented_fields(number: int) -> None:
    record = json.loads(blocks(RECORDS, "json")[number])
    assert record["event"]["sequence"]
    assert undocumented(record) == set()


@pytest.mark.kernel
@needs_root[1]
def test_every_field_that_a_real_run_writes_is_documented(path: str) -> None:
    script = (
        "ir-agent run --for 1; cat $(dirname $(command -v ir-agent))/state/records/*l"
    )
    [(_, said)] = run([Command(script, [])], path)
    records = [json.loads(line) for line in said.splitlines() if line[:1] == "{"]
    seen = {record["event"]["action"] for record in records if "event" in record}
    assert {"agent-start", "heartbeat", "agent-stop", "exec"} <= seen
    written = set().union(*map(paths, records))
    assert written - known() == set()
    counters = {name for name in documented() if ".heartbeat." in name}
    # of verdicts only those that somebody has just now
    assert {name for name in counters if not name.endswith("*")} <= written


# docs/architecture.md


def table(page: Path, heading: str, *, first: str) -> list[list[str]]:
    """The rows of the table of a section that begins with this cell."""
    lines = section(page, heading).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[at + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_ladder_is_drawn_as_it_is() -> None:
    drawn = {
        sense: words(rungs)
        for names, rungs in table(ARCHITECTURE, "The ladder", first="sense")
        for sense in words(names)
    }
    assert drawn == {one.name: [rung.name for rung in one.rungs] for one in SENSES}


def test_every_module_of_the_sensor_has_its_line() -> None:
    listed_ = [
        name
        for cells in table(ARCHITECTURE, "The ladder", first="module of `sensor/`")
        for name in words(cells[0])
    ]
    real = {one.name for one in ROOT.glob("agent/sensor/*.py")} - {"__init__.py"}
    assert set(listed_) == real
    assert len(listed_) == len(real)


def test_the_bounds_of_the_guard_are_those_of_its_maps() -> None:
    text = source("guard.h")
    for name in ("guards", "permits"):
        [size] = re.findall(rf"BPF_HASH\({name}, .*, (\d+)\)", text)
        assert f"{int(size):,}" in ARCHITECTURE.read_text()


def test_the_verifier_of_the_page_agrees_with_ours(tmp_path: Path) -> None:
    [code] = blocks(RECORDS, "python")
    scope: dict[str, Any] = {}
    exec(compile(code, str(RECORDS), "exec"), scope)
    folder = tmp_path / "records"
    bodies = [msgspec.json.encode({"n": n}) for n in range(100)]
    with SegmentWriter.open(folder, dict, 1000) as log:
        for body in bodies:
            log.append([body])
    names = sorted(folder.glob("*.jsonl"))
    assert len(names) > 1
    assert scope["first_broken_line"](folder) is None
    data = bytearray(names[1].read_bytes())
    at = data.index(b"\n") + 6
    data[at] ^= 1
    names[1].write_bytes(data)
    assert scope["first_broken_line"](folder) == (names[1].name, 2)
