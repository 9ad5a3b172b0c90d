"""Time how a process starts: the import, the first call with compilation, and without.

With everything compiled, most of it is Triton's own: before the first kernel of a process, Triton
reads and hashes its whole library (460 MB in 3.7). What the package adds to that is clocked after
another kernel has been launched.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .._subjects.rope import package_calls, subjects
from .._subjects.rope.forms import FORWARD
from .._system import process, progress
from . import cell_outcomes, inputs

PROCESSES = 3


def samples() -> list[tuple[float, float, float, float]]:
    """Seconds of the import, and of the first call: with Triton's cache empty, and twice filled.

    The second time filled, another kernel was launched before.

    ``PROCESSES`` of each, every one of a fresh process.
    """
    found = []
    for _ in range(PROCESSES):
        imported = process.call(import_package)
        with tempfile.TemporaryDirectory() as cache:
            compiling, warm, own = (
                seconds(None, Path(cache), after_another=another)
                for another in (False, False, True)
            )
        found.append((imported, compiling, warm, own))
        said = f"compiled in {compiling:.2f} s, warm {warm:.2f} s, {own:.2f} s after another kernel"
        said = f"imported in {imported:.2f} s, {said}"
        progress.report(f"host.FirstCall: {said}")
    return found


def import_package(root: str | None = None) -> float:
    """Seconds that importing the package takes in a process that has torch and not the package.

    Raises
    ------
    RuntimeError
        If the package comes from elsewhere than the directory ``root``.
    """
    import torch  # noqa: F401, a user of the package has it

    start = time.perf_counter()
    import rope_triton

    taken = time.perf_counter() - start
    found = Path(rope_triton.__file__).resolve().parents[1]
    if root is not None and found != Path(root).resolve():
        raise RuntimeError(f"rope_triton should have come from {root}, it came from {found}")
    return taken


def seconds(root: Path | None, cache_dir: Path, *, after_another: bool = False) -> float:
    """Seconds that the first forward call takes in a fresh process, up to its result.

    Torch and the package are imported and the GPU is in use before the clock starts. With an empty
    ``cache_dir`` that is the compilation of everything, the second time a warm start.

    Parameters
    ----------
    root : Path or None
        Directory that holds the package, e.g. another checkout; None: the package that this process
        would import.
    cache_dir : Path
        Triton's cache.
    after_another : bool
        Whether another Triton kernel is launched before the clock starts.

    Raises
    ------
    NotImplementedError
        If there is no GPU, or the package lacks the function.
    RuntimeError
        If the package comes from elsewhere, its result is wrong, or anything else fails.
    """
    resolved = None if root is None else str(Path(root).resolve())
    path = () if resolved is None else (resolved,)
    env = {"TRITON_CACHE_DIR": str(Path(cache_dir).resolve())}
    found = process.call(answer, resolved, after_another, path=path, env=env)
    if isinstance(found, Exception):
        raise found
    return found


def answer(root: str | None = None, after_another: bool = False) -> float | Exception:
    """The seconds of :func:`seconds`, in the process whose first call it is."""
    reason = cell_outcomes.why_no_gpu()
    if reason:
        return NotImplementedError(reason)
    return cell_outcomes.attempt(_clocked, root, after_another)


def _clocked(root: str | None, after_another: bool) -> float:
    import_package(root)
    call = inputs.call_of(subjects.call_cell("sbhd"))
    return _checked_call(call, _launch_another if after_another else lambda x: None)


def compile_seconds() -> float | Exception:
    """Seconds of a call that compiles one kernel, in a process that has started Triton.

    Triton's cache is an empty directory meanwhile. ``NotImplementedError`` or ``RuntimeError`` in
    place of what cannot be had, or went wrong.
    """
    reason = cell_outcomes.why_no_gpu()
    return NotImplementedError(reason) if reason else cell_outcomes.attempt(_compiling)


def _compiling() -> float:
    import triton

    call = inputs.call_of(subjects.compiled_cell())
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        taken = _checked_call(call)
        if not any(Path(cache).iterdir()):
            raise RuntimeError("nothing was compiled: this process had the kernel already")
    return taken


def _checked_call(call, before: Callable = lambda x: None) -> float:
    """Seconds that a forward call takes, up to its result; ``before`` gets its input first."""
    import torch

    x = inputs.values(call.cell)
    before(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = call.forward(x)
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    package_calls.check(output, inputs.values(call.cell), call, FORWARD)
    return taken


def _launch_another(x) -> None:
    """Launch a kernel that does nothing, but takes a tensor and a number as others do."""
    import triton

    @triton.jit
    def nothing(x_ptr, n):
        pass

    nothing[(1,)](x, x.numel())
