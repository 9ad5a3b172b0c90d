"""What a call costs besides its GPU time: host time, compilation, memory, launches, rounding.

Functions for a process that may use the GPU. Answers are keyed by (metric, params): asv's name of
the benchmark and its parameters as strings. Where there is no answer stands the exception that says
why: ``NotImplementedError`` for what cannot be had (no GPU, a commit without the feature),
``RuntimeError`` with the traceback for what went wrong.
"""

import ctypes
import gc
import itertools
import math
import pickle
import subprocess
import tempfile
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path

from . import _calls, _process, _progress, _workload
from ._grid import BACKWARD, FORWARD, GRIDS, PATH_GRIDS, Cell, Measured, PathCell

Key = tuple[str, tuple[str, ...]]
Measures = MutableMapping[str, Callable]

CALL_FORWARD = "host.Call.track_forward"
CALL_FORWARD_BACKWARD = "host.Call.track_forward_backward"
COMPILE = "host.FirstCall.track_compile"
WARM_START = "host.FirstCall.track_warm_start"
PEAK_BYTES = "host.Memory.track_peak_bytes"
LAUNCHES = "host.Launches.track_launches"
ERROR = "host.Error.track_error"
PATH_FORWARD = "host.PathCall.track_forward"
PATH_FORWARD_BACKWARD = "host.PathCall.track_forward_backward"
PATH_PEAK_BYTES = "host.PathMemory.track_peak_bytes"
PATH_LAUNCHES = "host.PathLaunches.track_launches"
PATH_ERROR = "host.PathError.track_error"
PATH_METRICS = (*(PATH_FORWARD, PATH_FORWARD_BACKWARD, PATH_PEAK_BYTES, PATH_LAUNCHES, PATH_ERROR),)

DTYPES, FORMATS = GRIDS["full"]["dtype"], GRIDS["full"]["format"]
TRAINING = "training"
STEPS = (FORWARD, TRAINING)
LAYOUTS = ("contiguous", "transposed")
# First position: all angles below 2^11 rad, and those of a context of 131072 tokens.
POSITIONS = {"short": 0, "long": 131072}

STEP_PARAMS = {"step": STEPS, "format": FORMATS, "dtype": DTYPES, "layout": LAYOUTS}
ERROR_PARAMS = {
    "direction": (FORWARD, BACKWARD),
    "dtype": DTYPES,
    "positions": tuple(POSITIONS),
    "interleaved": (False, True),
}
# A host does the same for many sequences as for few: one packed path stands for both.
PATHS = tuple(path for path in PATH_GRIDS["full"]["path"] if path != "thd-short")
PATH_STEP_PARAMS = {"step": STEPS, "path": PATHS}
PATH_ERROR_PARAMS = {
    "direction": (FORWARD, BACKWARD),
    "path": PATHS,
    "dtype": PATH_GRIDS["full"]["dtype"],
}

_DEVICE = "cuda"
# Some 2 us on a GPU: never what a call on the host waits for.
_CALL_SEQ_LEN, _CALL_HIDDEN_SIZE, _CALL_BATCH, _CALL_DTYPE = 16, 64, 1, "bfloat16"
_CALL_MIB = 1 / 8
_WARM_CALLS, _BLOCKS = 50, 15
# There are many paths, and each says something of the others.
_PATH_BLOCKS = 5
# Two launches each: far from the thousand that fill the queue to the GPU, where a call would wait.
_BLOCK_CALLS = 200
_FIRST_CALL_PROCESSES = 3
_PROCESS_SECONDS = 600
_STEP_SEQ_LEN, _STEP_HIDDEN_SIZE, _STEP_BATCH = 512, 128, 2
_ERROR_SHAPE = 2048, 1, 2, 128  # sbhd
_PATH_STEP_MIB, _PATH_STEP_DTYPE, _PATH_ERROR_MIB = 16, "bfloat16", 2
_ROTARY_BASE = 10000.0


# --- what is asked for ----------------------------------------------------------------------------


def call_samples() -> dict[Key, list[float] | Exception]:
    """Host seconds of an eager call through the public API, ``_BLOCKS`` samples for each key."""
    keys = itertools.product((CALL_FORWARD, CALL_FORWARD_BACKWARD), [(f,) for f in FORMATS])
    return _answers_or_reason("host.Call", list(keys))


def path_call_samples() -> dict[Key, list[float] | Exception]:
    """The same of the other paths, ``_PATH_BLOCKS`` samples for each key."""
    keys = _path_keys(PATH_FORWARD, {"path": PATHS})
    keys += _path_keys(PATH_FORWARD_BACKWARD, {"path": PATHS})
    return _answers_or_reason("host.PathCall", keys)


def memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call: see :func:`peak_bytes`. Exact."""
    return _answers_or_reason("host.Memory", _keys(PEAK_BYTES, STEP_PARAMS))


def launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call: see :func:`launches`. Exact."""
    return _answers_or_reason("host.Launches", _keys(LAUNCHES, STEP_PARAMS))


def path_memory_facts() -> dict[Key, int | Exception]:
    """Peak bytes of a call of another path: see :func:`path_peak_bytes`. Exact."""
    return _answers_or_reason("host.PathMemory", _path_keys(PATH_PEAK_BYTES, PATH_STEP_PARAMS))


def path_launch_facts() -> dict[Key, int | Exception]:
    """GPU launches of a call of another path: see :func:`path_launches`. Exact."""
    return _answers_or_reason("host.PathLaunches", _path_keys(PATH_LAUNCHES, PATH_STEP_PARAMS))


def path_error_facts() -> dict[Key, float | Exception]:
    """Error of another path's result: see :func:`path_error`. Exact."""
    return _answers_or_reason("host.PathError", _path_keys(PATH_ERROR, PATH_ERROR_PARAMS))


def error_facts() -> dict[Key, float | Exception]:
    """Error of the result against float64: see :func:`error`. Exact."""
    return _answers_or_reason("host.Error", _keys(ERROR, ERROR_PARAMS))


def exact_facts() -> dict[Key, float | Exception]:
    """All that repeats to the last digit: memory, launches and error."""
    steps = [key for metric in (PEAK_BYTES, LAUNCHES) for key in _keys(metric, STEP_PARAMS)]
    steps += _keys(ERROR, ERROR_PARAMS)
    for metric in (PATH_PEAK_BYTES, PATH_LAUNCHES):
        steps += _path_keys(metric, PATH_STEP_PARAMS)
    return _answers_or_reason("host", steps + _path_keys(PATH_ERROR, PATH_ERROR_PARAMS))


def first_call_samples() -> dict[Key, list[float] | Exception]:
    """Seconds of the first call of a process, with Triton's cache empty and filled by another's.

    ``_FIRST_CALL_PROCESSES`` samples each, every one of a fresh process.
    """
    reason = _why_no_gpu("host.FirstCall")
    answer = NotImplementedError(reason) if reason else _attempt(_first_call_pairs)
    if isinstance(answer, Exception):
        return {(COMPILE, ()): answer, (WARM_START, ()): answer}
    compiling, warm = zip(*answer, strict=True)
    return {(COMPILE, ()): list(compiling), (WARM_START, ()): list(warm)}


def first_call_here(metric: str) -> dict[Key, list[float] | Exception]:
    """A sample of ``COMPILE`` or ``WARM_START`` from this process, which has called nothing yet."""
    seconds = _first_call_answer()
    return {(metric, ()): seconds if isinstance(seconds, Exception) else [seconds]}


def _keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    return [(metric, tuple(map(str, values))) for values in itertools.product(*params.values())]


def _path_keys(metric: str, params: Mapping[str, Iterable]) -> list[Key]:
    """Those of a path that has no backward pass only of its forward."""
    axis = list(params).index("path")
    return [
        (metric, values)
        for metric, values in _keys(metric, params)
        if _has_backward(values[axis]) or not _needs_backward(metric, values)
    ]


def _has_backward(path: str) -> bool:
    return BACKWARD in PathCell(path, _CALL_MIB, _CALL_DTYPE).directions


def _needs_backward(metric: str, params: tuple[str, ...]) -> bool:
    return metric == PATH_FORWARD_BACKWARD or BACKWARD in params or TRAINING in params


def _answers_or_reason(title: str, keys: list[Key], *more: Measures) -> dict:
    reason = _why_no_gpu(title)
    return dict.fromkeys(keys, NotImplementedError(reason)) if reason else _answers(keys, *more)


def _why_no_gpu(title: str) -> str:
    reason = _workload.why_no_gpu()
    if reason:
        _progress.report(f"{title}: n/a, {reason}")
    return reason


def _answers(keys: list[Key], *more: Measures) -> dict:
    """Answer in the given order; after a fault that ends a process's use of the GPU, in another.

    ``more``: measures beside this module's, which can be pickled.
    """
    found, measures = {}, ChainMap(_MEASURES, *more)
    for count, (metric, params) in enumerate(keys, 1):
        found[metric, params] = _attempt(measures[metric], *params)
        if isinstance(found[metric, params], RuntimeError) and _workload.gpu_is_lost():
            return found | _answers_of_fresh_process(keys[count:], *more)
    return found


def _answers_of_fresh_process(keys: list[Key], *more: Measures) -> dict:
    if not keys:
        return {}
    found = _attempt(_in_fresh_process, _answers, keys, *more)
    return dict.fromkeys(keys, found) if isinstance(found, Exception) else found


def _attempt(function: Callable, *args):
    """The function's result, or what stands for its exception: not every exception pickles."""
    try:
        return function(*args)
    except Exception as error:
        kind = NotImplementedError if _workload.cannot_be_had(error) else RuntimeError
        return kind(_workload.why_not(error))


# --- host time ------------------------------------------------------------------------------------


def call_seconds(metric: str, format: str) -> list[float]:
    """Host seconds of a call on a tensor so small that the GPU is never waited for.

    Parameters
    ----------
    metric : str
        ``CALL_FORWARD``: of a tensor without gradient; ``CALL_FORWARD_BACKWARD``: forward, and the
        gradient by ``torch.autograd.grad``.
    format : str
        One of ``FORMATS``.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    """
    import torch

    from rope_triton import apply_rotary_pos_emb

    cell = _call_cell(format)
    freqs = _freqs(_angles(0, cell.seq_len, cell.hidden_size))
    x, t = _values(cell), _values(cell).requires_grad_()

    def forward():
        return apply_rotary_pos_emb(x, freqs, tensor_format=format)

    def forward_backward():
        output = apply_rotary_pos_emb(t, freqs, tensor_format=format)
        return torch.autograd.grad(output, t, x)[0]

    alone = metric == CALL_FORWARD
    call, direction = (forward, FORWARD) if alone else (forward_backward, BACKWARD)
    _calls.check(call(), x, _calls.of(cell, freqs), direction)
    return _host_seconds(call, _BLOCKS)


def path_call_seconds(metric: str, path: str) -> list[float]:
    """The same of a call of one of ``PATHS``.

    Parameters
    ----------
    metric : str
        ``PATH_FORWARD`` or ``PATH_FORWARD_BACKWARD``, as for :func:`call_seconds`.
    path : str
        One of ``PATHS``.

    Raises
    ------
    AssertionError
        If the call's result is wrong.
    """
    import torch

    cell = PathCell(path, _CALL_MIB, _CALL_DTYPE)
    call = _path(cell)
    x, t = _values(cell), _values(cell).requires_grad_()
    cotangent = call.cotangent(x)

    def forward():
        return call.forward(x)

    def forward_backward():
        return torch.autograd.grad(call.forward(t), t, cotangent)[0]

    alone = metric == PATH_FORWARD
    rotate, direction = (forward, FORWARD) if alone else (forward_backward, BACKWARD)
    _workload.check_once(call, direction, rotate, x)
    return _host_seconds(rotate, _PATH_BLOCKS)


def _call_cell(format: str) -> Cell:
    return Cell(_CALL_SEQ_LEN, _CALL_HIDDEN_SIZE, _CALL_BATCH, _CALL_DTYPE, format)


def _host_seconds(call: Callable, blocks: int) -> list[float]:
    """Host seconds a call, a sample for each block of calls; no garbage collection meanwhile."""
    import torch

    for _ in range(_WARM_CALLS):
        call()
    samples, collecting = [], gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(blocks):
            torch.cuda.synchronize()  # every block finds the queue empty, and does not wait for it
            start = time.perf_counter()
            for _ in range(_BLOCK_CALLS):
                call()
            samples.append((time.perf_counter() - start) / _BLOCK_CALLS)
        torch.cuda.synchronize()
    finally:
        if collecting:
            gc.enable()
    return samples


# --- the first call of a process ------------------------------------------------------------------


def first_call_seconds(root: Path | None, cache_dir: Path) -> float:
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

    Raises
    ------
    NotImplementedError
        If there is no GPU, or the package lacks the function.
    RuntimeError
        If the package comes from elsewhere, its result is wrong, or anything else fails.
    """
    path = () if root is None else (str(Path(root).resolve()),)
    env = {"TRITON_CACHE_DIR": str(Path(cache_dir).resolve())}
    answer = _in_fresh_process(_first_call_answer, *path, path=path, env=env)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _first_call_pairs() -> list[tuple[float, float]]:
    pairs = []
    for _ in range(_FIRST_CALL_PROCESSES):
        with tempfile.TemporaryDirectory() as cache:
            compiling = first_call_seconds(None, Path(cache))
            pairs.append((compiling, first_call_seconds(None, Path(cache))))
        _progress.report("host.FirstCall: compiled in {:.2f} s, warm {:.2f} s".format(*pairs[-1]))
    return pairs


def _first_call_answer(root: str | None = None) -> float | Exception:
    """In the fresh process: the answer for the package below ``root``."""
    reason = _workload.why_no_gpu()
    return NotImplementedError(reason) if reason else _attempt(_clock_first_call, root)


def _clock_first_call(root: str | None) -> float:
    import torch

    import rope_triton

    found = Path(rope_triton.__file__).resolve().parent.parent
    if root is not None and found != Path(root):
        raise RuntimeError(f"rope_triton was to be imported from {root}, but came from {found}")
    cell = _call_cell("sbhd")
    x, freqs = _values(cell), _freqs(_angles(0, cell.seq_len, cell.hidden_size))
    torch.cuda.synchronize()
    start = time.perf_counter()
    output = _apply(x, freqs, cell.format)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    _calls.check(output, x, _calls.of(cell, freqs), FORWARD)
    return seconds


_CALL_FUNCTION = """
import pathlib, pickle
file = pathlib.Path(sys.argv[2])
function, args = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps(function(*args)))
"""


def _in_fresh_process(function: Callable, *args, path: tuple[str, ...] = (), env=None):
    """What a function of this suite returns in a process that has nothing of this one's memory."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "call.pickle")
        file.write_bytes(pickle.dumps((function, args)))
        process = _process.start(
            _CALL_FUNCTION,
            str(file),
            path=path,
            env=env,
            cwd=scratch,  # Python puts it on the path, before all others: it must hold no package
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=_PROCESS_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"a fresh process was not done after {_PROCESS_SECONDS} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise RuntimeError(f"a fresh process ended with {process.returncode}:\n{output}")
        return pickle.loads(file.read_bytes())


# --- memory and launches --------------------------------------------------------------------------


def peak_bytes(step: str, format: str, dtype: str, layout: str) -> int:
    """Most GPU memory that a call asks for at any one time, beyond what its caller holds.

    In the step "training" the tensor that is rotated is an intermediate result, as in a model, and
    counts: after the forward it lives on only if the call has saved it. Counts what is asked of
    torch's allocator, not the blocks that it hands out, whose sizes depend on what ran before.

    Parameters
    ----------
    step, format, dtype, layout : str
        Values of ``STEP_PARAMS``; "transposed": in memory, sequence and batch are exchanged, and
        heads and channels, both of the tensor and of the gradient that comes back.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    return _peak_bytes(_step_call(step, format, dtype, layout, intermediate=True))


def path_peak_bytes(step: str, path: str) -> int:
    """The same of a call of another path, on contiguous tensors.

    Parameters
    ----------
    step, path : str
        Values of ``PATH_STEP_PARAMS``.

    Raises
    ------
    RuntimeError
        If torch's allocator keeps no account here.
    """
    return _peak_bytes(_path_step_call(step, path, intermediate=True))


def _peak_bytes(call: Callable) -> int:
    import torch

    call()  # compiles
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = _requested_bytes("current")
    if not before:
        raise RuntimeError(
            "torch's CUDA allocator counts no requested bytes: unset PYTORCH_NO_CUDA_MEMORY_CACHING"
            " and any other backend in PYTORCH_CUDA_ALLOC_CONF"
        )
    call()
    return _requested_bytes("peak") - before


def _requested_bytes(when: str) -> int:
    import torch

    return torch.cuda.memory_stats().get(f"requested_bytes.all.{when}", 0)


def launches(step: str, format: str, dtype: str, layout: str) -> int:
    """Kernels, copies and fills that a call asks the GPU for.

    Counted in a CUDA graph of the call: the driver's own list of the work, which depends on no
    profiler's rights or buffers. A call that waits for the GPU, or copies from pageable memory,
    cannot be recorded, and fails here.

    Parameters
    ----------
    step, format, dtype, layout : str
        As for :func:`peak_bytes`.
    """
    return _launches(lambda: _step_call(step, format, dtype, layout, intermediate=False))


def path_launches(step: str, path: str) -> int:
    """The same of a call of another path, on contiguous tensors.

    Parameters
    ----------
    step, path : str
        Values of ``PATH_STEP_PARAMS``.
    """
    return _launches(lambda: _path_step_call(step, path, intermediate=False))


def _launches(make_call: Callable[[], Callable]) -> int:
    """``make_call`` is called on the stream that the call is recorded on."""
    import torch

    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(stream):
        call = make_call()
        call()  # compiles
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
    kinds = Counter(_node_kinds(graph.raw_cuda_graph(), ctypes.CDLL("libcuda.so.1")))
    return sum(kinds[kind] for kind in _WORK_KINDS)


_WORK_KINDS = (0, 1, 2)  # CUgraphNodeType: kernel, memcpy, memset


def _node_kinds(graph: int, driver) -> list[int]:
    """The type of every node of a CUDA graph, by the CUDA driver's library."""
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    _succeed(driver.cuGraphGetNodes(handle, None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _succeed(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(count)))
    kinds = [ctypes.c_int() for _ in nodes]
    for node, kind in zip(nodes, kinds, strict=True):
        _succeed(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
    return [kind.value for kind in kinds]


def _succeed(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver could not list a graph's nodes: CUresult {status}")


def _step_call(step: str, format: str, dtype: str, layout: str, intermediate: bool) -> Callable:
    """The call as a function without arguments, of an intermediate result in training or not."""
    cell = Cell(_STEP_SEQ_LEN, _STEP_HIDDEN_SIZE, _STEP_BATCH, dtype, format)
    freqs = _freqs(_angles(0, cell.seq_len, cell.hidden_size))

    def rotate(x):
        return _apply(x, freqs, format)

    x = _values(cell, layout)
    if step == FORWARD:
        return lambda: rotate(x)
    return _training_call(rotate, x, _values(cell, layout), intermediate)


def _path_step_call(step: str, path: str, intermediate: bool) -> Callable:
    cell = PathCell(path, _PATH_STEP_MIB, _PATH_STEP_DTYPE)
    call, x = _path(cell), _values(cell)
    if step == FORWARD:
        return lambda: call.forward(x)
    return _training_call(call.forward, x, call.cotangent(_values(cell)), intermediate)


def _training_call(rotate: Callable, x, cotangent, intermediate: bool) -> Callable:
    leaf = x.requires_grad_()
    rotated = leaf.clone if intermediate else lambda: leaf
    return lambda: _training(rotate, rotated, leaf, cotangent)


def _training(rotate: Callable, rotated: Callable, leaf, cotangent):
    """Forward and backward; of what ``rotated`` returns, only the forward can keep a reference."""
    import torch

    return torch.autograd.grad(rotate(rotated()), leaf, cotangent)[0]


# --- error ----------------------------------------------------------------------------------------


def error(direction: str, dtype: str, positions: str, interleaved: str) -> float:
    """Root mean square error over that of the exact result rounded to ``dtype``.

    1 is perfect: nothing but the unavoidable rounding. Any further error adds to it, also one that
    hides below half a unit in the last place of bfloat16, where a largest error or a tolerance
    stays as it is. Exact is float64, of the very angles that the call gets.

    The inputs are the same on every machine; 6 digits, because the order of a sum in float64 is
    not.

    Parameters
    ----------
    direction, dtype, positions, interleaved : str
        Values of ``ERROR_PARAMS``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    import torch

    seq_len, *_, width = _ERROR_SHAPE
    x = _random(_ERROR_SHAPE, getattr(torch, dtype))
    angles = _angles(POSITIONS[positions], seq_len, width)
    pairs_adjoin = interleaved == "True"
    result = _result(x.to(_DEVICE), _freqs(angles, pairs_adjoin), direction, pairs_adjoin).cpu()
    return _error(result, _exact(x, angles, direction, pairs_adjoin), x.dtype)


def path_error(direction: str, path: str, dtype: str) -> float:
    """The same of a call of another path; of ready-made tables, those that it gets are exact.

    Parameters
    ----------
    direction, path, dtype : str
        Values of ``PATH_ERROR_PARAMS``.

    Raises
    ------
    ValueError
        If the result is not finite.
    """
    import torch

    cell = PathCell(path, _PATH_ERROR_MIB, dtype)
    call, x = _path(cell), _random(cell.shape, getattr(torch, dtype))
    given = call.split(x if direction == FORWARD else call.cotangent(x))
    there = x.to(_DEVICE, copy=True)  # a rotation in place overwrites it
    results = call.split(_passed(call.forward, there, call.cotangent(there), direction))
    turn = torch.complex(*(each.cpu() for each in call.turn()))
    exact = [
        _turned(part, turn, direction, interleaved=False) if rotated else part.double()
        for part, rotated in zip(given, call.rotated, strict=True)
    ]
    result, exact = (torch.cat([y.cpu().flatten() for y in parts]) for parts in (results, exact))
    return _error(result, exact, x.dtype)


def _random(shape: tuple[int, ...], dtype):
    """From -1 to 1, the same on every machine."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return (2 * torch.rand(shape, generator=generator) - 1).to(dtype)


def _error(result, exact, dtype) -> float:
    if not result.isfinite().all():
        raise ValueError("the result of finite input has elements that are NaN or infinite")
    return float(f"{_rms(result - exact) / _rms(exact.to(dtype) - exact):.6g}")


def _result(x, freqs, direction: str, interleaved: bool):
    """The package's rotation of ``x``, or its gradient for the cotangent ``x``."""
    return _passed(lambda t: _apply(t, freqs, "sbhd", interleaved), x, x, direction)


def _passed(rotate: Callable, x, cotangent, direction: str):
    """What ``rotate`` makes of ``x``, or of the cotangent in its backward pass."""
    import torch

    if direction == FORWARD:
        return rotate(x)
    t = torch.zeros_like(x).requires_grad_()
    return torch.autograd.grad(rotate(t), t, cotangent)[0]


def _exact(x, angles, direction: str, interleaved: bool):
    import torch

    turn = torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())
    return _turned(x, turn, direction, interleaved)


def _turned(x, turn, direction: str, interleaved: bool):
    """Rotation as multiplication by the complex numbers ``turn``, float64."""
    import torch

    pairs = x.double().unflatten(-1, (-1, 2) if interleaved else (2, -1))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    turn = turn if direction == FORWARD else turn.conj()
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return (turned if interleaved else turned.transpose(-1, -2)).flatten(-2)


def _rms(x) -> float:
    return x.square().mean().sqrt().item()


# --- the call and its inputs ----------------------------------------------------------------------


def _apply(t, freqs, format: str, interleaved: bool = False):
    from rope_triton import apply_rotary_pos_emb

    return apply_rotary_pos_emb(t, freqs, tensor_format=format, interleaved=interleaved)


def _path(cell: PathCell):
    """The call of a cell of another path, by angles that are the same on every machine."""
    return _calls.of(cell, _freqs(_angles(0, cell.positions, cell.hidden_size)))


def _values(cell: Measured, layout: str = "contiguous"):
    """A tensor of varied values that costs no random numbers.

    A recording that failed leaves torch's generator unusable in its process (torch 2.11), and the
    cells after it must not fail for that.
    """
    import torch

    order = range(len(cell.shape)) if layout == "contiguous" else (1, 0, 3, 2)
    shape = [cell.shape[dim] for dim in order]
    numbers = torch.arange(math.prod(shape), device=_DEVICE) % 1021
    return (numbers / 510 - 1).to(getattr(torch, cell.dtype)).view(shape).permute(*order)


def _angles(first: int, seq_len: int, width: int):
    """Angles of the pairs of ``width`` channels, float32 ``[seq_len, 1, 1, width / 2]``, on CPU.

    Of Python's floats and one product, so that they are the same on every machine.
    """
    import torch

    frequencies = [_ROTARY_BASE ** (-2 * i / width) for i in range(width // 2)]
    positions = torch.arange(first, first + seq_len, dtype=torch.float64)[:, None, None, None]
    return (positions * torch.tensor(frequencies, dtype=torch.float64)).float()


def _freqs(angles, interleaved: bool = False):
    """What the package takes: each angle at both members of its pair, on the GPU."""
    import torch

    twice = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return twice.to(_DEVICE)


_MEASURES: dict[str, Callable] = {
    CALL_FORWARD: lambda format: call_seconds(CALL_FORWARD, format),
    CALL_FORWARD_BACKWARD: lambda format: call_seconds(CALL_FORWARD_BACKWARD, format),
    PEAK_BYTES: peak_bytes,
    LAUNCHES: launches,
    ERROR: error,
    PATH_FORWARD: lambda path: path_call_seconds(PATH_FORWARD, path),
    PATH_FORWARD_BACKWARD: lambda path: path_call_seconds(PATH_FORWARD_BACKWARD, path),
    PATH_PEAK_BYTES: path_peak_bytes,
    PATH_LAUNCHES: path_launches,
    PATH_ERROR: path_error,
}
