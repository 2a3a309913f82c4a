"""A member in the standard library alone, for tests: `python toy_member.py PORT WAY`; WAY is how it misbehaves."""

import fnmatch
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECRET = os.environ.get("GUILDHALL_MEMBER_SECRET", "")
WAY = sys.argv[2] if len(sys.argv) > 2 else ""
JOBS = {}
LOCK = threading.Lock()
SEEN = []


class Problem(Exception):
    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data is not None else {})}


def tools():
    echo = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [
        {"name": "echo", "description": "Says it again.", "inputSchema": echo},
        {"name": "look", "description": "What it sees.", "inputSchema": {"type": "object"}},
        {"name": "die", "description": "Ends it.", "inputSchema": {"type": "object"}},
    ]


def called(name, arguments):
    if name == "die":
        print("out of paper", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "look":
        told = {"env": dict(os.environ), "cwd": str(Path.cwd()), "pid": os.getpid(), "parent": os.getppid()}
        return json.dumps(told)
    return f"echo: {arguments.get('text', '')}"


def job(params):
    found = JOBS.get(params.get("jobId"))
    if found is None:
        raise Problem(-32602, f"there is no job {params.get('jobId')!r}")
    return found


def dispatch(params):
    with LOCK:
        number = f"j-{len(JOBS) + 1}"
        done = "completed" if params["task"].startswith("quick") else "running"
        JOBS[number] = {"jobId": number, "status": done, "config": params.get("config"), **params}
    return {"jobId": number}


def listed(params):
    detailed = params.get("detail") == "detailed"
    rows = [j for j in JOBS.values() if fnmatch.fnmatchcase(j["description"], params.get("filter", "*"))]
    names = ("jobId", "status", "description", "summary") if detailed else ("jobId", "status")
    return {"jobs": [{name: row.get(name) for name in names} for row in rows]}


def status(params):
    found = job(params)
    decided = [{"question": "which?", "decision": "that", "reasoning": "it is near"}]
    return {
        "jobId": found["jobId"],
        "status": found["status"],
        "description": found["description"],
        "summary": None,
        "questions": ["Which one?\n\nThe red one?"],
        "decisions": decided,
        "error": None,
        "startedAt": "2026-11-16T05:00:00Z",
        "completedAt": None,
        "extra": 1,
    }


def result(params):
    found = job(params)
    if found["status"] != "completed":
        data = {"jobId": found["jobId"], "status": found["status"]}
        raise Problem(-32000, f"the job is {found['status']}", data)
    return {"jobId": found["jobId"], "output": f"done: {found['task']}", "artifacts": ["artifacts/report.md"]}


def cancel(params):
    found = job(params)
    found["status"] = "cancelled" if found["status"] == "running" else found["status"]
    return {"jobId": found["jobId"], "status": found["status"]}


def delete(params):
    found = job(params)
    if found["status"] in ("running", "failed"):
        raise Problem(-32602, f"the job is {found['status']} and cannot be deleted")
    del JOBS[found["jobId"]]
    return {"jobId": found["jobId"], "deleted": True}


METHODS = {
    "initialize": lambda params: {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "toy", "version": "1"},
    },
    "tools/list": lambda params: {"tools": tools()},
    "tools/call": lambda params: {
        "content": [{"type": "text", "text": called(params["name"], params.get("arguments", {}))}]
    },
    "worker/dispatch": dispatch,
    "worker/list": listed,
    "worker/status": status,
    "worker/result": result,
    "worker/cancel": cancel,
    "worker/delete": delete,
}

# What a member that is `odd` answers where it is asked about one of these: the body, as it is, and the HTTP status.
ODD = {
    "garbage": (b"<html>", 200),
    "teapot": (b"no", 418),
    "empty": (b"", 200),
    "list": (b"[]", 200),
    "other-id": (b'{"jsonrpc":"2.0","id":999999,"result":{}}', 200),
    "no-object": (b'{"jsonrpc":"2.0","id":%d,"result":5}', 200),
    "no-fields": (b'{"jsonrpc":"2.0","id":%d,"result":{}}', 200),
    "wrong-types": (b'{"jsonrpc":"2.0","id":%d,"result":{"jobId":5,"status":"done","jobs":{}}}', 200),
    "escape": (b'{"jsonrpc":"2.0","id":%d,"result":{"jobId":"../x","status":"odd","jobs":[{"jobId":"../x"}]}}', 200),
    "odd-error": (b'{"jsonrpc":"2.0","id":%d,"error":5}', 200),
    "deep": (b'{"jsonrpc":"2.0","id":%d,"result":{"jobId":' + b"[" * 90 + b"]" * 90 + b"}}", 200),
    "redirect": (b"", 307),
    "huge": (b"x" * 17_000_000, 200),
}


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("authorization") != f"Bearer {SECRET}":
            return self.send(401, b"")
        message = json.loads(body)
        method = message.get("method", "")
        if "id" not in message:
            return self.send(202, b"")
        if WAY == "deaf":
            time.sleep(30)
        if method.startswith("worker/") and WAY == "slow":
            time.sleep(30)
        params = message.get("params", {})
        way = params.get("jobId") or params.get("description") or params.get("filter")
        if method.startswith("worker/") and WAY == "odd" and way in ODD:
            data, code = ODD[way]
            return self.send(code, data.replace(b"%d", str(message["id"]).encode()))
        try:
            answer = {"result": METHODS[method](message.get("params", {}))}
        except KeyError:
            answer = {"error": {"code": -32601, "message": f"there is no method {method}"}}
        except Problem as problem:
            answer = {"error": problem.error}
        return self.send(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())

    def send(self, code, data):
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if code == 307:
            self.send_header("location", "http://127.0.0.1:1/mcp")
        self.end_headers()
        self.wfile.write(data)


def main():
    if WAY == "stillborn":
        print("no ink", file=sys.stderr, flush=True)
        sys.exit(4)
    if WAY == "silent":
        time.sleep(60)
    if WAY == "once" and Path("marks").exists():
        sys.exit(5)
    with Path("marks").open("a") as marks:
        marks.write(f"{os.getpid()}\n")
    if WAY == "litter":  # leaves a process behind that is in a session of its own and cannot be asked to leave
        child = subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"],
            start_new_session=True,
        )
        Path("litter").write_text(str(child.pid))
    if WAY == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: (Path("left").write_text("politely"), os._exit(0)))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Endpoint).serve_forever()


if __name__ == "__main__":
    main()
