"""Count instructions, registers and memory accesses in NVIDIA's SASS and AMD's amdgcn.

A *global access* is an instruction that loads from, stores to or updates global memory through an
address, not one that reads kernel arguments or other constants (LDC, s_load). *Spilled bytes* are
the bytes that instructions load from and store to a thread's private memory (LDL and STL,
scratch_load and scratch_store). Each instruction counts once, so a spill inside a loop is not
multiplied. An array that the compiler keeps in private memory counts too, such as the one in
libdevice's argument reduction of sin and cos.
"""

import hashlib
import itertools
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from ..system.untrusted import Text
from . import same_modules

WIDE_BYTES = 16  # the widest access that all GPUs have, and that a copy uses


@dataclass(frozen=True)
class Code:
    """Counts of the machine code of one kernel.

    ``registers`` (32 bit) and ``stack_bytes`` are per thread, the maximum over its functions; the
    others are sums over all functions. ``digest`` is the SHA-256 of the instructions alone: no
    names, paths or line numbers.
    """

    registers: int
    stack_bytes: int
    spilled_bytes: int
    instructions: int
    global_accesses: int
    narrow_accesses: int
    digest: str


# --- NVIDIA -------------------------------------------------------------------------------------


class Cubin(NamedTuple):
    """An NVIDIA kernel that is not disassembled yet.

    processor: as the disassembler calls it, e.g. "SM90". usage: what ``cuobjdump -res-usage`` says.
    functions: the instructions of each, in hexadecimal digits.
    """

    processor: str
    usage: Annotated[str, Text(most=1_000_000)]
    functions: tuple[Annotated[str, Text("[0-9a-f]*", 50_000_000)], ...]


def cubin(binary: bytes, processor: str) -> Cubin:
    """The instructions of an ELF file, and what they use, which is kept in Triton's cache.

    Raises RuntimeError if NVIDIA's tool fails; its message is in the error.
    """
    import triton  # not at the top: asv imports this module where seconds of start-up count

    kept = same_modules.kept("usage", hashlib.sha256(binary).hexdigest())
    path = kept.get_file("usage")
    if path is None:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            usage = _output_of(triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        path = kept.put(usage, "usage", binary=False)
    usage = Path(path).read_text(encoding="utf-8")
    return Cubin(processor, usage, tuple(code.hex() for code in _functions(binary)))


def _functions(elf: bytes) -> Iterator[bytes]:
    """The contents of the sections of an ELF file that hold instructions."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + n * size) for n in range(count)]
    names = elf[headers[names_at][4] :]
    for name_at, _, _, _, offset, length in headers:
        if names[name_at:].startswith(b".text."):
            yield elf[offset : offset + length]


def read_cubins(cubins: Iterable[Cubin]) -> dict[Cubin, Code]:
    """Count kernels, with one run of the disassembler for each processor.

    It takes 0.4 seconds to start, as long as a kernel takes to compile. Raises RuntimeError, with
    its message, if it fails, and ValueError if the parser does not know its text.
    """
    import triton

    codes: dict[Cubin, Code] = {}
    for processor, group in itertools.groupby(sorted(set(cubins)), key=lambda one: one.processor):
        kernels = list(group)
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(bytes.fromhex("".join("".join(kernel.functions) for kernel in kernels)))
            file.flush()
            tool = triton.knobs.nvidia.nvdisasm.path
            # -ndf skips an analysis of branches that takes longer than all the rest.
            text = _output_of(tool, "-b", processor, "-ndf", "-hex", file.name)
        instructions = iter(_sass_instructions(text))
        for kernel in kernels:
            lengths = [len(function) // 32 for function in kernel.functions]  # 16 bytes each
            functions = [list(itertools.islice(instructions, length)) for length in lengths]
            codes[kernel] = _count_sass(kernel.usage, functions, text)
        if left := len(list(instructions)):
            raise ValueError(f"{left} instructions too many: {text[:300]!r}")
    return codes


def _output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise RuntimeError(f"{command} failed ({done.returncode}): {done.stderr or done.stdout}")
    return done.stdout


_Instruction = tuple[str, str, str]  # of SASS: the name, and the two words of its encoding
_SASS_RESOURCES = re.compile(r"\bREG:(\d+) STACK:(\d+)")
_SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)[^;]*;")
_SASS_ENCODING = re.compile(r"/\* (0x[0-9a-f]{16}) \*/")
_SASS_BULK = frozenset(("UTMALDG", "UTMASTG", "UBLKCP"))  # many times 16 bytes; no width suffix
_SASS_GLOBAL = _SASS_BULK.union(
    ("LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG")
)
_SASS_PRIVATE = frozenset(("LDL", "STL"))
_SASS_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


def _count_sass(usage: str, functions: Iterable[list[_Instruction]], text: str) -> Code:
    resources = [tuple(map(int, match)) for match in _SASS_RESOURCES.findall(usage)]
    code = list(itertools.chain.from_iterable(map(_without_padding, functions)))
    if not resources or not code:
        raise ValueError(f"the disassembler's output is not known: {usage[:300]!r} {text[:300]!r}")
    return _count(
        [name for name, *_ in code],
        (word for _, *words in code for word in words),
        registers=max(registers for registers, _ in resources),
        stack_bytes=max(stack for _, stack in resources),
        global_bytes=_sass_global_bytes,
        private_bytes=_sass_private_bytes,
    )


def _sass_instructions(text: str) -> list[_Instruction]:
    names, words = _SASS_LINE.findall(text), _SASS_ENCODING.findall(text)
    if len(words) != 2 * len(names):
        raise ValueError(
            f"{len(words)} words of machine code for {len(names)} instructions, "
            "expected two for each"
        )
    return list(zip(names, words[::2], words[1::2], strict=True))


def _without_padding(function: list[_Instruction]) -> list[_Instruction]:
    """Without the NOPs at the end of a function; the branch to itself before them is counted."""
    while function and function[-1][0] == "NOP":
        function.pop()
    return function


def _sass_global_bytes(name: str) -> int:
    operation, *suffixes = name.split(".")
    if operation not in _SASS_GLOBAL:
        return 0
    return WIDE_BYTES if operation in _SASS_BULK else _sass_width(suffixes)


def _sass_private_bytes(name: str) -> int:
    operation, *suffixes = name.split(".")
    return _sass_width(suffixes) if operation in _SASS_PRIVATE else 0


def _sass_width(suffixes: list[str]) -> int:
    return next((_SASS_BYTES[suffix] for suffix in suffixes if suffix in _SASS_BYTES), 4)


# --- AMD ----------------------------------------------------------------------------------------

_AMD_FUNCTION = re.compile(r"^\s*\.type\s+\S+,@function$(.*?)^\.Lfunc_end\d+:", re.M | re.S)
_AMD_COMMENT = re.compile(r"\s*(;|//).*")
_AMD_INSTRUCTION = re.compile(r"\s+([a-z]\w*)")
_AMD_GLOBAL = re.compile(r"(?:global|buffer|flat)_(?:load|store|atomic)_")
_AMD_PRIVATE = re.compile(r"scratch_(?:load|store)_")
_AMD_WIDTH = re.compile(r"_[us]?(byte|short|dword(?:x[234])?)(?:_|$)")
_AMD_BYTES = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


def parse_amdgcn(text: str) -> Code:
    """Count the assembly text that Triton's AMD backend writes (mnemonics of gfx9).

    Raises ValueError if there are no instructions, no register counts, or an access of unknown
    width.
    """
    code = "\n".join(_AMD_FUNCTION.findall(text))
    lines = [_AMD_COMMENT.sub("", line) for line in code.splitlines()]
    instructions = [line.strip() for line in lines if _AMD_INSTRUCTION.match(line)]
    if not instructions:
        raise ValueError(f"no instructions in the assembly text: {text[:500]!r}")
    return _count(
        [instruction.split()[0] for instruction in instructions],
        # Labels too: they are the targets of branches. File names and lines are directives.
        (line.strip() for line in lines if _AMD_INSTRUCTION.match(line) or line.startswith(".LBB")),
        registers=_amd_metadata(text, "vgpr_count"),
        stack_bytes=_amd_metadata(text, "private_segment_fixed_size"),
        global_bytes=lambda name: _amd_width(name) if _AMD_GLOBAL.match(name) else 0,
        private_bytes=lambda name: _amd_width(name) if _AMD_PRIVATE.match(name) else 0,
    )


def _amd_metadata(text: str, name: str) -> int:
    values = re.findall(rf"^\s+(?:- )?\.{name}:\s+(\d+)$", text, re.M)
    if not values:
        raise ValueError(f"no .{name} in the metadata of the assembly text")
    return max(map(int, values))


def _amd_width(name: str) -> int:
    if "_atomic_" in name:
        return 8  # at most, and named by operation instead of width
    width = _AMD_WIDTH.search(name)
    if not width:
        raise ValueError(f"memory access of unknown width: {name}")
    return _AMD_BYTES[width[1]]


# --- both ---------------------------------------------------------------------------------------


def _count(
    names: list[str], code: Iterable[str], registers, stack_bytes, global_bytes, private_bytes
) -> Code:
    widths = [width for width in map(global_bytes, names) if width]
    return Code(
        registers=registers,
        stack_bytes=stack_bytes,
        spilled_bytes=sum(map(private_bytes, names)),
        instructions=len(names),
        global_accesses=len(widths),
        narrow_accesses=sum(width < WIDE_BYTES for width in widths),
        digest=hashlib.sha256("\n".join(code).encode()).hexdigest(),
    )
