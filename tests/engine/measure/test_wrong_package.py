"""A package that is wrong has no speed: neither in ``asv run`` nor in ``compare``.

Without a GPU: CPU tensors, plain PyTorch and made-up samples; ``tests/gpu/test_wrong_package_gpu``
has the same packages, compiled and recorded.
"""

import functools
import gc

import pytest
import torch

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import call_costs, cell_outcomes
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies.peers.peer_cells import PEER_GRIDS, peer_cell
from benchmarks._subjects.rope import angles, grid
from benchmarks._subjects.rope.cells import PATHS, grid_cell, path_cell
from tests.package import plain

CELL = grid_cell(16, 64, 2, "float32", "bshd")
WITH_ANGLES = [
    CELL,
    *(path_cell(path, 1 / 4, "float32") for path in ("thd", "qkv", "qk", "starts")),
]
WITH_TABLES = [path_cell(path, 1 / 4, "float32") for path in PATHS if path.startswith("tables")]
Right = rope_triton.RotaryPositionEmbedding
CELLS = [*grid.all_cells("full"), *grid.cells_of(peer_cell, PEER_GRIDS["full"])]


@pytest.fixture
def process(on_cpu, monkeypatch):
    """One that measures as on a GPU, in both commands."""
    monkeypatch.setattr(call_costs, "warm_start_here", dict)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # a quarter of a second for each tiny call


def in_asv(cell) -> list[str]:
    """What is wrong according to ``asv run``, by direction."""
    problems = []
    for direction in cell.directions:
        (outcome,) = cell_outcomes.measure_cells([cell], direction).values()
        assert bool(outcome.latency) != bool(outcome.error) and not outcome.unavailable
        problems.append(outcome.error)
    return problems


def checked(cell) -> list[str]:
    """The same of the process of a comparison that checks cells."""
    return errors(cell, measure._check(_subjects, [cell], exact=False))


def timed(cell) -> list[str]:
    """The same of one that times them."""
    return errors(cell, measure._measure(_subjects, [cell], starts=False, seed=1))


def errors(cell, answer) -> list[str]:
    assert not answer["unavailable"]
    problems = {metric: reason for metric, _, reason in answer["errors"]}
    assert not problems.keys() & {metric for metric, *_ in answer["timings"]}
    return [problems.get(metric, "") for metric in cell.metrics.values()]


commands = pytest.mark.parametrize("command", [in_asv, checked, timed])


# --- angles ---------------------------------------------------------------------------------------


def changed(change):
    """A module that gives the right angles, changed."""

    class Wrong(Right):
        def forward(self, *args, **options):
            return change(super().forward(*args, **options))

    return Wrong


Zero = changed(lambda angles: 0 * angles)
EXPECTED_ONE = "at position 1, channel 0, expected 1"
WRONG_ANGLES = {
    "zero": (Zero, f"gives 0 radians {EXPECTED_ONE}"),
    "nearly the base": (
        functools.partial(Right, rotary_base=10001.0),
        "at position 1, channel 1, expected 0.749894209",
    ),
    "from the last position of the grid on": (
        changed(lambda angles: torch.cat((angles[:8191], 0 * angles[8191:]))),
        "gives 0 radians at position 8191, channel 0, expected 8191",
    ),
    "if short": (
        changed(lambda angles: angles * (len(angles) > 16)),
        f"(16) gives 0 radians {EXPECTED_ONE}",
    ),
    "half": (
        changed(torch.Tensor.half),
        "returns torch.float16 (16384, 1, 1, 64), expected torch.float32",
    ),
    "NaN": (
        changed(lambda angles: angles * float("nan")),
        "gives nan radians at position 0, channel 0, expected 0",
    ),
    "half as wide": (
        changed(lambda angles: angles.chunk(2, -1)[0]),
        "expected torch.float32 (16384, 1, 1, 64)",
    ),
}


@pytest.mark.parametrize(("module", "where"), WRONG_ANGLES.values(), ids=WRONG_ANGLES)
def test_wrong_angles_are_refused_where_they_are(module, where, monkeypatch):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", module)
    with pytest.raises(AssertionError) as caught:
        angles.check_package(16, 64, "cpu")
    message = str(caught.value)
    assert message.startswith("rope_triton.RotaryPositionEmbedding(64)(1") and where in message


@commands
def test_wrong_angles_are_a_fault_of_all_calls_with_angles_and_of_no_other(
    process, command, monkeypatch
):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Zero)
    for cell in WITH_ANGLES:
        assert all("RotaryPositionEmbedding" in problem for problem in command(cell)), cell
    for cell in WITH_TABLES:
        assert not any(command(cell)), cell


def test_other_libraries_are_not_at_fault_for_the_packages_angles(process, monkeypatch):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Zero)
    cells = [
        peer_cell(name, 16, 64, 2, 1, "float32", "bshd") for name in ("pytorch", "rope-triton")
    ]
    theirs, ours = cell_outcomes.measure_cells(cells, FORWARD).values()
    assert theirs.latency and "RotaryPositionEmbedding" in ours.error


def test_package_without_the_module_is_not_available_with_angles(process, monkeypatch):
    monkeypatch.delattr(rope_triton, "RotaryPositionEmbedding")
    (outcome,) = cell_outcomes.measure_cells([CELL], FORWARD).values()
    assert outcome.unavailable.startswith("this commit cannot: cannot import name 'RotaryPosition")
    answer = measure._check(_subjects, [CELL], exact=False)
    assert [reason for *_, reason in answer["unavailable"]] == [outcome.unavailable] * 2
    for cell in WITH_TABLES:
        assert not any(timed(cell))


def test_angles_are_checked_once_a_process(monkeypatch):
    made = []

    class Counted(Right):
        def __init__(self, dim):
            made.append(dim)
            super().__init__(dim, device="cpu")

    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Counted)
    for width in (64, 128, 64, 128):
        angles.check_package(16, width, "cpu")
    assert made == [64, 64, 128, 128], "16 positions and all, of either width"


@pytest.mark.parametrize("width", sorted({cell.call_name.rotated for cell in CELLS}))
def test_float32_arithmetic_passes(width, monkeypatch):
    """The package's, and what the tolerance is derived for: rounded at every step."""
    angles.check_package(16, width, "cpu")

    class Rounded(torch.nn.Module):
        def __init__(self, dim):
            super().__init__()
            exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
            # 4 units in the last place too large, as CUDA allows itself for a power.
            power = (10000.0**exponent) * (1 + 4 * 2.0**-23)
            self.inv_freq = 1.0 / power

        def forward(self, positions):
            at = torch.arange(positions, dtype=torch.float32)
            return angles.by_channel(torch.outer(at, self.inv_freq))[:, None, None]

    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Rounded)
    angles.check_package(16, width, "cpu")


def test_no_sequence_is_longer_than_what_is_checked():
    assert max(cell.positions for cell in CELLS) <= angles.CHECKED_POSITIONS
    assert angles.CHECKED_POSITIONS < 2**24  # where float32 no longer has every position


def test_the_package_does_not_make_what_it_is_checked_by(monkeypatch):
    right = angles.exact(0, 16, 64)
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Zero)
    for name in ("rotary_angles", "frequencies_from_config"):
        monkeypatch.delattr(rope_triton, name)
    assert torch.equal(angles.exact(0, 16, 64), right)


# --- what the graph wrote -------------------------------------------------------------------------


def rotated_by(direction, recorded):
    """The rotation, turned the other way in one direction where a CUDA graph records it."""

    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, freqs, tensor_format):
            ctx.rest = freqs, tensor_format
            return turned(FORWARD, t, freqs, tensor_format)

        @staticmethod
        def backward(ctx, gradient):
            freqs, tensor_format = ctx.rest
            return turned(BACKWARD, gradient, -freqs, tensor_format), None, None

    def turned(here, t, freqs, tensor_format):
        wrong = recorded() and here == direction
        return plain.apply_rotary_pos_emb(t, -freqs if wrong else freqs, tensor_format)

    return lambda t, freqs, tensor_format="sbhd": Rotate.apply(t, freqs, tensor_format)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_package_that_is_wrong_in_a_graph_alone_has_no_speed(process, direction, monkeypatch):
    apply = rotated_by(direction, torch.cuda.is_current_stream_capturing)
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert checked(CELL) == ["", ""], "eager calls are right"
    by_direction = dict(zip(CELL.directions, in_asv(CELL), strict=True))
    assert "not close" in by_direction.pop(direction) and not any(by_direction.values())
    assert all("not close" in problem for problem in timed(CELL)), "one process, both directions"


@pytest.mark.parametrize("command", [in_asv, timed])
def test_output_that_no_replay_writes_has_no_speed(process, command, monkeypatch):
    """Also one that an eager call got right: NaN stands there before the replay."""
    results = {}

    def apply(t, freqs, tensor_format="sbhd"):
        if t.data_ptr() not in results:
            results[t.data_ptr()] = plain.apply_rotary_pos_emb(t, freqs, tensor_format), t
        return results[t.data_ptr()][0]

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert "not close" in command(CELL)[0]


@commands
def test_call_that_changes_its_input_has_no_speed(process, command, monkeypatch):
    """Though its output is that of the input as it was."""

    def apply(t, freqs, tensor_format="sbhd"):
        output = plain.apply_rotary_pos_emb(t, freqs, tensor_format)
        t.detach().view(-1)[-1] += 1
        return output

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert "the call changed its input, and is not in place" in command(CELL)[0]


def test_the_check_says_what_each_right_call_puts_on_the_stream(process, monkeypatch):
    answer = measure._check(_subjects, [CELL], exact=False)
    assert [[metric, params] for metric, params, _ in answer["nodes"]] == [
        [metric, list(CELL.params)] for metric in CELL.metrics.values()
    ]
    apply = rotated_by(FORWARD, lambda: True)
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    wrong = measure._check(_subjects, [CELL], exact=False)
    assert not [metric for metric, *_ in wrong["nodes"] if metric.startswith("rope.Forward")]
