"""The calls of all cells and their check, and the cells of the package's other paths."""

import pytest
import torch

import rope_triton
from benchmarks import _subjects, paths
from benchmarks._compare import measure
from benchmarks._measure import cell_outcomes, inputs, timed_cell
from benchmarks._subjects.rope import angles as _angles
from benchmarks._subjects.rope import forms, formula, grid, package_calls
from benchmarks._subjects.rope.forms import BACKWARD, FORWARD
from benchmarks._subjects.rope.grid import PathCell
from tests.measure import samples
from tests.measure.test_cell_outcomes import CELLS as PLAIN
from tests.package import plain

FULL, SMALL = (grid.path_cells(grid.PATH_GRIDS[name]) for name in ("full", "small"))
# Of 4 or more tokens, so that every sequence of a batch has one.
TINY = {"float32": 1 / 4, "bfloat16": 1 / 8}
CELLS = [PathCell(path, mib, dtype) for path in forms.PATHS for dtype, mib in TINY.items()]
# What the first commits had no function or argument for; heads of any form they rotated.
LACKED = [cell for cell in CELLS if cell.path not in ("partial", "head-96", "then-read")]
TIMED = [(cell, direction) for cell in [*PLAIN, *CELLS] for direction in cell.directions]

all_paths = pytest.mark.parametrize("path", forms.PATHS)
all_timed = pytest.mark.parametrize(("cell", "direction"), TIMED, ids=str)


def angles(cell, first=0):
    return _angles.by_channel(_angles.exact(first, cell.positions, cell.hidden_size).float())


def random(cell):
    return torch.randn(cell.shape, dtype=getattr(torch, cell.dtype))


# --- the cells ------------------------------------------------------------------------------------


def test_there_are_few_timings():
    assert sum(len(cell.directions) for cell in SMALL) == 60
    assert set(SMALL) < set(FULL) and len(set(FULL)) == len(FULL) == 88
    only_forward = {cell.path for cell in FULL if BACKWARD not in cell.directions}
    assert only_forward == {"tables-inplace", "then-read"}
    assert paths.Forward.params[0] == tuple(forms.PATHS)
    assert set(forms.PATHS) - set(paths.Backward.params[0]) == only_forward


@pytest.mark.parametrize("cell", FULL, ids=str)
def test_size_is_about_what_it_is_called(cell):
    given = torch.empty(cell.shape, dtype=getattr(torch, cell.dtype), device="meta")
    assert cell.bytes_moved == (4 if cell.path == "then-read" else 2) * given.nbytes
    assert 0.94 * 2**20 < given.nbytes / cell.mib <= 2**20
    assert len(given.shape) == len(cell.format)
    assert given.shape[formula.seq_dim(cell)] in (sum(cell.lengths), cell.lengths[0])


def test_lengths_starts_and_positions():
    unequal = PathCell("thd", 256, "bfloat16")
    assert unequal.lengths == (*(2**n for n in range(13, -1, -1)), 1)
    assert unequal.positions == 2**13
    short = PathCell("thd-short", 256, "bfloat16")
    assert short.lengths == (27,) * 2401
    assert (short.positions, short.shape) == (27, (2401 * 27, 16, 128))
    starts = PathCell("starts", 32, "bfloat16")
    assert starts.starts == (0, 1000, 2000, 3000) and starts.lengths == (512,) * 4
    assert starts.positions == 3512
    assert set(PathCell("tables", 32, "bfloat16").starts) == {0}


def test_cells_of_both_grids_are_told_apart_by_their_values():
    for cell in [*grid.all_cells("small"), *FULL]:
        assert grid.cell_of(cell.suite, grid.subject_params(cell)) == cell
    assert grid.all_cells("full")[-len(FULL) :] == FULL


# --- the calls and their check --------------------------------------------------------------------


@pytest.fixture
def without_gpu(monkeypatch, one_thread):
    """Cells are called with CPU tensors, in plain PyTorch."""
    plain.install(monkeypatch)
    monkeypatch.setattr(inputs, "DEVICE", "cpu")


def called(cell, direction):
    """The call, its output and what that should follow from."""
    call, x = cell.call("cpu"), random(cell)
    given = x.clone()
    (rotate,) = timed_cell.calls(call, direction, [x])
    return call, rotate(), given


@all_paths
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_the_package_passes(path, direction, monkeypatch, device):
    """In the interpreter where there is no GPU, whose sines of long angles are wrong."""
    monkeypatch.setattr(grid, "_START_STEP", 10)
    cell = PathCell(path, 1 / 8, "bfloat16")
    if direction not in cell.directions:
        return
    monkeypatch.setattr(inputs, "DEVICE", device)
    call, x = cell.call(device), random(cell).to(device)
    (rotate,) = timed_cell.calls(call, direction, [x])
    timed_cell.check_once(call, direction, rotate, x)


@all_timed
def test_right_output_passes_and_mistakes_are_found(without_gpu, cell, direction):
    call, output, given = called(cell, direction)
    package_calls.check(output, given, call, direction)
    parts = output if isinstance(output, tuple) else (output,)

    def refused(*wrong, given=given):
        with pytest.raises(AssertionError):
            package_calls.check(
                wrong if isinstance(output, tuple) else wrong[0], given, call, direction
            )

    refused(*(part.roll(1, dims=-1) for part in parts))
    refused(*(part.roll(1, dims=-2) for part in parts))
    refused(*(part.double() for part in parts))
    for index in range(len(parts)):  # every part is checked, to its end
        wrong = [part.clone(memory_format=torch.contiguous_format) for part in parts]
        for mistake in (wrong[index].view(-1)[-1] + 0.25, float("nan")):
            wrong[index].view(-1)[-1] = mistake
            refused(*wrong)
    unrotated = call.cotangent(given) if direction == FORWARD else call.operand(given)
    refused(*(unrotated if isinstance(unrotated, tuple) else (unrotated,)))
    right = _angles.exact
    for wrong_angles in (lambda _, *size: right(1, *size), lambda *size: -right(*size)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_angles, "exact", wrong_angles)
            _, turned, x = called(cell, direction)
        refused(*(turned if isinstance(turned, tuple) else (turned,)), given=x)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
@pytest.mark.parametrize("cell", PLAIN[:2], ids=str)
def test_every_chunk_is_checked(without_gpu, cell, direction, monkeypatch):
    chunks = []
    rotate = formula._rotated

    def counted(x, cos, sin, call, direction):
        chunks.append(max(cos.shape[:2]))
        return rotate(x, cos, sin, call, direction)

    monkeypatch.setattr(formula, "CHECKED_BYTES", 16 * cell.bytes_moved // cell.seq_len)
    monkeypatch.setattr(formula, "_rotated", counted)
    call, output, given = called(cell, direction)
    package_calls.check(output, given, call, direction)
    assert chunks == [16, 16, 5]
    for position in (0, 15, 16, 31, 32, 36):
        wrong = output.clone()
        wrong.select(cell.format.index("s"), position)[1, -1, 0] += 0.25
        with pytest.raises(AssertionError):
            package_calls.check(wrong, given, call, direction)


def test_positions_begin_anew_with_each_packed_sequence_or_at_its_start(without_gpu):
    packed, starts = PathCell("thd", 1 / 8, "float32"), PathCell("starts", 1 / 4, "float32")
    call, _, given = called(packed, FORWARD)
    assert packed.lengths == (2, 1, 1)
    running = plain.apply_rotary_pos_emb(given[:, None], angles(PathCell("thd", 1, "float32")))
    with pytest.raises(AssertionError):
        package_calls.check(running[:, 0], given, call, FORWARD)
    call, _, given = called(starts, FORWARD)
    from_0 = plain.apply_rotary_pos_emb(given, angles(starts), "bshd")
    with pytest.raises(AssertionError):
        package_calls.check(from_0, given, call, FORWARD)


def test_a_new_tensor_is_not_in_place(without_gpu, monkeypatch):
    def elsewhere(x, cos, sin, inplace):
        return plain.apply_rotary_emb(x, cos, sin)

    monkeypatch.setattr(rope_triton, "apply_rotary_emb", elsewhere)
    with pytest.raises(AssertionError, match="did not rotate in place"):
        called(PathCell("tables-inplace", 1 / 4, "float32"), FORWARD)


def test_what_reads_the_output_next_has_a_memory_of_its_own(without_gpu):
    """A block that a later call writes again would stay in L2, whatever the kernel does."""
    cell = PathCell("then-read", 1 / 4, "float32")
    call, x = cell.call("cpu"), random(cell)
    outputs = [call.forward(x) for _ in range(3)]
    copies = [*outputs, *call._read, *call.copies(x), x]
    assert len({each.data_ptr() for each in copies}) == len(copies) == 9
    assert all(map(torch.equal, outputs, call._read))
    assert all(torch.equal(each, x) for each in call.copies(x))


@all_paths
def test_cotangents_lie_in_one_tensor(without_gpu, path):
    cell = PathCell(path, 1 / 4, "float32")
    call, x = cell.call("cpu"), random(cell)
    output, cotangent = call.forward(call.operand(x.clone())), call.cotangent(x)
    assert len(call.split(output)) == len(call.split(cotangent)) == len(call.rotated)
    given = cotangent if isinstance(cotangent, tuple) else (cotangent,)
    assert all(each.is_contiguous() for each in given)
    for part, grad in zip(call.split(output), call.split(cotangent), strict=True):
        assert part.shape == grad.shape
        assert grad.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert sum(grad.numel() for grad in call.split(cotangent)) == x.numel()


# --- samples --------------------------------------------------------------------------------------


@pytest.fixture
def on_cpu(without_gpu, monkeypatch, tmp_path):
    """Measures as on a GPU, but CPU tensors, plain PyTorch and made-up samples."""
    samples.install(monkeypatch, tmp_path / "progress", sets=3)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_cells_are_measured(on_cpu, direction, tmp_path):
    for suite in (PLAIN, CELLS):
        cells = [cell for cell in suite if direction in cell.directions]
        outcomes = cell_outcomes.measure_cells(cells, direction)
        made_up = cell_outcomes.Outcome((1e-6,) * 7, (1e-6,) * 7, roofline=(1e-6,) * 3)
        assert outcomes == dict.fromkeys(cells, made_up)
        said = f"{cells[0].suite} {direction}: {len(cells)}/{len(cells)} cells"
        assert said in (tmp_path / "progress").read_text()


def in_place_wrong_from(number):
    """Rotates in place, by the wrong angle from a call on."""
    calls = []

    def rotate(x, cos, sin, inplace):
        calls.append(x)
        turned = sin if len(calls) < number else -sin
        return plain.apply_rotary_emb(x, cos, turned, inplace=inplace)

    return rotate


@pytest.mark.parametrize("number", [1, 9, 11])
def test_wrong_output_in_place_has_no_speed(on_cpu, number, monkeypatch):
    """What was given is overwritten by the time that it is checked: the last calls decide."""
    monkeypatch.setattr(rope_triton, "apply_rotary_emb", in_place_wrong_from(number))
    cell = PathCell("tables-inplace", 1 / 4, "float32")
    (outcome,) = cell_outcomes.measure_cells([cell], FORWARD).values()
    assert not outcome.latency
    assert "AssertionError: Tensor-likes are not close!" in outcome.error


NOT_YET = NotImplementedError("tensor_format='thd' is not implemented yet")


def refuse_what_is_new(t, freqs, tensor_format, start_positions=None, cu_seqlens=None):
    """The function as it was before there were packed sequences and starts."""
    if tensor_format == "thd" or start_positions is not None:
        raise NOT_YET
    return plain.apply_rotary_pos_emb(t, freqs, tensor_format)


@pytest.fixture
def old(on_cpu, monkeypatch):
    """A commit that has none of the paths."""
    monkeypatch.setattr(rope_triton, "apply_rotary_pos_emb", refuse_what_is_new)
    for name in plain.FUNCTIONS.keys() - {"apply_rotary_pos_emb"}:
        monkeypatch.delattr(rope_triton, name)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_commit_without_the_paths_is_not_available(old, direction):
    cells = [cell for cell in LACKED if direction in cell.directions]
    for outcome in cell_outcomes.measure_cells(cells, direction).values():
        assert outcome.unavailable.startswith("this commit cannot: ")
        assert not outcome.error and not outcome.latency


# --- in a comparison's process --------------------------------------------------------------------


@all_paths
def test_process_checks_and_times_every_direction(on_cpu, path, monkeypatch):
    cell = PathCell(path, 1 / 4, "float32")
    checked = measure._check(_subjects, [cell], exact=False)
    assert not checked["errors"] and not checked["unavailable"]
    timed = measure._measure(_subjects, [cell], host=False, seed=0)["timings"]
    expected = [f"paths.{each.capitalize()}.track_latency" for each in cell.directions]
    assert [metric for metric, _, _ in timed] == expected
    assert all(params == [path, "0.25", "float32"] for _, params, _ in timed)
