"""A comparison as JSON: it is read as it was written, and what is bad is refused."""

import dataclasses
import json

import pytest

from benchmarks._report import from_json, markdown, to_json
from tests.comparisons import CASES, failing, without_gpu


@pytest.mark.parametrize(("make", "answer"), CASES.values(), ids=CASES)
def test_json_round_trip(make, answer):
    made = make()
    document = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert (document["schema"], document["answer"]) == (3, answer.value)
    assert from_json(document) == made
    assert markdown(from_json(document)) == markdown(made)


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
    ],
)
def test_bad_json(change, message):
    document = json.loads(json.dumps(to_json(failing())))
    change(document)
    with pytest.raises(ValueError, match=message):
        from_json(document)


@pytest.mark.parametrize("document", [None, [], "x"])
def test_json_that_is_no_object(document):
    with pytest.raises(ValueError, match="a comparison is an object"):
        from_json(document)


def test_what_cannot_be_read_is_not_written():
    with pytest.raises(ValueError, match="comparison.minutes must be a finite number"):
        to_json(dataclasses.replace(without_gpu(), minutes=float("nan")))
