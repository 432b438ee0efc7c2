"""Type information: read exactly, or refused with the name of what is missing."""

from pathlib import Path

import pytest

from agent.errors import LoadError
from agent.sensor.btf import (
    ARRAY,
    CONST,
    FORWARD,
    FUNC,
    STRUCT,
    TYPEDEF,
    VMLINUX,
    VOLATILE,
    Btf,
    Member,
)
from tests.btf_blob import SIGNED, UNION, Blob

KNOWN = frozenset({"inner"})


@pytest.fixture(scope="module")
def kernel() -> Btf:
    if not VMLINUX.exists():
        pytest.skip("this kernel was built without BTF")
    return Btf.of_kernel()


def test_the_running_kernel_says_what_a_task_is(kernel: Btf) -> None:
    size, members = kernel.struct("task_struct")
    assert members["pid"].offset + 4 == members["tgid"].offset < size
    comm = members["comm"]
    assert kernel.declare(comm.type_id, frozenset())[1] == 16
    assert kernel.array_length(comm.type_id) == 16


def test_members_of_anonymous_structs_belong_to_the_outer_one(kernel: Btf) -> None:
    _, members = kernel.struct("mm_struct")  # all of it is in an anonymous struct
    assert members["arg_end"].offset == members["arg_start"].offset + 8


def test_a_struct_that_does_not_exist_is_named(kernel: Btf) -> None:
    with pytest.raises(KeyError, match="struct no_such_thing"):
        kernel.struct("no_such_thing")
    with pytest.raises(KeyError, match="typedef no_such_thing"):
        kernel.parameters("no_such_thing")
    assert kernel.find(FUNC, "no_such_thing") is None


def test_a_kernel_without_type_information_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="offers no BTF"):
        Btf.of_kernel(tmp_path / "vmlinux")


@pytest.mark.parametrize("raw", [b"", b"\x9f\xeb\x01", b"\xeb\x9f" + bytes(30)])
def test_what_is_no_type_information_is_refused(raw: bytes) -> None:
    with pytest.raises(LoadError, match="not little-endian BTF"):
        Btf(raw)


def test_offsets_through_nested_anonymous_types_add_up() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    union = blob.compound("", 4, [("a", word, 0), ("b", word, 0)], kind=UNION)
    inner = blob.compound("", 12, [("x", word, 32), ("", union, 64)])
    blob.compound("outer", 20, [("first", word, 0), ("", inner, 64)])
    size, members = Btf(blob.bytes()).struct("outer")
    offsets = {name: member.offset for name, member in members.items()}
    assert size == 20
    assert offsets == {"first": 0, "x": 12, "a": 16, "b": 16}


def test_a_bit_field_is_told_by_its_width() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    fields = [("plain", word, 0), ("bits", word, 3 << 24 | 40)]
    blob.compound("s", 8, fields, bit_fields=True)
    _, members = Btf(blob.bytes()).struct("s")
    assert members == {"plain": Member(0, word, 0), "bits": Member(5, word, 3)}


def test_of_two_members_of_one_name_the_first_counts() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    inner = blob.compound("", 4, [("twice", word, 0)])
    blob.compound("s", 8, [("twice", word, 0), ("", inner, 32)])
    assert Btf(blob.bytes()).struct("s")[1]["twice"].offset == 0


def test_a_name_is_found_whole_and_of_its_own_kind() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    blob.compound("pid_namespace", 4, [("x", word, 0)])
    pid = blob.compound("pid", 4, [("x", word, 0)])
    function = blob.function("pid", 1)
    btf = Btf(blob.bytes())
    assert btf.find(STRUCT, "pid") == pid
    assert btf.find(FUNC, "pid") == function
    assert btf.find(TYPEDEF, "pid") is None


def test_the_parameters_of_a_tracepoint_are_counted() -> None:
    blob = Blob()
    blob.int_("int", 4)
    blob.typedef("btf_trace_x", blob.pointer(blob.prototype(3)))
    assert Btf(blob.bytes()).parameters("btf_trace_x") == 3


def declared(blob: Blob, type_id: int) -> tuple[str, int]:
    text, size = Btf(blob.bytes()).declare(type_id, KNOWN)
    return text % "m", size


def test_numbers_keep_their_size_and_sign() -> None:
    blob = Blob()
    unsigned, signed = blob.int_("unsigned char", 1), blob.int_("long", 8, SIGNED)
    assert declared(blob, unsigned) == ("u8 m", 1)
    assert declared(blob, signed) == ("s64 m", 8)
    assert declared(blob, blob.add(6, "e", 4)) == ("u32 m", 4)


def test_qualifiers_and_typedefs_are_seen_through() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    chain = blob.typedef("t", blob.add(CONST, "", blob.add(VOLATILE, "", word)))
    assert declared(blob, chain) == ("u32 m", 4)


def test_a_pointer_is_typed_where_its_struct_has_a_name() -> None:
    blob = Blob()
    named = blob.compound("file", 8, [])
    nameless = blob.compound("", 8, [])
    assert declared(blob, blob.pointer(named)) == ("struct file *m", 8)
    assert declared(blob, blob.pointer(nameless)) == ("void *m", 8)
    assert declared(blob, blob.pointer(0)) == ("void *m", 8)


def test_an_embedded_struct_is_itself_only_where_it_is_laid_out_too() -> None:
    blob = Blob()
    inner, other = blob.compound("inner", 24, []), blob.compound("other", 40, [])
    assert declared(blob, inner) == ("struct inner m", 24)
    assert declared(blob, other) == ("char m[40]", 40)


def test_an_array_of_arrays_has_all_its_dimensions() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    array = blob.array(blob.array(word, 3), 2)
    assert Btf(blob.bytes()).type(array).kind == ARRAY
    assert declared(blob, array) == ("u32 m[2][3]", 24)


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        (4, [("val", 4, 0)], ("u32 m", 4)),
        (8, [("val", 8, 0)], ("u64 m", 8)),
        (8, [("cap", 4, 0), ("more", 4, 32)], ("u32 m[2]", 8)),
        (12, [("a", 4, 0), ("b", 4, 32), ("c", 4, 64)], ("char m[12]", 12)),
    ],
)
def test_a_small_struct_is_a_number_where_it_is_aligned_like_one(
    size: int, fields: list[tuple[str, int, int]], expected: tuple[str, int]
) -> None:
    """A number of eight bytes in the place of two of four may get padding before it."""
    blob = Blob()
    words = {4: blob.int_("unsigned int", 4), 8: blob.int_("unsigned long", 8)}
    small = blob.compound("small", size, [(n, words[w], at) for n, w, at in fields])
    assert declared(blob, small) == expected


def test_how_a_small_struct_is_aligned_is_seen_through_arrays_and_structs() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    pair = blob.compound("kernel_cap_struct", 8, [("cap", blob.array(word, 2), 0)])
    assert declared(blob, blob.typedef("kernel_cap_t", pair)) == ("u32 m[2]", 8)
    assert declared(blob, blob.compound("deeper", 8, [("in", pair, 0)])) == (
        "u32 m[2]",
        8,
    )
    pointer = blob.compound("one_pointer", 8, [("to", blob.pointer(pair), 0)])
    assert declared(blob, pointer) == ("u64 m", 8)


def test_whether_a_function_hides_its_argument() -> None:
    blob = Blob()
    word = blob.int_("int", 4)
    known = blob.pointer(blob.compound("pt_regs", 8, [("x", word, 0)]))
    hidden = blob.pointer(blob.add(CONST, "", blob.add(FORWARD, "pt_regs", 0)))
    blob.function_of("seen", known)
    blob.function_of("hides", hidden)
    blob.function_of("second", word, hidden)
    blob.function_of("number", word)
    blob.function_of("anything", blob.pointer(0))
    blob.function_of("nothing")
    btf = Btf(blob.bytes())
    names = ("seen", "hides", "second", "number", "anything", "nothing", "absent")
    assert [name for name in names if btf.hides_argument(name)] == ["hides"]
