"""The making of fixtures: what is cut away changes nothing of what stays."""

import gzip
import os
import shutil
import struct

import pytest

from agent.sensor.btf import (
    CONST,
    ENUM,
    ENUM64,
    FUNC,
    STRUCT,
    TYPEDEF,
    VMLINUX,
    Btf,
    Member,
)
from tests.arm64.btf_image import FLOAT, FWD, Image
from tests.arm64.kernel_package import btf_of, unpacked
from tests.arm64.make_fixture import VARIANTS, difference, prune
from tests.btf_blob import UNION, Blob, a_kernel

KNOWN = frozenset({"outer", "inner"})


def part_of(blob: Blob, *roots: int) -> Btf:
    image = Image(blob.bytes())
    return Btf(image.part(image.needed(roots)))


def number_of_types(btf: Btf) -> int:
    return len(btf._offsets) - 1


def test_what_lies_inside_is_whole_and_what_is_pointed_at_has_name_and_size() -> None:
    blob = Blob()
    blob.int_("unused", 1)
    word = blob.int_("unsigned int", 4)
    far = blob.compound("far", 640, [("x", word, 0)])
    inner = blob.compound("inner", 8, [("a", word, 0), ("b", word, 32)])
    alias = blob.typedef("inner_t", blob.add(CONST, "", inner))
    fields = [("in", alias, 0), ("out", blob.pointer(far), 64)]
    outer = blob.compound("outer", 16, fields)
    part = part_of(blob, outer)
    assert part.struct("outer")[1].keys() == {"in", "out"}
    assert part.struct("inner")[1].keys() == {"a", "b"}
    assert part.struct("far") == (640, {})
    _, members = part.struct("outer")
    assert part.declare(members["in"].type_id, KNOWN) == ("struct inner %s", 8)
    assert part.declare(members["out"].type_id, KNOWN) == ("struct far *%s", 8)
    assert number_of_types(part) == number_of_types(Btf(blob.bytes())) - 1


def test_what_is_pointed_at_and_lies_inside_too_is_whole() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    inner = blob.compound("inner", 4, [("a", word, 0)])
    for order in ([inner, blob.pointer(inner)], [blob.pointer(inner), inner]):
        fields = [("x", order[0], 0), ("y", order[1], 64)]
        part = part_of(blob, blob.compound("outer", 16, fields))
        assert part.struct("inner")[1].keys() == {"a"}


def test_a_struct_may_point_at_itself() -> None:
    blob = Blob()
    pointer = blob.pointer(blob.count + 2)
    outer = blob.compound("outer", 8, [("next", pointer, 0)])
    part = part_of(blob, outer)
    assert part.declare(part.struct("outer")[1]["next"].type_id, KNOWN) == (
        "struct outer *%s",
        8,
    )


def test_members_of_nameless_types_and_bit_fields_stay_where_they_are() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    union = blob.compound("", 4, [("a", word, 0), ("b", word, 0)], kind=UNION)
    fields = [("bits", word, 3 << 24 | 5), ("", union, 32), ("c", word, 64)]
    outer = blob.compound("outer", 12, fields, bit_fields=True)
    part = part_of(blob, outer)
    places = {n: (m.offset, m.bits) for n, m in part.struct("outer")[1].items()}
    assert places == {"bits": (0, 3), "a": (4, 0), "b": (4, 0), "c": (8, 0)}


def test_functions_and_tracepoints_keep_their_parameters() -> None:
    blob = Blob()
    blob.int_("int", 4)
    function = blob.function("call", 2)
    probe = blob.typedef("btf_trace_x", blob.pointer(blob.prototype(3)))
    part = part_of(blob, function, probe)
    assert part.find(FUNC, "call")
    assert part.find(TYPEDEF, "btf_trace_x")
    assert part.parameters("btf_trace_x") == 3


def test_lists_of_names_and_kinds_without_members_survive() -> None:
    blob = Blob()
    first = blob.add(ENUM, "few", 4, struct.pack("<II", blob._name("A"), 1), 1)
    second = blob.add(ENUM64, "many", 8, struct.pack("<III", blob._name("B"), 2, 0), 1)
    forward = blob.pointer(blob.add(FWD, "later", 0))
    number = blob.add(FLOAT, "double", 8)
    kinds = [first, second, forward, number]
    fields = [(f"m{at}", one, 64 * at) for at, one in enumerate(kinds)]
    whole, part = Btf(blob.bytes()), part_of(blob, blob.compound("outer", 32, fields))
    assert number_of_types(part) == number_of_types(whole) + 1
    for name, member in part.struct("outer")[1].items():
        assert part.declare(member.type_id, KNOWN)[1] == 8 - 4 * (name == "m0")


def test_of_two_structs_of_one_name_the_first_is_kept() -> None:
    blob = Blob()
    word = blob.int_("unsigned int", 4)
    blob.compound("twice", 4, [("first", word, 0)])
    blob.compound("twice", 4, [("second", word, 0)])
    image = Image(blob.bytes())
    number = image.named()[STRUCT, "twice"]
    part = Btf(image.part(image.needed([number])))
    assert part.struct("twice")[1] == {"first": Member(0, 1, 0)}


def test_a_difference_is_told() -> None:
    whole = Btf(a_kernel().bytes())
    structs = ["upid", "pid"]
    assert difference(whole, whole, structs, "x86_64") is None
    other = Btf(a_kernel(without={"upid": ["ns"]}).bytes())
    assert difference(whole, other, structs, "x86_64") == "the size of struct upid"
    other = Btf(a_kernel(renamed={"nr": "number"}).bytes())
    assert difference(whole, other, structs, "x86_64") == "the members of struct upid"
    other = Btf(a_kernel(exit_parameters=3).bytes())
    told = difference(whole, other, structs, "x86_64")
    assert told == f"the header of {VARIANTS[0].name}"


def test_a_part_of_the_running_kernel_agrees_with_the_whole() -> None:
    if not VMLINUX.exists():
        pytest.skip("this kernel was built without BTF")
    raw = VMLINUX.read_bytes()
    part, structs = prune(raw)
    assert len(part) < len(raw) / 20
    assert len(structs) > 100
    machine = os.uname().machine
    assert difference(Btf(raw), Btf(part), structs, machine) is None


def kernel_with(*images: bytes) -> bytes:
    """A boot image with these, and bytes that only begin like one."""
    decoy = b"\x9f\xeb\x01\x00" + struct.pack("<5I", 24, 0, 1 << 30, 1 << 30, 9)
    return b"MZ@\xfa" + b"\xff".join([decoy, *images, decoy]) + b"\x9f\xeb\x01\x00"


def test_type_information_is_found_in_a_kernel() -> None:
    large, small = a_kernel().bytes(), Blob().bytes()
    assert btf_of(kernel_with(small, large, small)) == large
    with pytest.raises(LookupError, match="no type information"):
        btf_of(kernel_with())


def efi(payload: bytes) -> bytes:
    """A kernel that unpacks itself."""
    head = b"MZ\0\0zimg" + struct.pack("<II", 64, len(payload))
    return head.ljust(64, b"\0") + payload + b"signature"


def test_a_compressed_kernel_is_unpacked() -> None:
    kernel = kernel_with(a_kernel().bytes())
    packed = gzip.compress(kernel)
    assert unpacked(kernel) == unpacked(packed) == unpacked(efi(packed)) == kernel


def test_a_kernel_compressed_by_zstd_is_unpacked() -> None:
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    # a frame that holds its content as it is: a header and one raw block
    content = b"kernel"
    head = b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)])
    block = (len(content) << 3 | 1).to_bytes(3, "little")
    assert unpacked(efi(head + block + content)) == content
