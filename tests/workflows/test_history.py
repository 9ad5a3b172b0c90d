"""history.yml: what is measured is stored and on the site, whatever became of a machine."""

from tests.workflows.rig import git

GPU, NO_GPU = "nvidia-h200", "no-gpu-x86_64"
HOSTED = dict.fromkeys(("Store", "Build the site", "Deploy"), "success")


def stored(rig):
    """The machines whose result of main is on the branch."""
    head = git(rig.repository, "rev-parse", "main")[:8]
    listed = git(rig.repository, "ls-tree", "-r", "--name-only", "benchmark-results")
    return {path.split("/")[-2] for path in listed.splitlines() if head in path}


def test_a_machine_that_is_off_leaves_the_others_results_and_a_second_attempt_adds_its_own(rig):
    rig.played = {f"_site measure {GPU}": (3, None)}
    measured = {f"Measure {GPU}": "failure", f"Measure {NO_GPU}": "success"}
    rig.artifact("nightly-answer", 11, {"nightly.json": "of a fork"}, head_repository_id=1)
    rig.artifact("nightly-answer", 9, {"nightly.json": "the answer"})
    rig.artifact("nightly-answer", 10, {"nightly.json": "of another branch"}, head_branch="other")
    assert rig.run("history", "push") == measured | HOSTED
    assert stored(rig) == {NO_GPU} and rig.read("pages/index.html") == "the answer"
    rig.played = {}
    assert rig.run("history", "push", attempt=2) == dict.fromkeys(measured, "success") | HOSTED
    assert stored(rig) == {GPU, NO_GPU}
    # A night without a machine loses nothing.
    before = git(rig.repository, "rev-parse", "benchmark-results^{tree}")
    rig.played = {"_site measure": (3, None)}
    measured = dict.fromkeys(measured, "failure")
    assert rig.run("history", "schedule", run=2, job="store") == measured | {"Store": "success"}
    assert git(rig.repository, "rev-parse", "benchmark-results^{tree}") == before


def test_another_machine_than_its_label_says_measures_nothing(rig):
    rig.played = {"benchmarks machine$": (0, "machine  nvidia-h100")}
    assert set(rig.run("history", "workflow_dispatch", job="measure").values()) == {"failure"}
    assert "python -m benchmarks machine" in rig.calls
    assert not any("_site measure" in call for call in rig.calls)
