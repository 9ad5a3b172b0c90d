"""A comparison as JSON: it is read as it was written, and what is bad is refused."""

import dataclasses
import functools
import itertools
import json

import pytest

from benchmarks import codegen
from benchmarks._report import from_json, markdown, to_json
from benchmarks._verdict.rules import UNITS, Subject, judge_exact
from tests.comparisons import CASES, failing, passing, without_gpu


@pytest.mark.parametrize(("make", "answer"), CASES.values(), ids=CASES)
def test_json_round_trip(make, answer):
    made = make()
    document = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert (document["schema"], document["answer"]) == (3, answer.value)
    assert from_json(document) == made
    assert markdown(from_json(document)) == markdown(made)


def test_a_comparison_without_a_gpu_has_the_values_of_all_architectures():
    suites = ("codegen.Codegen.", codegen.Codegen), ("codegen.Variants.", codegen.Variants)
    exact = tuple(
        judge_exact(Subject(metric, tuple(map(str, call))), 1.0, 1.0)
        for prefix, suite in suites
        for metric in UNITS
        if metric.startswith(prefix)
        for call in itertools.product(*suite.params)
    )
    made = dataclasses.replace(without_gpu(), exact=exact)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


def changed(path, value):
    def change(document):
        *parents, last = path
        for key in parents:
            document = document[key]
        document[last] = value

    return change


def removed(key):
    return lambda document: document.pop(key)


TIMING = ("families", "gpu", "timings", 0)
CONTROL = ("families", "gpu", "control")


def exact_error(document):
    """The first value of an error, which got worse and failed."""
    return next(each for each in document["exact"] if each["answer"] == "fail")


def every_timing_slower(document):
    """What is +100 %, certainly, and said to pass."""
    doubled = {"effect": 1.0, "low": 0.9, "upper": 1.05, "high": 1.1, "p_slower": 0.0}
    for family in document["families"].values():
        for timing in family["timings"]:
            timing |= doubled | {"answer": "pass", "change": "none"}
    document["answer"] = "pass"


@functools.cache
def text_of(make):
    return json.dumps(to_json(make()))


def document_of(family):
    return json.loads(text_of(failing))["families"][family]


def without_timings(document):
    document["families"]["host"]["timings"] = []


def of_another_family(document):
    families = document["families"]
    families["host"], families["gpu"] = families["gpu"], families["host"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(["schema"], 1), "schema 1 is unknown, this version reads 3"),
        (changed(["schema"], True), "schema True is unknown"),
        (removed("schema"), "schema None is unknown"),
        (removed("grid"), r"comparison lacks \['grid'\]"),
        (changed(["extra"], 1), r"comparison has unknown \['extra'\]"),
        (changed(["answer"], "pass"), "answer is 'pass', the rest says 'fail'"),
        (changed(["same_sources"], 0), "comparison.same_sources must be true or false, got 0"),
        (removed("unmeasured"), r"comparison lacks \['unmeasured'\]"),
        (changed(["unmeasured"], [1]), r"unmeasured\[0\] must be a text"),
        (changed(["rounds"], "12"), "comparison.rounds must be a whole number, .* got '12'"),
        (changed(["rounds"], True), "comparison.rounds must be a whole number"),
        (changed(["rounds"], -1), "comparison.rounds must be a whole number, not negative"),
        (changed(["minutes"], float("nan")), "comparison.minutes must be a finite number, got nan"),
        (changed(["minutes"], 10**400), "comparison.minutes must be a finite number"),
        (changed([*TIMING, "effect"], float("inf")), r"timings\[0\].effect must be a finite"),
        (changed([*TIMING, "effect"], None), r"timings\[0\].effect must be a finite number"),
        (changed([*TIMING, "base"], 0), "seconds must be positive"),
        (changed([*TIMING, "answer"], "maybe"), r"answer must be one of \['pass', 'fail', 'cann"),
        (changed([*TIMING, "change"], ["none"]), "change must be one of"),
        (changed([*TIMING, "subject", "metric"], "x.y.z"), "no unit for the metric 'x.y.z'"),
        (changed([*TIMING, "subject", "params"], ["</pre>"]), "a parameter must match"),
        (changed([*TIMING, "subject"], ["rope"]), "subject must be an object"),
        (changed(["notes"], "text"), "comparison.notes must be a list"),
        (changed(["notes"], ["x" * 2001]), r"notes\[0\] must be a text of up to 2000"),
        (changed(["base", "sha"], "main"), "a sha is hexadecimal or empty, got 'main'"),
        (changed(["rules", "alpha"], 0), "alpha must lie between 0 and 1"),
        (changed(["exact", 0, "unit", "gates"], 1), "gates must be true or false, got 1"),
        (changed(["exact", 0, "unit", "gates"], True), "has another unit here"),
        (lambda document: document["exact"].append(document["exact"][0]), "comes twice"),
        (every_timing_slower, "the answer is 'pass' and 'none', its numbers say 'fail'"),
        (changed([*TIMING, "answer"], "cannot tell"), "the answer is 'cannot tell' and 'none'"),
        (changed([*TIMING, "change"], "faster"), "the answer is 'pass' and 'faster'"),
        (changed([*TIMING, "low"], 0.5), "the interval does not hold its effect"),
        (changed([*TIMING, "upper"], -0.5), "the interval does not hold its effect"),
        (changed([*TIMING, "high"], 0.0), "the interval does not hold its effect"),
        (changed([*TIMING, "low"], -1.0), "the interval does not hold its effect"),
        (changed([*TIMING, "p_slower"], 1.5), "a probability is not between 0 and 1"),
        (changed([*TIMING, "p_faster"], -0.5), "a probability is not between 0 and 1"),
        (changed([*TIMING, "floor"], 0.001), "the floor is below the least effect"),
        (changed([*TIMING, "visible"], 0.001), "what could be seen below the floor"),
        (changed([*TIMING, "rounds"], 0), "10 to 12 rounds was judged, not 0"),
        (changed([*TIMING, "rounds"], 8), "10 to 12 rounds was judged, not 8"),
        (changed([*TIMING, "rounds"], 11), "10 to 12 rounds was judged, not 11"),
        (changed([*TIMING, "rounds"], 14), "10 to 12 rounds was judged, not 14"),
        (changed(["rounds"], 0), "10 to 0 rounds was judged, not 12"),
        (changed([*TIMING, "subject", "params"], ["1"] * 7), "has at most 6 parameters"),
        (without_timings, "the control of host is of 4 timings, 0 of which failed, and there"),
        (changed(["families"], {"GPU": document_of("gpu")}), "a family is one of .*, got 'GPU'"),
        (of_another_family, "host.Call.track_forward does not belong to gpu"),
        (changed([*CONTROL, "subjects"], 95), "the control of gpu is of 95 timings"),
        (changed([*CONTROL, "failed"], 193), "193 of which failed"),
        (changed([*CONTROL, "floor"], -1), "a negative floor or noise"),
        (changed([*CONTROL, "noise"], -1), "a negative floor or noise"),
        (changed(["rules", "min_effect"], 0.9), "it was judged by other rules"),
        (lambda document: exact_error(document).update(answer="pass"), "has another answer by"),
        (lambda document: exact_error(document).update(change="none"), "has another answer by"),
        (lambda document: exact_error(document).update(head=None), "has another answer by its"),
        (changed(["exact", 0, "answer"], "fail"), "has another answer by its values"),
        (changed(["exact", 0, "base"], None), "has another answer by its values"),
        (
            changed(["identical"], [{"metric": "host.Call.track_forward", "params": ["bshd"]}]),
            "host.Call.track_forward has no machine code of its own",
        ),
    ],
)
def test_bad_json(change, message):
    document = json.loads(text_of(failing))
    change(document)
    with pytest.raises(ValueError, match=message):
        from_json(document)


@pytest.mark.parametrize("document", [None, [], "x"])
def test_json_that_is_no_object(document):
    with pytest.raises(ValueError, match="a comparison is an object"):
        from_json(document)


@pytest.mark.parametrize("name", ["gpu", "host", "start"])
def test_a_family_is_never_empty(name):
    """Its median, its worst: all that is said of a family needs a timing."""
    document = json.loads(text_of(passing))
    document["families"][name]["timings"] = []
    document["families"][name]["control"]["subjects"] = 0
    with pytest.raises(ValueError, match=f"the control of {name} is of 0 timings"):
        from_json(document)


def test_the_clock_decides_only_where_something_was_timed():
    """Narrow accesses pass beside timings; without any they fail, whatever the document says."""
    document = json.loads(text_of(failing))
    worse = [each for each in document["exact"] if each["change"] == "worse"]
    narrow = [each for each in worse if "narrow_share" in each["subject"]["metric"]]
    assert {each["answer"] for each in narrow} == {"pass"}
    document["families"] = {}
    with pytest.raises(ValueError, match="narrow_share sm_90 .* has another answer by its values"):
        from_json(document)


def test_what_cannot_be_read_is_not_written():
    with pytest.raises(ValueError, match="comparison.minutes must be a finite number"):
        to_json(dataclasses.replace(without_gpu(), minutes=float("nan")))
