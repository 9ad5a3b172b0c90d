"""A package that is wrong has no speed: neither in ``asv run`` nor in ``compare``.

Without a GPU: CPU tensors, plain PyTorch and made-up samples; ``tests/gpu/test_wrong_package_gpu``
has the same packages, compiled and recorded.
"""

import functools
import gc
from pathlib import Path

import pytest
import torch

import rope_triton
from benchmarks import _subjects
from benchmarks._engine.compare import measure
from benchmarks._engine.measure import cell_outcomes, host, inputs, timed_cell
from benchmarks._engine.subject import BACKWARD, FORWARD
from benchmarks._studies.peers.cells import PEER_GRIDS, PeerCell
from benchmarks._subjects.rope import angles, grid
from benchmarks._subjects.rope.cells import PATHS, Cell, PathCell
from tests.engine.measure import samples
from tests.package import plain

CELL = Cell(16, 64, 2, "float32", "bshd")
BY_ANGLES = [CELL, *(PathCell(path, 1 / 4, "float32") for path in ("thd", "qkv", "qk", "starts"))]
BY_TABLES = [PathCell(path, 1 / 4, "float32") for path in PATHS if path.startswith("tables")]
Right = rope_triton.RotaryPositionEmbedding
CELLS = [*grid.all_cells("full"), *grid.cells_of(PeerCell, PEER_GRIDS["full"])]


@pytest.fixture
def on_cpu(monkeypatch, tmp_path, one_thread):
    """Measures as on a GPU, in both commands."""
    samples.install(monkeypatch, tmp_path / "progress", sets=3)
    plain.install(monkeypatch)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")
    monkeypatch.setattr(host, "warm_start_here", dict)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # a quarter of a second for each tiny call


def in_asv(cell) -> list[str]:
    """What ``asv run`` says is wrong, by direction."""
    found = []
    for direction in cell.directions:
        (outcome,) = cell_outcomes.measure_cells([cell], direction).values()
        assert bool(outcome.latency) != bool(outcome.error) and not outcome.unavailable
        found.append(outcome.error)
    return found


def checked(cell) -> list[str]:
    """The same of the process of a comparison that checks cells."""
    return errors(cell, measure._check(_subjects, [cell], exact=False))


def timed(cell) -> list[str]:
    """The same of one that times them."""
    return errors(cell, measure._measure(_subjects, [cell], host=False, seed=1))


def errors(cell, answer) -> list[str]:
    assert not answer["unavailable"]
    said = {metric: reason for metric, _, reason in answer["errors"]}
    assert not said.keys() & {metric for metric, *_ in answer["timings"]}
    return [said.get(metric, "") for metric in cell.metrics.values()]


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
    "base": (
        functools.partial(Right, rotary_base=500000.0),
        "at position 1, channel 1, expected 0.749894209",
    ),
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


@commands
@pytest.mark.parametrize(("module", "where"), WRONG_ANGLES.values(), ids=WRONG_ANGLES)
def test_package_with_wrong_angles_has_no_speed_and_says_where(
    on_cpu, module, where, command, monkeypatch
):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", module)
    for said in command(CELL):
        last = said.splitlines()[-1]
        assert "rope_triton.RotaryPositionEmbedding(64)(1" in last and where in last


@commands
def test_wrong_angles_are_a_fault_of_all_calls_by_angles_and_of_no_other(
    on_cpu, command, monkeypatch
):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Zero)
    for cell in BY_ANGLES:
        assert all("RotaryPositionEmbedding" in said for said in command(cell)), cell
    for cell in BY_TABLES:
        assert not any(command(cell)), cell


def test_other_libraries_are_not_at_fault_for_the_packages_angles(on_cpu, monkeypatch):
    monkeypatch.setattr(rope_triton, "RotaryPositionEmbedding", Zero)
    cells = [PeerCell(name, 16, 64, 2, 1, "float32", "bshd") for name in ("pytorch", "rope-triton")]
    theirs, ours = cell_outcomes.measure_cells(cells, FORWARD).values()
    assert theirs.latency and "RotaryPositionEmbedding" in ours.error


def test_package_without_the_module_is_not_available_by_angles(on_cpu, monkeypatch):
    monkeypatch.delattr(rope_triton, "RotaryPositionEmbedding")
    (outcome,) = cell_outcomes.measure_cells([CELL], FORWARD).values()
    assert outcome.unavailable.startswith("this commit cannot: cannot import name 'RotaryPosition")
    answer = measure._check(_subjects, [CELL], exact=False)
    assert [reason for *_, reason in answer["unavailable"]] == [outcome.unavailable] * 2
    for cell in BY_TABLES:
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
    assert made == [64, 64, 128, 128], "each asked for 16 positions and for all"


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
    made = Right(64, device="cpu")(16).double()
    torch.testing.assert_close(angles.by_channel(right), made, rtol=angles.TOLERANCE, atol=0)


def test_only_the_check_asks_for_the_packages_angles():
    sources = Path(angles.__file__).parents[2].rglob("*.py")
    naming = {path.name for path in sources if "RotaryPositionEmbedding" in path.read_text()}
    assert naming == {"angles.py"}


# --- what the graph wrote -------------------------------------------------------------------------


def wrong_when_recorded(function):
    """Right when it is called, and turned the other way in a CUDA graph."""

    def apply(t, freqs, tensor_format="sbhd"):
        recorded = torch.cuda.is_current_stream_capturing()
        return function(t, -freqs if recorded else freqs, tensor_format)

    return apply


def remembered(function):
    """Computed once for each input, eagerly or not: a replay does nothing."""
    known = {}

    def apply(t, freqs, tensor_format="sbhd"):
        if t.data_ptr() not in known:
            known[t.data_ptr()] = function(t, freqs, tensor_format), t
        return known[t.data_ptr()][0]

    return apply


def erasing(function):
    """Zero, whose rotation is zero."""

    def apply(t, freqs, tensor_format="sbhd"):
        t.detach().zero_()
        return function(t, freqs, tensor_format)

    return apply


def test_package_that_is_wrong_in_a_graph_alone_has_no_speed(on_cpu, monkeypatch):
    apply = wrong_when_recorded(plain.apply_rotary_pos_emb)
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert checked(CELL) == ["", ""], "eager calls are right"
    assert "not close" in in_asv(CELL)[0] and "not close" in timed(CELL)[0]


def test_gradient_that_is_wrong_in_a_graph_alone_has_no_speed(on_cpu, monkeypatch):
    class Rotate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, freqs, tensor_format):
            ctx.rest = freqs, tensor_format
            return plain.apply_rotary_pos_emb(t, freqs, tensor_format)

        @staticmethod
        def backward(ctx, gradient):
            freqs, tensor_format = ctx.rest
            turned = freqs if torch.cuda.is_current_stream_capturing() else -freqs
            return plain.apply_rotary_pos_emb(gradient, turned, tensor_format), None, None

    def apply(t, freqs, tensor_format="sbhd"):
        return Rotate.apply(t, freqs, tensor_format)

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert checked(CELL) == ["", ""]
    forward, backward = in_asv(CELL)
    assert not forward and "not close" in backward
    assert all("not close" in said for said in timed(CELL)), "one process, both directions"


@pytest.mark.parametrize("command", [in_asv, timed])
def test_output_that_no_replay_writes_has_no_speed(on_cpu, command, monkeypatch):
    """Also one that an eager call got right: NaN stands there before the replay."""
    apply = remembered(plain.apply_rotary_pos_emb)
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    assert "not close" in command(CELL)[0]


@commands
def test_call_that_changes_its_input_has_no_speed(on_cpu, command, monkeypatch):
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", erasing(plain.apply_rotary_pos_emb))
    assert "AssertionError" in command(CELL)[0]


def test_input_is_looked_at_where_the_output_is_right(on_cpu, monkeypatch):
    def apply(t, freqs, tensor_format="sbhd"):
        output = plain.apply_rotary_pos_emb(t, freqs, tensor_format)
        t.detach().view(-1)[-1] += 1
        return output

    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", apply)
    for command in (in_asv, checked, timed):
        assert "the call changed its input, and is not in place" in command(CELL)[0]


@pytest.mark.parametrize("directions", [(FORWARD,), (BACKWARD,), (FORWARD, BACKWARD)])
def test_both_commands_time_and_check_by_one_class(on_cpu, directions, monkeypatch):
    asked = []

    class Timed(timed_cell.TimedCell):
        def __init__(self, cell, directions, *, copies=False, **options):
            asked.append((cell, directions, copies))
            super().__init__(cell, directions, copies=copies, **options)

        def checked(self):
            return [[1.0] for _ in super().checked()]

    monkeypatch.setattr(timed_cell, "TimedCell", Timed)
    monkeypatch.setattr(Cell, "directions", directions)
    for direction in directions:
        (outcome,) = cell_outcomes.measure_cells([CELL], direction).values()
        assert outcome == cell_outcomes.Outcome((1.0,), (1.0,), roofline=(1.0,))
    answer = measure._measure(_subjects, [CELL], host=False, seed=1)
    assert [samples for *_, samples in answer["timings"]] == [[1.0] for _ in directions]
    assert asked == [*((CELL, (each,), True) for each in directions), (CELL, directions, False)]


def test_the_check_says_what_each_right_call_puts_on_the_stream(on_cpu, monkeypatch):
    answer = measure._check(_subjects, [CELL], exact=False)
    assert [[metric, params] for metric, params, _ in answer["nodes"]] == [
        [metric, list(CELL.params)] for metric in CELL.metrics.values()
    ]
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", erasing(plain.apply_rotary_pos_emb))
    wrong = measure._check(_subjects, [CELL], exact=False)
    assert not [metric for metric, *_ in wrong["nodes"] if metric.startswith("rope.Forward")]
