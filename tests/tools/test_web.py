"""WebFetch against real servers on loopback, which a fake resolver gives public names."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import re
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.errors import NotFound
from guildhall.tools.builtin import web_fetch
from guildhall.tools.builtin.web_fetch import MAX_BYTES, is_public, readable, resolve_host, web_tools
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

PAGE = """<!doctype html><html><head><title>A page</title><style>p {color: red}</style>
<script>alert("never")</script></head><body><h1>Welcome &amp; hello</h1><p>Some   <b>bold</b>
text, a <a href="/next?x=1">link</a>, an <a href="#here">anchor</a> and <a href="javascript:x()">a trick</a>.</p>
<ul><li>one</li><li>two</li></ul><pre>  kept   as
    it is</pre><table><tr><td>a</td><td>b</td></tr></table><img src="x" alt="a cat"><noscript>no</noscript>
<svg><text>drawn</text></svg></body></html>"""


class Site(BaseHTTPRequestHandler):
    """A site with ordinary, broken and hostile pages."""

    seen: list[str]

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        name = self.path.partition("?")[0].strip("/") or "page"
        getattr(self, f"serve_{name.partition('/')[0]}")()

    def respond(
        self, body: bytes, kind: str | None = "text/html; charset=utf-8", status: int = 200, **headers: str
    ) -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def serve_page(self) -> None:
        self.respond(PAGE.encode())

    def serve_plain(self) -> None:
        self.respond(b"a < b\n" * 5_000, "text/plain")

    def serve_untyped(self) -> None:
        self.respond(b"<p>no type</p>", None)

    def serve_latin(self) -> None:
        self.respond("café".encode("latin-1"), "text/plain; charset=ISO-8859-1")

    def serve_meta(self) -> None:
        self.respond('<meta charset="latin-1"><p>café</p>'.encode("latin-1"), "text/html")

    def serve_nonsense(self) -> None:
        self.respond(b"caf\xff", "text/plain; charset=no-such-thing")

    def serve_json(self) -> None:
        self.respond(b'{"a": 1}', "application/problem+json")

    def serve_image(self) -> None:
        self.respond(b"\x89PNG", "image/png")

    def serve_missing(self) -> None:
        self.respond(b"<p>not here</p>", status=404)

    def serve_zipped(self) -> None:
        self.respond(gzip.compress(PAGE.encode()), Content_Encoding="gzip")

    def serve_bomb(self) -> None:
        self.respond(gzip.compress(b"x" * 50_000_000), "text/plain", Content_Encoding="gzip")

    def serve_broken(self) -> None:
        self.respond(b"this is no gzip", "text/plain", Content_Encoding="gzip")

    def serve_large(self) -> None:
        self.respond(b"y" * (MAX_BYTES + 10), "text/plain")

    def serve_to(self) -> None:
        target = self.path.partition("?")[2]
        self.respond(b"", status=302, Location=target)

    def serve_round(self) -> None:
        self.respond(b"", status=307, Location=self.path)

    def serve_nowhere(self) -> None:
        self.respond(b"no location", "text/plain", status=302)

    def serve_slow(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while not self.server.stopping.wait(0.05):  # type: ignore[attr-defined]
                self.wfile.write(b"z")
        except OSError:
            return

    def serve_rude(self) -> None:
        self.wfile.write(b"this is not HTTP\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def start_site() -> Generator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.seen = []  # type: ignore[attr-defined]
    server.stopping = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site() -> Generator[Any]:
    with start_site() as server:
        yield server


NAMES = {"site.example": ["127.0.0.1"], "inside.example": ["10.0.0.1"], "both.example": ["127.0.0.1", "192.168.1.1"]}


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of the names of this test, and resolve other hosts with the system."""
    return NAMES[host] if host in NAMES else list(resolve_host(host, port))


def is_permitted(address: Any) -> bool:
    return str(address) == "127.0.0.1" or is_public(address)


def fetch(url: str, **arguments: Any) -> Any:
    (tool,) = web_tools(resolve=look_up, permitted=is_permitted)
    return asyncio.run(invoke(tool, {"url": url, **arguments}))


def url_of(site: Any, path: str, host: str = "site.example") -> str:
    return f"http://{host}:{site.server_port}/{path}"


def test_a_page_is_converted_to_text(site):
    result = fetch(url_of(site, ""))
    assert not result.is_error
    head, _, text = result.text.partition("\n\n")
    assert head == f"URL: {url_of(site, '')}\nContent-Type: text/html; charset=utf-8\nStatus: 200"
    assert text == (
        "A page\n\n# Welcome & hello\n\nSome bold text, a [link]("
        f"{url_of(site, 'next?x=1')}), an anchor and a trick.\n\n- one\n- two\n\n  kept   as\n    it is\n\n"
        "| a | b\n\n[image: a cat]"
    )
    assert site.seen == [("/", f"site.example:{site.server_port}")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("plain", "a < b\na < b"),
        ("untyped", "no type"),
        ("latin", "café"),
        ("meta", "café"),
        ("nonsense", "caf\ufffd"),
        ("json", '{"a": 1}'),
        ("zipped", "# Welcome"),
        ("nowhere", "no location"),
        ("page?q=%C3%A9", "# Welcome"),
    ],
)
def test_other_text_types_are_decoded(site, path, expected):
    result = fetch(url_of(site, path))
    assert not result.is_error
    assert expected in result.text


def test_length_is_limited(site):
    text = fetch(url_of(site, "plain"), max_chars=10).text
    assert text.endswith("\n\na < b\na < \n[29,990 of 30,000 characters are left out]")


@pytest.mark.parametrize("path", ["bomb", "large"])
def test_size_is_limited(site, path):
    text = fetch(url_of(site, path)).text
    assert "only the first 2,000,000 bytes were read" in text
    assert len(text) < 21_000


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", "Status: 404\n\nnot here"),
        ("image", "image/png is not text"),
        ("broken", "cannot reach"),
        ("rude", "cannot reach"),
        ("round", "more than 5 redirects"),
    ],
)
def test_an_unusable_response_is_an_error(site, path, expected):
    result = fetch(url_of(site, path))
    assert result.is_error
    assert expected in result.text


def test_redirects_are_followed_and_the_last_address_is_shown(site):
    result = fetch(url_of(site, "to?/to?/page"))
    assert result.text.startswith(f"URL: {url_of(site, 'page')}\n")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://inside.example/", "not a public address"),
        ("http://169.254.169.254/latest/meta-data", "not a public address"),
        ("http://[::1]/", "not a public address"),
        ("file:///etc/passwd", "must be http or https"),
        ("ftp://site.example/", "must be http or https"),
        ("http://user:secret@site.example/", "user name or password"),
        ("http://site.example:22/", "port 22"),
        ("//localhost/", "not a public address"),
    ],
)
def test_each_redirect_target_is_checked(site, target, expected):
    from guildhall.core.clock import SystemClock
    from guildhall.tools.builtin.web_fetch import _Fetcher

    fetcher = _Fetcher(look_up, lambda address: str(address) == "127.0.0.1" and not site.seen, SystemClock())
    with pytest.raises(Exception, match=re.escape(expected)):
        fetcher.fetch(url_of(site, f"to?{target}"))
    assert len(site.seen) == 1


@pytest.mark.parametrize(
    "host",
    [
        "192.88.99.1", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "localhost",
        "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254",
        "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1",
        "240.0.0.1", "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:8.8.8.8]", "[fe80::1]",
        "[fc00::1]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(host):
    (tool,) = web_tools()
    result = asyncio.run(invoke(tool, {"url": f"http://{host}:8080/"}))
    assert result.is_error
    assert "not a public address" in result.text


def test_a_name_with_one_private_address_is_refused(site):
    assert "192.168.1.1" in fetch(url_of(site, "", "both.example")).text
    assert site.seen == []


def test_the_checked_address_is_the_one_that_is_used(site):
    answers = iter([["127.0.0.1"], ["10.9.9.9"]])
    checked: list[Any] = []

    def resolve_differently(host: str, port: int) -> list[str]:
        return next(answers)

    def check(address: Any) -> bool:
        checked.append(str(address))
        return True

    (tool,) = web_tools(resolve=resolve_differently, permitted=check)
    assert "Welcome" in asyncio.run(invoke(tool, {"url": url_of(site, "")})).text
    assert checked == ["127.0.0.1"]


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_addresses_are_permitted(address):
    assert is_public(ipaddress.ip_address(address))
    assert not is_public(ipaddress.ip_address("fe80::1%eth0"))


@pytest.mark.parametrize(
    "url",
    [
        "", "page.html", "http://", "http://exa mple.com/", "http://example.com/\r\nX: y", "http://[::1", "http://[zz]/",
        "http://example.com:99999/", "http://example.com:port/", "javascript:alert(1)", "gopher://example.com/",
        "http://" + "a" * 9_000, "http://exämple..com/", "http://site.example/é", "http://a@site.example/",
        "http://" + "x" * 70 + ".com/", "http://[v1.x]/",
    ],
)  # fmt: skip
def test_invalid_urls_are_errors(url):
    assert fetch(url).is_error


@pytest.mark.parametrize(
    "arguments", [{}, {"url": 7}, {"url": "http://x/", "max_chars": 0}, {"url": "http://x/", "max_chars": 10**9}]
)
def test_invalid_arguments_are_errors(arguments):
    (tool,) = web_tools()
    assert asyncio.run(invoke(tool, arguments)).is_error


def test_an_unknown_host_is_an_error():
    assert "cannot resolve" in fetch("http://nowhere.example/").text
    (tool,) = web_tools(resolve=lambda host, port: [])
    assert "cannot resolve" in asyncio.run(invoke(tool, {"url": "http://nowhere.example/"})).text


def test_an_unreachable_server_is_an_error(site):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "cannot reach" in fetch(f"http://site.example:{port}/").text


def test_an_endless_response_times_out(site, monkeypatch):
    monkeypatch.setattr(web_fetch, "TIMEOUT_S", 0.3)
    result = fetch(url_of(site, "slow"))
    assert "did not respond within 0.3 s" in result.text


def test_the_time_limit_includes_redirects(site, monkeypatch):
    monkeypatch.setattr(web_fetch, "TIMEOUT_S", 0.0)
    assert "did not respond within" in fetch(url_of(site, "page")).text


def test_https_rejects_an_untrusted_certificate(tmp_path):
    assert shutil.which("openssl")
    _create_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        result = fetch(f"https://site.example:{server.getsockname()[1]}/")
        thread.join(5)
    assert result.is_error
    assert "securely: CERTIFICATE_VERIFY_FAILED" in result.text


def test_https_accepts_a_trusted_certificate(tmp_path, monkeypatch):
    _create_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with start_site() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        assert "Welcome" in fetch(f"https://site.example:{server.server_port}/").text


def _create_certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=site.example",
         "-addext", "subjectAltName=DNS:site.example", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


def test_the_tool_declares_its_capabilities():
    (tool,) = web_tools()
    assert (tool.name, tool.capabilities, tool.repeatable, tool.runs_in) == ("WebFetch", {"net"}, True, "host")


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("plain", "plain"),
        ("<p>a<p>b", "a\n\nb"),
        ("<script>x", ""),
        ("<svg><g>x</svg>after", "after"),
        ("</a></pre></p>x", "x"),
        ("<a href='http://[bad'>x</a>", "x"),
        ("<a>no target</a>", "no target"),
        ("<a href='/x'></a>empty", "empty"),
        ("<img src=x>", ""),
        ("a&nbsp;&lt;b&#62;", "a <b>"),
        ("<!-- never --><![CDATA[x]]>y", "y"),
        ("<b" * 1000, None),
    ],
)
def test_broken_html_is_readable(html, text):
    found = readable(html, "http://site.example/")
    assert text is None or found.replace("\xa0", " ") == text


def test_an_unknown_host_raises_not_found():
    with pytest.raises(NotFound):
        web_fetch._Fetcher(look_up, is_permitted, web_fetch.SystemClock()).fetch("http://nowhere.example/")
