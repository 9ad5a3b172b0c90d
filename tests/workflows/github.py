"""GitHub's REST API as far as the workflows ask for it: in a thread, its state in memory.

It refuses what GitHub refuses: a request without the token, a status's description of more than 140
characters, a comment of more than 65,536.
"""

import http.server
import io
import json
import threading
import urllib.parse
import zipfile
from pathlib import Path

from tests.git import git

REPO = "rope-triton/rope-triton"
TOKEN = "the-token"
BOT = {"login": "github-actions[bot]"}


class GitHub:
    def __init__(self, repository: Path, artifacts: Path):
        self.repository, self.artifacts = repository, artifacts
        self.comments, self.issues, self.statuses, self.releases = [], [], [], []
        self.pulls: dict[int, dict] = {}
        self.runs: dict[int, dict] = {}
        self.expired: set[int] = set()  # artifacts
        self.waiting: list[str] = []  # states of the job on the GPU, one for each time it is asked
        self.requests: list[str] = []
        self.texts: list[str] = []  # of every comment and issue, as it was written
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _handler(outer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                url = urllib.parse.urlsplit(self.path)
                path = url.path.removeprefix("/api/v3").removeprefix(f"/repos/{REPO}/")
                outer.requests.append(f"{self.command} {path}")
                query = dict(urllib.parse.parse_qsl(url.query))
                if self.headers["Authorization"] == f"token {TOKEN}":
                    answer = outer.answer(self.command, path, query, body)
                else:
                    answer = None
                status = 404 if answer is None else 422 if answer == "refused" else 200
                raw = isinstance(answer, bytes)
                content = answer if raw else json.dumps(answer).encode()
                self.send_response(status)
                kind = "application/octet-stream" if raw else "application/json; charset=utf-8"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = answer

        return Handler

    def answer(self, method, path, query, body):
        """The content, None where there is nothing, "refused" for what GitHub refuses."""
        if text := (body or {}).get("body", ""):
            self.texts.append(text)
        if len(text) > 65536:
            return "refused"
        match [method, *path.split("/")]:
            case ["POST", "statuses", sha]:
                self.statuses.append({"sha": sha, **body})
                return body if len(body["description"]) <= 140 and len(sha) == 40 else "refused"
            case ["GET", "issues"]:
                state, creator = query.get("state", "open"), query["creator"]
                created = [issue for issue in self.issues if issue["user"]["login"] == creator]
                return [issue for issue in created if state in ("all", issue["state"])]
            case ["POST", "issues"]:
                return self.issue(**body)
            case ["PATCH", "issues", number]:
                return _update(self._entry(self.issues, number=int(number)), body)
            case ["GET", "issues", number, "comments"]:
                return [comment for comment in self.comments if comment["issue"] == int(number)]
            case ["POST", "issues", number, "comments"]:
                return self.comment(int(number), **body)
            case [_, "issues", "comments", number]:
                return _update(self._entry(self.comments, id=int(number)), body or {})
            case ["GET", "pulls"]:
                return [
                    pull
                    for pull in self.pulls.values()
                    if query["head"] == f"{pull['head']['user']['login']}:{pull['head']['ref']}"
                ]
            case ["GET", "pulls", number]:
                return self.pulls.get(int(number))
            case ["GET", "compare", *words]:
                base, head = "/".join(words).split("...")
                line = ("rev-list", "--count", "--left-right", f"{base}...{head}")
                behind, ahead = map(int, git(self.repository, *line).split())
                merge_base = {"sha": git(self.repository, "merge-base", base, head)}
                return {"merge_base_commit": merge_base, "ahead_by": ahead, "behind_by": behind}
            case ["GET", "actions", "runs", _, "jobs"]:
                state = self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0]
                return {"jobs": [{"name": "Test and compare", "status": state}]}
            case ["GET", "actions", "runs", run, "artifacts"]:
                return {"artifacts": self.listed(query.get("name"), int(run))}
            case ["GET", "actions", "artifacts"]:
                return {"artifacts": self.listed(query.get("name"))}
            case ["GET", "actions", "artifacts", number, "zip"]:
                return self._zip(number)
            case ["GET", "actions", "runs", run]:
                page = f"https://github.com/{REPO}/actions/runs/{run}"
                return {"id": int(run), "html_url": page} | self.runs.get(int(run), {})
            case ["GET", "actions", "workflows", name, "runs"]:
                wanted = {"path": f".github/workflows/{name}", "conclusion": query.get("status")}
                wanted |= {key: query[key] for key in ("head_sha", "event") if key in query}
                runs = [run for run in self.runs.values() if run.items() >= wanted.items()]
                return {"total_count": len(runs), "workflow_runs": runs}
            case ["POST", "releases"]:
                self.releases.append(body)
                return body
        return None

    def comment(self, issue, body, title="", user=BOT):
        self.comments.append(
            {"id": 100 + len(self.comments), "issue": issue, "user": user, "body": body}
        )
        return self.comments[-1]

    def issue(self, title, body, user=BOT):
        made = {"number": 50 + len(self.issues), "state": "open", "user": user}
        self.issues.append(made | {"title": title, "body": body})
        return self.issues[-1]

    def _entry(self, all_of, **wanted):
        return next(entry for entry in all_of if entry.items() >= wanted.items())

    def listed(self, name=None, run=None):
        """artifacts/RUN/NUMBER-NAME, as the stand-in of upload-artifact stores them."""
        listed = []
        for path in self.artifacts.glob("*/*-*"):
            number, _, called = path.name.partition("-")
            of, number = int(path.parent.name), int(number)
            if name in (None, called) and run in (None, of):
                made = {
                    "id": number,
                    "name": called,
                    "created_at": f"2026-01-01T00:{number:02}:00Z",
                }
                made |= {"expired": number in self.expired}
                listed.append(made | {"workflow_run": {"id": of, **self.runs.get(of, {})}})
        return sorted(listed, key=lambda artifact: artifact["id"])

    def _zip(self, number):
        (path,) = self.artifacts.glob(f"*/{number}-*")
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
            for member in filter(Path.is_file, sorted(path.rglob("*"))):
                opened.write(member, member.relative_to(path))
        return file.getvalue()


def _update(entry, changes):
    entry.update(changes)
    return entry
