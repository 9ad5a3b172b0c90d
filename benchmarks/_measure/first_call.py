"""Time the first call of a process: with compilation, and with everything compiled before.

With everything compiled, most of it is Triton's own: before the first kernel of a process, Triton
reads and hashes its whole library (460 MB in 3.7). What the package adds to that is clocked after
another kernel has been launched.
"""

import tempfile
import time
from pathlib import Path

from .._cells import package_calls, subjects
from .._cells.forms import FORWARD
from .._system import process, progress
from . import inputs, workload

PROCESSES = 3


def samples() -> list[tuple[float, float, float]]:
    """Seconds with Triton's cache empty, filled, and filled after another kernel's launch.

    ``PROCESSES`` of each, every one of a fresh process.
    """
    found = []
    for _ in range(PROCESSES):
        with tempfile.TemporaryDirectory() as cache:
            compiling, warm, own = (
                seconds(None, Path(cache), after_another=another)
                for another in (False, False, True)
            )
        found.append((compiling, warm, own))
        said = f"compiled in {compiling:.2f} s, warm {warm:.2f} s, {own:.2f} s after another kernel"
        progress.report(f"host.FirstCall: {said}")
    return found


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
    reason = workload.why_no_gpu()
    if reason:
        return NotImplementedError(reason)
    return workload.attempt(_clocked, root, after_another)


def _clocked(root: str | None, after_another: bool) -> float:
    import torch

    import rope_triton

    found = Path(rope_triton.__file__).resolve().parent.parent
    if root is not None and found != Path(root):
        raise RuntimeError(f"rope_triton was to be imported from {root}, but came from {found}")
    cell = subjects.call_cell("sbhd")
    x, call = inputs.values(cell), inputs.call_of(cell)
    if after_another:
        _launch_another(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = call.forward(x)
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    package_calls.check(output, inputs.values(cell), call, FORWARD)
    return taken


def _launch_another(x) -> None:
    """Launch a kernel that does nothing, but takes a tensor and a number as others do."""
    import triton

    @triton.jit
    def nothing(x_ptr, n):
        pass

    nothing[(1,)](x, x.numel())
