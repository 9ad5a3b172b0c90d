"""What calls launch, with nothing compiled: features, and that the list of forms reaches all."""

import types

import pytest

from benchmarks._engine.compare import exact
from benchmarks._engine.machine_code import uncompiled
from benchmarks._engine.machine_code.stub_driver import Launch, StubDriver
from benchmarks._engine.subject import BACKWARD, DEFAULT, FORWARD, load
from benchmarks._engine.system import process
from benchmarks._subjects.rope.cells import eager_cell


def launch(*, constants, signature, aligned=(), warps=4, **metadata):
    """A launch of a kernel with these arguments; those in capitals are constants by declaration."""
    names = [*constants, *signature]
    params = [
        types.SimpleNamespace(name=name, num=index, is_constexpr=name.isupper())
        for index, name in enumerate(names)
    ]
    source = types.SimpleNamespace(
        fn=types.SimpleNamespace(__name__="rotate", arg_names=names, params=params),
        constants={(names.index(name),): value for name, value in constants.items()},
        signature=signature,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    about = types.SimpleNamespace(num_warps=warps, **metadata)
    return Launch(types.SimpleNamespace(source=source, metadata=about), (1, 1, 1), ())


def test_what_selects_code_comes_in_pairs_and_all_else_alone():
    texts = uncompiled.features(
        [
            launch(
                constants={"D": 64, "stride": 1, "bias": None},
                signature={"x": "*fp16", "n": "i32"},
                aligned=("x",),
            )
        ]
    )
    alone = {text for text in texts if " with " not in text}
    assert alone == {
        *("rotate: D=64", "rotate: bias=None", "rotate: x is *fp16", "rotate: warps=4"),
        *("rotate: fusion=True", "rotate: launches=one"),
        *("rotate: stride=1", "rotate: x is *fp16, aligned", "rotate: n is i32"),
    }
    selecting = 6
    assert len(texts - alone) == selecting * (selecting - 1) // 2
    assert "rotate: D=64 with warps=4" in texts
    assert not any("stride" in text or "aligned" in text for text in texts - alone)


@pytest.mark.parametrize(
    "changed",
    [{"warps": 8}, {"enable_fp_fusion": False}, {"constants": {"D": 128}}, {"aligned": ("x",)}],
)
def test_launches_that_differ_have_other_features(changed):
    like = {"constants": {"D": 64}, "signature": {"x": "*fp16"}}
    assert uncompiled.features([launch(**like)]) != uncompiled.features([launch(**like | changed)])
    both = uncompiled.features([launch(**like), launch(**like)])
    assert "rotate: launches=several" in both


@pytest.fixture(scope="module")
def reach():
    """Of this package, on one architecture; some 15 seconds of two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        subject = load(DEFAULT)
        code = exact.compiled(subject, process.ROOT, subject.TARGET, (), ())
    return code.reach


def test_no_call_fails(reach):
    assert not reach["listed"]["failures"] and not reach["dense"]["failures"]


def test_listed_calls_reach_all_that_users_can_launch(reach):
    """If this fails, add calls to the list that launch what is missing."""
    missing = reach["dense"]["features"] - reach["listed"]["features"]
    assert not missing, sorted(missing)[:10]
    assert len(reach["listed"]["features"]) > 5000, "features are of calls that were made"


MOST = {
    **{("sbhd", 64): 1, ("bshd", 64): 1, ("sbhd", 6): 5, ("bshd", 6): 3},
    **{("sbhd", 2): 7, ("bshd", 2): 5, ("sbhd", 1): 7, ("bshd", 1): 7},
}


def variants_of(calls):
    """Variants that calls of a format and heads have in all, by direction; in another process."""
    uncompiled.compile_each_kernel_once()
    driver = StubDriver.activate("sm_90")
    sizes = [(seq_len,) * n for seq_len in (1, 2, 3, 16, 17, 100, 256, 300) for n in range(1, 6)]
    variants = {(call, direction): set() for call in calls for direction in (FORWARD, BACKWARD)}
    for ((format, heads), direction), kernels in variants.items():
        for lengths in sizes:
            cell = eager_cell(f"angles-{format}-bf16-{heads}x112", lengths)
            uncompiled.call(driver, cell, direction)
            kernels.update(launch.kernel for launch in driver.launches)
    return {key: len(kernels) for key, kernels in variants.items()}


def test_lengths_share_variants_and_batches_have_few(tmp_path, monkeypatch):
    """Each costs its user a second once.

    Few heads share a program with those of other sequences, as many as a power of two up to 16:
    one variant for each, of one token and of several. These are all, whatever the batches are.
    """
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    environment = {"TRITON_CACHE_DIR": str(tmp_path)}
    counts = process.call(variants_of, list(MOST), env=environment)
    assert all(1 <= count <= MOST[call] for (call, _), count in counts.items()), counts
