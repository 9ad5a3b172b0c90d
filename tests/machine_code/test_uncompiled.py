"""What calls launch, with nothing compiled: features, and that the list of forms reaches all."""

import types

import pytest

from benchmarks._cells import surface
from benchmarks._machine_code import fingerprint, uncompiled
from benchmarks._machine_code.stub_driver import Launch

TARGET = "sm_90"


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
    found = uncompiled.features(
        [
            launch(
                constants={"D": 64, "stride": 1, "bias": None},
                signature={"x": "*fp16", "n": "i32"},
                aligned=("x",),
            )
        ]
    )
    alone = {each for each in found if " with " not in each}
    assert alone == {
        *("rotate: D=64", "rotate: bias=None", "rotate: x is *fp16", "rotate: warps=4"),
        *("rotate: fusion=True", "rotate: launches=one"),
        *("rotate: stride=1", "rotate: x is *fp16, aligned", "rotate: n is i32"),
    }
    selecting = 6
    assert len(found - alone) == selecting * (selecting - 1) // 2
    assert "rotate: D=64 with warps=4" in found
    assert not any("stride" in each or "aligned" in each for each in found - alone)


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
    patch = pytest.MonkeyPatch()
    patch.delenv("TRITON_INTERPRET", raising=False)
    asked = [(TARGET, which) for which in uncompiled.ENUMERATIONS]
    with patch.context():
        found = fingerprint.compile_all(enumerations=asked).reach
    patch.undo()
    return {which: found[TARGET, which] for which in uncompiled.ENUMERATIONS}


def joined(parts, what):
    for part in parts:
        assert not isinstance(part, Exception), part
    return [each for part in parts for each in part[what]]


def test_no_call_fails(reach):
    assert not joined(reach["forms"], "failures")
    assert not joined(reach["dense"], "failures")


def test_forms_reach_all_that_users_can_launch(reach):
    """If this fails, add forms to the list that launch what is missing."""
    missing = {*joined(reach["dense"], "features")} - {*joined(reach["forms"], "features")}
    assert not missing, sorted(missing)[:10]


def test_every_form_counts(reach):
    """Features are of calls that were made: fewer forms would reach less."""
    assert len({*joined(reach["forms"], "features")}) > 5000
    assert len(surface.cells()) > len(surface.forms())


@pytest.mark.parametrize("asked", [("sm_1", "forms"), (TARGET, "sparse")])
def test_unknown_enumerations_are_refused(asked, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="expected one of"):
        fingerprint.compile_all(enumerations=[asked])
