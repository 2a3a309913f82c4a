"""`guild serve WORKER`: serves a worker at a port of this machine, with the protocol of members, until a signal.

Callers need the secret that the command prints. Does not implement the protocol (see `rpc.mcp_http_server` and
`hall.server.job_rpc_methods`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets

from guildhall.cli.command import Context, argument, command
from guildhall.core.errors import UsageError
from guildhall.members.model import SECRET_VARIABLE

_MIN_SECRET_CHARS = 16
_MAX_PORT = 65_535
_CLOSE_TIMEOUT_S = 2.0  # for clients that are reading a response


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and (number := int(text[:12])) <= _MAX_PORT:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 1 to 65535, or 0 for any free port")


@command(
    argument("worker", metavar="WORKER", help="name or file of the worker"),
    argument("--port", metavar="N", type=_port, default=0, help="the port (default: any free port)"),
    argument("--json", action="store_true", help="print an object with url and secret"),
)
async def serve(ctx: Context) -> None:
    secret = os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)
    if len(secret) < _MIN_SECRET_CHARS:
        message = f"invalid {SECRET_VARIABLE}: fewer than {_MIN_SECRET_CHARS} characters"
        raise UsageError(message, hint="Set a longer secret, or unset it to use a generated one.")
    client = await ctx.connect()
    from guildhall.hall.server.job_rpc_methods import HallJobs, worker_offer
    from guildhall.rpc.listener import Listener
    from guildhall.rpc.mcp_http_server import PATH, Endpoint

    worker = await client.workers.get(ctx.args.worker, ctx.frame)
    listener = Listener(port=ctx.args.port)
    offer = worker_offer(HallJobs(client, ctx.args.worker, lambda: ctx.frame, name=worker.name), worker.name)
    await listener.listen(Endpoint.for_offer(offer, secret))
    url = f"http://127.0.0.1:{listener.port}{PATH}"
    text = f"{worker.name} serves at {url}\nAuthorization: Bearer {secret}"
    ctx.print({"worker": worker.name, "url": url, "secret": secret}, text)
    if not ctx.as_json:
        ctx.screen.note("Ctrl-C stops serving. Running jobs continue.", "dim")
    try:
        await asyncio.Event().wait()
    finally:
        await listener.close(_CLOSE_TIMEOUT_S)
