"""A small MCP server for tests: `python toy_server.py MODE`. MODE selects how it misbehaves."""

import json
import os
import sys
import time
from pathlib import Path


def tool(name, **more):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


TOOLS = [tool("echo", annotations={"readOnlyHint": True}), tool("die"), tool("look"), tool("wait"), tool("flood")]
LISTS = {
    "twice": [tool("echo"), tool("echo")],
    "nameless": [{"inputSchema": {"type": "object"}}],
    "no-object": [tool("echo", inputSchema={"type": "array"})],
    "wrong-schema": [tool("echo", inputSchema={"type": "object", "properties": 5})],
    "no-schema": [{"name": "echo"}],
    "deep": [tool("echo", inputSchema=json.loads('{"a":' * 90 + "{}" + "}" * 90))],
    "many": [tool(f"t{number}") for number in range(600)],
    "long": [tool("echo", description="x" * 3_000_000)],
    "odd": [tool("a.b/c"), tool("x" * 100), tool("echo")],
    "other": [tool("echo", description="Does something else.")],
    "more": [*TOOLS, tool("new")],
}


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def call_tool(mode, name, arguments):
    text = arguments.get("text", "")
    if name == "die":
        print("out of paper", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "wait":
        time.sleep(60)
    if name == "flood":
        sys.stdout.write("x" * 20_000_000)
        sys.stdout.flush()
    if name == "look":
        env = dict(os.environ)
        seen = {path: Path(path).exists() for path in text.split()}
        return {"text": json.dumps({"env": env, "cwd": str(Path.cwd()), "seen": seen, "pid": os.getpid()})}
    return {"text": f"{mode}: {text}"}


def answer(mode, message):
    method, params = message["method"], message.get("params", {})
    if mode == "modern" and "_meta" not in params:
        return {"error": {"code": -32022, "message": "no handshake", "data": {"supported": ["2026-07-28"]}}}
    if method == "initialize":
        about = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        return {"result": {**about, "serverInfo": {"name": "toy", "version": "1"}}}
    if method == "tools/list":
        if mode == "endless":
            return {"result": {"tools": [], "nextCursor": "again"}}
        if mode == "pages" and not params.get("cursor"):
            return {"result": {"tools": TOOLS[:2], "nextCursor": "2"}}
        if mode == "no-list":
            return {"result": {"tools": "none"}}
        return {"result": {"tools": TOOLS[2:] if mode == "pages" else LISTS.get(mode, TOOLS)}}
    if method == "tools/call":
        if mode == "asks":
            send({"jsonrpc": "2.0", "id": "s1", "method": "sampling/createMessage", "params": {}})
            send({"jsonrpc": "2.0", "id": "s2", "method": "ping"})
            replies = [json.loads(sys.stdin.readline()) for _ in range(2)]
            return {"result": {"content": [{"type": "text", "text": json.dumps(replies)}]}}
        if mode == "rubbish":
            return {"result": {"content": [{"type": "image", "data": "%%", "mimeType": "image/png"}, 5, {"type": "x"}]}}
        if mode == "no-result":
            return {"result": [1]}
        if mode == "refuses":
            return {"error": {"code": -32000, "message": "closed\nfor \x1b[31mlunch"}}
        block = call_tool(mode, params["name"], params.get("arguments") or {})
        return {"result": {"content": [{"type": "text", **block}]}}
    return {"error": {"code": -32601, "message": "unknown"}}


def main(mode):
    if mode == "dead":
        print("warming up", file=sys.stderr)
        print("no licence\n}", file=sys.stderr, flush=True)
        sys.exit(2)
    if mode == "silent":
        time.sleep(60)
    if mode == "noisy":
        print("Welcome!\nstarted on stdio\n[]\n{}\n", flush=True)
        send({"jsonrpc": "2.0", "id": 999, "result": {}})
    if mode == "endless-line":
        while True:
            sys.stdout.write("x" * 65536)
    if mode == "endless-lines":
        while True:
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/message"}\n' * 1000)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            send({"jsonrpc": "2.0", "id": message["id"], **answer(mode, message)})
    if mode == "stays":
        time.sleep(60)


main(sys.argv[1] if len(sys.argv) > 1 else "well")
