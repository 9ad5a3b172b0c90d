"""The words of a report: how verdicts, numbers and names read, and that hostile text stays text."""

import dataclasses
import html
import re
from collections import Counter

import pytest

from benchmarks._engine.report.github_markdown import code, escaped
from benchmarks._engine.report.markdown import markdown
from benchmarks._engine.report.terminal import terminal
from benchmarks._engine.verdict.note import Note
from benchmarks._engine.verdict.rules import Answer, Key, Spread
from benchmarks._engine.verdict.schema import Side
from tests.comparisons import (
    codegen,
    comparison,
    fast_in_half_precision,
    gpu_family,
    host_family,
    passing,
    slow_in_one_format,
    subjects,
)

# --- verdicts -------------------------------------------------------------------------------------


def sentence(made):
    """The verdict in the terminal, on one line."""
    return " ".join(terminal(made).split("\n\n")[0].split())


def test_a_failure_says_how_many_by_how_much_and_what_became_faster():
    def both_ways(key):
        return slow_in_one_format(key) + fast_in_half_precision(key)

    mixed = gpu_family(slowdown=both_ways)
    changes = Counter(timing.change for timing in mixed.timings)
    most = max(t.effect for t in mixed.timings if t.change == "slower")
    says = sentence(comparison({"gpu": mixed, "host": host_family(slowdown=-0.5)}, ()))
    assert changes["slower"] and changes["faster"]
    assert says == (
        f"FAIL: {changes['slower']} of 96 changed GPU timings slower by up to {100 * most:.2f} %, "
        f"{changes['faster']} faster; 4 of 4 changed host timings faster."
    )


def test_same_machine_code_never_reads_as_a_slowdown():
    gpu = gpu_family(slowdown=slow_in_one_format)
    slow = {t.key for t in gpu.timings if t.answer is Answer.FAIL}
    assert len(slow) > 3
    made = comparison({"gpu": gpu}, (), identical=frozenset(subjects("small")))
    assert made.answer is Answer.CANNOT_TELL
    says = f"{len(slow)} timings slower although the code is the same"
    assert says in sentence(made)
    text = markdown(made)
    assert f"{len(slow)} slower with the same code, " in text
    assert "🟪" in text and "🟥" not in text and "SLOWER" not in terminal(made)
    # Next to a timing that did change, it does not hide it.
    made = dataclasses.replace(made, identical=frozenset(slow) - {sorted(slow)[0]})
    assert made.answer is Answer.FAIL
    assert f"1 of {96 - len(slow) + 1} changed GPU timings slower by" in sentence(made)


def test_what_was_not_measured_is_a_reason_and_is_shown():
    change = "triton: the base asks for triton>=3.6, the head for triton>=3.7; not measured"
    made = comparison({}, (), same_sources=True, unmeasured=(Note("requirement", change),))
    assert made.answer is Answer.CANNOT_TELL
    assert sentence(made) == "CANNOT TELL: 1 difference of the versions not measured."
    assert f"not measured: {change}" in " ".join(terminal(made).split())
    assert "Not measured:" in markdown(made) and "triton&#62;=3.7" in markdown(made)


def test_what_was_not_timed_for_its_machine_code_is_counted():
    everything = subjects("small")
    timed = gpu_family(only=everything[:20])
    code = frozenset(everything[10:])
    made = comparison({"gpu": timed, "host": host_family()}, codegen(), identical=code)
    assert len(made.untimed) == 76 and made.answer is Answer.PASS
    assert "the same code in 86 timings" in sentence(made)
    text = markdown(made)
    assert "76 not timed: same code" in text
    assert "86 of 96 timings run the very same code" in text


def test_what_another_size_stands_for_is_counted():
    surface = Key("surface.Forward.track_latency", ("qk-bshd-bf16-32x128", "4"))
    made = dataclasses.replace(passing(), represented=frozenset({surface}))
    says = "1 not timed: the same change of machine code was timed at another size"
    assert says in " ".join(markdown(made).split())


def test_without_a_measurement_nothing_is_judged():
    assert sentence(comparison({}, ())) == "CANNOT TELL: nothing was judged."


def test_a_control_that_differs_from_itself_is_a_reason():
    says = r"CANNOT TELL: \d+ of 96 GPU timings differ from themselves in the A/A control.*"
    assert re.fullmatch(says, sentence(comparison({"gpu": gpu_family(noise=3e-4, steps=0.02)}, ())))


def test_a_head_that_varies_more_is_named():
    family = dataclasses.replace(gpu_family(), spread=Spread(0.002, 0.006, 0.0))
    made = comparison({"gpu": family}, ())
    assert made.answer is Answer.CANNOT_TELL
    assert sentence(made) == (
        "CANNOT TELL: the head's processes vary more than the base's, by 0.60 % of a GPU timing "
        "instead of 0.20 %: it may be slower in some of them."
    )
    assert "| 🟡 | GPU&nbsp;time |" in markdown(made)


# --- hostile text ---------------------------------------------------------------------------------


HOSTILE = 20 * (
    "](http://evil) @owner #1 <img src=x> `a` | *b* ```\n# c \x1b[31m\u202e\ud800www.evil.com</pre>"
)


def test_hostile_text_stays_text():
    made = comparison(
        {"gpu": gpu_family()},
        (),
        base=Side(HOSTILE, ""),
        machine={HOSTILE + str(i): HOSTILE for i in range(50)} | {"gpu": HOSTILE, "torch": HOSTILE},
        clocks={HOSTILE: HOSTILE},
        **dict.fromkeys(("notes", "unmeasured", "wrong"), (Note("failed", HOSTILE),) * 50),
        discarded=(HOSTILE,) * 50,
        reproduce=HOSTILE,
    )
    text = markdown(made)
    assert len(text.encode()) < 60_000
    for bad in ("<img", "](", "@owner", "```", "*b*", "\x1b", "\u202e", "://", "www.evil", "\n# c"):
        assert bad not in text
    assert not re.search(r"(?<!&)#1", text)
    assert set(re.findall(r"</?\w+", text)) == {
        f"<{slash}{tag}"
        for slash in ("", "/")
        for tag in ("code", "pre", "details", "summary", "sub")
    }
    assert text.count("<pre>") == text.count("</pre>") == 1
    rendered = terminal(made)
    assert "\x1b" not in rendered


@pytest.mark.parametrize("mark", ["-", "+", "1.", "12)", "1. -", "    ", " 3. 4)"])
def test_a_text_in_a_list_opens_no_list(mark):
    wrong = [Note("requirement", why) for why in (f"{mark} Fixed.", "1.5 times, 2) as was")]
    text = markdown(comparison({}, (), wrong=tuple(wrong)))
    assert "Wrong on the head:\n\n- Fixed.\n- 1.5 times, 2) as was\n" in text


SHA = "a5c3785ed8d6a35868bc169f07e40e889087fd2e"
# What GitHub links in a comment, by "Autolinked references and URLs" of its documentation, and what
# it draws: each is the text, and what of it must not be left together.
LINKED = {
    "https://github.com": "://",
    "www.github.com": "www.",
    "#26": "#2",
    "GH-26": "GH-",
    SHA: "a5c3785",
    SHA[:7]: "a5c3785",
    SHA[:6] + SHA: "a5c3785",
    f"jlord@{SHA}": "@a",
    "GHSA-v94x-8c25-p7hh": "GHSA-",
    "CVE-2021-44228": "CVE-",
    "@owner": "@o",
    ":tada:": ":tada:",
    "a:tada::+1:": ":+1:",
}


@pytest.mark.parametrize(("text", "linked"), LINKED.items(), ids=list(LINKED))
def test_what_github_would_link_is_taken_apart(text, linked):
    made = escaped(f"see {text}, or ({text})")
    # An entity is no letter to what finds URLs; everything else looks at what entities stand for.
    rendered = made if linked in ("://", "www.") else html.unescape(made)
    assert linked not in rendered and not re.search(r"[0-9a-fA-F]{7}", rendered)
    assert html.unescape(made).replace("\u200b", "") == f"see {text}, or ({text})"


def test_a_command_is_copied_from_a_report_as_it_is():
    command = f"python -m benchmarks compare {SHA} {SHA[::-1]} --rounds 12 # 1:2:3"
    assert html.unescape(code(command, 400)).replace("#\u200b", "#") == f"<code>{command}</code>"
    assert f"<code>python -m benchmarks compare {SHA}" in code(command, 400)
