"""A comparison as JSON: it is read as it was written, and what is bad is refused."""

import dataclasses
import functools
import json

import pytest

from benchmarks._engine.system.untrusted import plain
from benchmarks._engine.verdict.schema import from_json, to_json
from tests.comparisons import CASES, failing, without_gpu


@pytest.mark.parametrize(("make", "answer"), CASES.values(), ids=CASES)
def test_json_round_trip(make, answer):
    made = make()
    text = json.dumps(to_json(made), allow_nan=False)
    document = json.loads(text)
    assert (document["schema"], document["answer"]) == (6, answer.value)
    assert from_json(document) == made


@functools.cache
def text_of(make):
    return json.dumps(to_json(make()))


def changed(*path):
    """Sets the last of ``path`` at the place before it."""
    *parents, last, value = path

    def change(document):
        for key in parents:
            document = document[key]
        document[last] = value

    return change


def failed_error(document):
    """The first exact value that failed."""
    return next(each for each in document["exact"] if each["answer"] == "fail")


def every_timing_slower(document):
    """What is +100 %, certainly, and said to pass."""
    doubled = {"effect": 1.0, "low": 0.9, "upper": 1.05, "high": 1.1, "p_slower": 0.001}
    for family in document["families"].values():
        for timing in family["timings"]:
            timing |= doubled | {"answer": "pass", "change": "none"}
    document["answer"] = "pass"


def of_unit(document, name):
    return next(each for each in document["exact"] if each["unit"]["name"] == name)


def of_another_family(document):
    families = document["families"]
    families["host"], families["gpu"] = families["gpu"], families["host"]


def without_a_timing(document):
    """The median and the worst, which reports say of a family, need one."""
    document["families"]["gpu"]["timings"] = []
    document["families"]["gpu"]["control"]["timings"] = 0


TIMED = plain(failing().timings[0].key)
ERROR = {"metric": "host.Error.track_error", "params": []}
SETS = functools.partial(changed, "families", "gpu", "timings", 0)
CONTROL = functools.partial(changed, "families", "gpu", "control")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("schema", 5), "schema 5 is unknown, this version reads 6"),
        (lambda document: document.pop("schema"), "schema None is unknown"),
        (lambda document: document.pop("unmeasured"), r"comparison lacks \['unmeasured'\]"),
        (changed("extra", 1), r"comparison has unknown \['extra'\]"),
        (changed("answer", "pass"), "answer is 'pass', the rest says 'fail'"),
        (changed("rounds", 125), "comparison.rounds must be a whole number from 0 to 124"),
        (changed("rounds", 64), "64 rounds, 0 of them added"),
        (changed("extension", 4), "12 rounds, 4 of them added"),
        (changed("represented", [TIMED]), "is represented, and timed or the same"),
        (changed("minutes", float("nan")), "comparison.minutes must be a finite number.* got nan"),
        (changed("minutes", -1), "comparison.minutes must be a finite number from 0"),
        (changed("discarded", ["x" * 2001]), r"discarded\[0\] must be a text of up to 2000"),
        (changed("base", "sha", "main"), "base.sha must be a text that matches"),
        (changed("rules", "min_effect", 0.9), "it was judged by other rules"),
        (changed("identical", [ERROR]), "'host.Error.track_error' is no timing"),
        (SETS("base", 0), r"timings\[0\].base must be a finite number from 1e-12 to 3600"),
        (SETS("answer", "maybe"), r"answer must be one of \['pass', 'fail', 'cannot tell'\]"),
        (SETS("change", ["none"]), "change must be one of"),
        (SETS("key", "metric", "x.y.z"), "no unit for the metric 'x.y.z'"),
        (SETS("key", "params", ["</pre>"]), r"params\[0\] must be a text that matches"),
        (SETS("key", "params", ["a\n"]), r"params\[0\] must be a text that matches"),
        (SETS("key", "params", ["x" * 81]), r"params\[0\] must be a text that matches"),
        (SETS("key", "params", ["1"] * 7), "params must be a list of 0 to 6 items"),
        (SETS("answer", "cannot tell"), "the answer is 'cannot tell' and 'none'"),
        (SETS("change", "faster"), "the answer is 'pass' and 'faster'"),
        (SETS("low", 0.5), "the interval does not hold its effect"),
        (SETS("high", 0.0), "the interval does not hold its effect"),
        (SETS("p_slower", 1.5), "p_slower must be a finite number from 0 to 1"),
        (SETS("floor", 0.001), "the floor is below the least effect"),
        (SETS("mde", 0.001), "or above the minimum detectable effect"),
        (SETS("rounds", 8), "10 to 12 rounds was judged, not 8"),
        (SETS("rounds", 11), "10 to 12 rounds was judged, not 11"),
        (changed("rounds", 0), "10 to 0 rounds was judged, not 12"),
        (every_timing_slower, "the answer is 'pass' and 'none', its numbers say 'fail'"),
        (of_another_family, "host.Call.track_forward does not belong to gpu"),
        (
            lambda document: document["families"].update(GPU=document["families"].pop("gpu")),
            "a family is one of .*, got 'GPU'",
        ),
        (CONTROL("timings", 95), "the control of gpu counts 95 timings"),
        (CONTROL("failed", 193), "and 193 failures"),
        (without_a_timing, "the control of gpu counts 0 timings"),
        (changed("families", "gpu", "mean", None), "gpu has no mean and spread of the 96 timings"),
        (changed("families", "gpu", "spread", None), "gpu has no mean and spread of the 96"),
        (changed("families", "gpu", "mean", "timings", 3), "gpu has no mean and spread of the 96"),
        (changed("families", "gpu", "mean", "low", 0.9), "the interval of the mean of gpu does"),
        (changed("exact", 0, "unit", "gates", True), "has another unit or answer"),
        (changed("exact", 0, "answer", "fail"), "has another unit or answer by its values"),
        (changed("exact", 0, "head", -1.5), "head of .* must be None or registers/thread"),
        (changed("exact", -1, "base", -1), "base of .* must be None or seconds"),
        (lambda document: of_unit(document, "share").update(head=7.0), "must be None or share"),
        (lambda document: failed_error(document).update(answer="pass"), "another unit or answer"),
        (lambda document: document["exact"].append(document["exact"][0]), "comes twice"),
        # Beside timings narrow accesses pass; without any they fail, whatever the document says.
        (changed("families", {}), "narrow_share sm_90 .* has another unit or answer by its values"),
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


def test_what_cannot_be_read_is_not_written():
    with pytest.raises(ValueError, match="comparison.minutes must be a finite number"):
        to_json(dataclasses.replace(without_gpu(), minutes=float("nan")))
