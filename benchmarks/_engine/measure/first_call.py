"""Time how a process starts: the import, the first call with compilation, and without.

With everything compiled, most of it is Triton's own: before the first kernel of a process, Triton
reads and hashes its whole library (460 MB in 3.7). What the package adds to that is clocked after
another kernel has been launched.
"""

import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..subject import FORWARD, Call, Subject, load
from ..system import process, progress
from . import cell_outcomes, inputs

PROCESSES = 3


def samples(subject: Subject) -> list[tuple[float, float, float, float]]:
    """Seconds of the import, and of the first call: with Triton's cache empty, and twice filled.

    The second time filled, another kernel was launched before.

    ``PROCESSES`` of each, every one of a fresh process.
    """
    rows = []
    for _ in range(PROCESSES):
        imported = process.call(import_package, subject.PACKAGE)
        with tempfile.TemporaryDirectory() as cache:
            compiling, warm, own = (
                seconds(subject, None, Path(cache), after_another=another)
                for another in (False, False, True)
            )
        rows.append((imported, compiling, warm, own))
        text = f"compiled in {compiling:.2f} s, warm {warm:.2f} s, {own:.2f} s after another kernel"
        progress.report(f"host.FirstCall: imported in {imported:.2f} s, {text}")
    return rows


def import_package(name: str, root: str | None = None) -> float:
    """Seconds that importing the package takes in a process that has torch and not the package.

    Raises RuntimeError if it comes from elsewhere than the directory ``root``.
    """
    import torch  # noqa: F401, a user of the package has it

    start = time.perf_counter()
    package = importlib.import_module(name)
    taken = time.perf_counter() - start
    actual = Path(str(package.__file__)).resolve().parents[1]
    if root is not None and actual != Path(root).resolve():
        raise RuntimeError(f"{name} should have come from {root}, it came from {actual}")
    return taken


def seconds(
    subject: Subject, root: Path | None, cache_dir: Path, *, after_another: bool = False
) -> float:
    """Seconds that the call ``subject.first`` takes in a fresh process, up to its result.

    Torch and the package are imported and the GPU is in use before the clock starts. With an empty
    ``cache_dir``, Triton's, that is the compilation of everything, the second time a warm start.
    ``root`` holds the package; None: the one that this process would import. ``after_another``:
    whether another Triton kernel is launched before. Raises NotImplementedError if there is no GPU,
    or the package lacks the function, and RuntimeError for anything else that fails.
    """
    resolved = None if root is None else str(Path(root).resolve())
    path = () if resolved is None else (resolved,)
    env = {"TRITON_CACHE_DIR": str(Path(cache_dir).resolve())}
    result = process.call(answer, subject.__name__, resolved, after_another, path=path, env=env)
    if isinstance(result, Exception):
        raise result
    return result


def answer(subject: str, root: str | None = None, after_another: bool = False) -> float | Exception:
    """The seconds of :func:`seconds`, in the process whose first call it is."""
    return cell_outcomes.attempt(_clocked, load(subject), root, after_another)


def _clocked(subject: Subject, root: str | None, after_another: bool) -> float:
    cell_outcomes.require_gpu()
    import_package(subject.PACKAGE, root)
    call = subject.first().call(inputs.DEVICE)
    return _checked_call(call, _launch_another if after_another else lambda x: None)


def compile_seconds(subject: Subject) -> float:
    """Seconds of a call that compiles one kernel, in a process that has started Triton.

    Triton's cache is an empty directory meanwhile.
    """
    import triton

    cell_outcomes.require_gpu()
    call = subject.compiled().call(inputs.DEVICE)
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        taken = _checked_call(call)
        if not any(Path(cache).iterdir()):
            raise RuntimeError("nothing was compiled: this process had the kernel already")
    return taken


def _checked_call(call: Call, before: Callable = lambda x: None) -> float:
    """Seconds that a forward call takes, up to its result; ``before`` gets its input first."""
    import torch

    x = call.operand(inputs.values(call.cell))
    before(inputs.values(call.cell))
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = call.forward(x)
    torch.cuda.synchronize()
    taken = time.perf_counter() - start
    call.check(output, inputs.values(call.cell), FORWARD)
    return taken


def _launch_another(x) -> None:
    """Launch a kernel that does nothing, but takes a tensor and a number as others do."""
    import triton

    @triton.jit
    def nothing(x_ptr, n):
        pass

    nothing[(1,)](x, x.numel())
