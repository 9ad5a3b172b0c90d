"""Reading machine code: small texts in the formats of the disassemblers, whose counts are known."""

import hashlib
import itertools
import struct
from pathlib import Path

import pytest

from benchmarks._engine.machine_code import disassembly

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function kernel:
  REG:32 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:600 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function helper:
  REG:40 STACK:8 SHARED:0 LOCAL:0
"""
PAD = ["BRA `(.L_x_0)", "NOP", "NOP"]


def sass(*instructions: str) -> str:
    """What nvdisasm writes; an instruction's encoding depends on its text alone."""
    lines = []
    for index, instruction in enumerate(instructions):
        words = hashlib.sha256(instruction.encode()).hexdigest()
        lines.append(f"        /*{16 * index:04x}*/       {instruction} ;  /* 0x{words[:16]} */")
        lines.append(f"                                              /* 0x{words[16:32]} */")
    return "\n".join(lines) + "\n"


def counted(*functions: list[str], usage: str = USAGE, text: str | None = None):
    """Of a kernel of these functions; ``text``: what the disassembler writes instead of them."""
    kernel = disassembly.Cubin("SM90", usage, tuple("69" * 16 * len(each) for each in functions))
    written = sass(*itertools.chain(*functions)) if text is None else text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disassembly, "_output_of", lambda *_: written)
        return disassembly.read_cubins([kernel])[kernel]


def test_sass_accesses():
    counts = counted(
        [
            "LDC.64 R2, c[0x0][0x210]",
            "@!P0 LDG.E.128 R4, desc[UR4][R2.64]",
            "@P1 LDG.E.U16 R8, desc[UR4][R2.64+0x80]",
            "LDG.E.ENL2.256 R12, R16, desc[UR4][R2.64]",
            "LDG.E.CONSTANT.SYS R9, [R2]",
            "NOP",
            "LDS.128 R20, [R30]",
            "@!UPT STG.E.EF.64 desc[UR4][R2.64], R4",
            "STG.E.128 desc[UR4][R2.64], R4",
            "UTMALDG.2D [UR8], [UR4]",
            "LDGDEPBAR",
            "EXIT",
            *PAD,
        ]
    )
    assert counts.instructions == 13, "the padding is not counted, a NOP in the middle is"
    assert (counts.global_accesses, counts.narrow_accesses) == (7, 3)
    assert counts.spilled_bytes == 0


def test_sass_spills_and_two_functions():
    spilling = [
        "STL [R1+0x18], R4",
        "@P0 STL.128 [R1], R8",
        "LDL.64 R8, [R1]",
        "LDL.LU R8, [R1]",
        "LDL.U8 R8, [R1]",
        "STG.E [R2], R8",
    ]
    counts = counted(spilling, ["LDG.E R1, [R2]", *PAD])
    assert counts.spilled_bytes == 4 + 16 + 8 + 4 + 1
    assert (counts.registers, counts.stack_bytes) == (40, 16)
    assert (counts.instructions, counts.global_accesses) == (8, 2)


def test_sass_digest_is_of_the_code_alone():
    body = ["LDG.E R1, [R2]", "STG.E [R2], R1", *PAD]
    digest = counted(body).digest
    assert counted([*body, "NOP"]).digest == digest
    assert counted(["LDG.E R3, [R2]", *body[1:]]).digest != digest
    assert counted([body[1], body[0], *PAD]).digest != digest


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        ([], {}, "not known"),
        ([["EXIT"]], {"usage": ""}, "not known"),
        (
            [["EXIT"]],
            {"text": sass("EXIT").replace("/* 0x", "/* ")},
            "0 words of machine code for 1",
        ),
        ([["EXIT"]], {"text": sass("EXIT", "EXIT")}, "1 instructions too many"),
    ],
)
def test_unknown_sass_is_refused(functions, options, message):
    with pytest.raises(ValueError, match=message):
        counted(*functions, **options)


def amdgcn(*body: str, name: str = "kernel") -> str:
    lines = "\n".join(line if line.startswith(".LBB") else f"\t{line}" for line in body)
    return f"""\t.text
\t.globl\t{name}                     ; -- Begin function {name}
\t.type\t{name},@function
{name}:                            ; @{name}
; %bb.0:
{lines}
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size 7
\t.end_amdhsa_kernel
\t.text
.Lfunc_end0:
\t.size\t{name}, .Lfunc_end0-{name}
\t.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count:     0
    .private_segment_fixed_size: 24
    .sgpr_count:     30
    .vgpr_count:     31
    .vgpr_spill_count: 5
\t.end_amdgpu_metadata
"""


def test_amdgcn_counts():
    code = amdgcn(
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "global_load_dwordx4 v[0:3], v4, s[4:5]  ; global_load_dword in a comment",
        ".loc\t1 8 0 ; kernels.py:8:0",
        "buffer_load_dwordx4 v[0:3], v4, s[4:7], 0 offen nt",
        "buffer_load_short_d16_hi v0, v4, s[4:7], 0 offen",
        ".LBB0_1:",
        "global_load_ubyte v0, v4, s[4:5]",
        "flat_load_dwordx3 v[0:2], v[4:5]",
        "global_atomic_add_f32 v4, v0, s[4:5]",
        "buffer_wbl2 sc1",
        "s_waitcnt vmcnt(0)",
        "global_store_dwordx2 v4, v[0:1], s[4:5]",
        "scratch_store_dwordx3 off, v[0:2], s32",
        "scratch_load_dword v0, off, s32 offset:8",
        "scratch_load_sbyte v0, off, s32",
        "scratch_store_short off, v0, s32",
        "s_endpgm",
    )
    counts = disassembly.parse_amdgcn(code)
    assert counts.instructions == 15
    assert (counts.global_accesses, counts.narrow_accesses) == (7, 5)
    assert (counts.registers, counts.stack_bytes) == (31, 24)
    assert counts.spilled_bytes == 12 + 4 + 1 + 2


def test_amdgcn_digest_is_of_the_code_alone():
    body = ["s_cbranch_scc0 .LBB0_1", "v_mov_b32_e32 v0, v1", ".LBB0_1:", "s_endpgm"]
    digest = disassembly.parse_amdgcn(amdgcn(*body)).digest
    noted = [".loc\t1 9 0", f"{body[0]}  ; kernels.py:9:0", *body[1:]]
    assert disassembly.parse_amdgcn(amdgcn(*noted, name="renamed")).digest == digest
    assert disassembly.parse_amdgcn(amdgcn(body[0], body[2], body[1], body[3])).digest != digest
    assert (
        disassembly.parse_amdgcn(amdgcn(body[0], "v_mov_b32_e32 v0, v2", *body[2:])).digest
        != digest
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (amdgcn("buffer_load_format_x v0, v4, s[4:7], 0"), "unknown width: buffer_load_format_x"),
        (amdgcn(), "no instructions"),
        (amdgcn("s_endpgm").replace(".vgpr_count", ".count"), "no .vgpr_count"),
    ],
)
def test_unknown_amdgcn_is_refused(code, message):
    with pytest.raises(ValueError, match=message):
        disassembly.parse_amdgcn(code)


# --- many kernels in one run of the disassembler --------------------------------------------------


def elf(*sections):
    """An ELF file of sections (name, content), as far as it is read."""
    names = b"\0".join([b"", *[name.encode() for name, _ in sections], b".shstrtab", b""])
    parts, headers, at = [], [], 64
    for name, content in [*sections, (".shstrtab", names)]:
        headers.append((names.index(name.encode()), 1, 0, 0, at, len(content)))
        parts.append(content)
        at += len(content)
    table = b"".join(struct.pack("<IIQQQQIIQQ", *header, 0, 0, 0, 0) for header in headers)
    start = struct.pack("<Q", at)
    head = b"\x7fELF".ljust(0x28, b"\0") + start + b"\0" * 10
    return head + struct.pack("<HHH", 64, len(headers), len(headers) - 1) + b"".join(parts) + table


def test_functions_of_an_elf_file():
    file = elf((".nv.info", b"x" * 5), (".text.one", b"1" * 32), (".text.two", b"2" * 16))
    assert list(disassembly._functions(file)) == [b"1" * 32, b"2" * 16]


def test_kernels_are_counted_apart(monkeypatch):
    """The disassembler is asked once a processor, for the instructions of all in a row."""
    asked = []
    body = ["LDG.E.128 R4, [R2]", "STG.E R5, [R2]", *PAD]

    def output_of(tool, option, processor, *others):
        asked.append(processor)
        count = Path(others[-1]).stat().st_size // 16 // len(body)
        return sass(*body * count)

    monkeypatch.setattr(disassembly, "_output_of", output_of)
    function = "69" * 16 * len(body)
    one = disassembly.Cubin("SM90", USAGE, (function,))
    two = disassembly.Cubin("SM90", USAGE, (function, function))
    other = disassembly.Cubin("SM80", USAGE, (function,))
    counts = disassembly.read_cubins([one, two, other, one])
    assert asked == ["SM80", "SM90"]
    assert counts[one] == counts[other] == counted(body)
    assert counts[two].instructions == 2 * counts[one].instructions
    assert disassembly.read_cubins([]) == {}
