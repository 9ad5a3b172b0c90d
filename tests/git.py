"""git, in the repositories that tests make."""

import subprocess


def git(path, *arguments):
    """What it prints, by a committer whom no setting of this machine names."""
    settings = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    line = ["git", "-C", path, *settings, *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()


def commit(path, message):
    """Commit every file."""
    git(path, "add", "--all", "--force")
    git(path, "commit", "--quiet", "--message", message)
