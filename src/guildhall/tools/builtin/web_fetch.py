"""Web fetch tool: implements WebFetch, which returns a public web page as text with links.

Does not search the web (see `tools.builtin.web_search`).

Invariant: the connection goes to a checked IP address. The address of each redirect is checked too.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import SplitResult, urljoin, urlsplit

from guildhall.core.clock import Clock, SystemClock
from guildhall.core.errors import GuildError, NotFound, Refused, TimedOut, UsageError
from guildhall.tools.definition import tool
from guildhall.tools.model import Handler, Tool, ToolResult

_DROPPED = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "canvas"})
_PARAGRAPHS = frozenset(
    {"p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "ul", "ol", "table", "blockquote",
     "pre", "form", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "title", "dl", "hr", "details"}
)  # fmt: skip
_LINES = frozenset({"br", "li", "tr", "dt", "dd", "option", "summary"})
_FIXED_SPACE = "\0"  # a space of preformatted text, until the text is complete
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}


def readable(html: str, base: str) -> str:
    """Return the text of a page. `base` is its URL, for relative links."""
    parser = _TextParser(base)
    parser.feed(html)
    parser.close()
    return parser.text()


class _TextParser(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self._base = base
        self._parts: list[str] = []
        self._dropping: list[str] = []
        self._links: list[tuple[str, int]] = []
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED:
            self._dropping.append(tag)
        if self._dropping:
            return
        self._parts += ["\n\n"] if tag in _PARAGRAPHS else ["\n"] if tag in _LINES else []
        values = dict(attrs)
        if tag in _HEADINGS:
            self._parts.append(_HEADINGS[tag])
        elif tag == "li":
            self._parts.append("- ")
        elif tag in {"td", "th"}:
            self._parts.append(" | ")
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "img" and values.get("alt"):
            self._parts.append(f"[image: {values['alt']}]")
        elif tag == "a":
            self._links.append((values.get("href") or "", len(self._parts)))

    def handle_endtag(self, tag: str) -> None:
        if self._dropping:
            if tag in self._dropping:
                del self._dropping[self._dropping.index(tag) :]
            return
        if tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        if tag in _PARAGRAPHS:
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._dropping:
            data = data.replace(_FIXED_SPACE, "")
            self._parts.append(data.replace(" ", _FIXED_SPACE) if self._preformatted else re.sub(r"\s+", " ", data))

    def _end_link(self, href: str, start: int) -> None:
        text = "".join(self._parts[start:]).strip()
        try:
            target = urljoin(self._base, href)
        except ValueError:
            target = ""
        if text and href and not href.startswith("#") and target.startswith(("http://", "https://")):
            self._parts[start:] = [f"[{text}]({target})"]

    def text(self) -> str:
        lines = (line.strip().rstrip(_FIXED_SPACE) for line in "".join(self._parts).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip().replace(_FIXED_SPACE, " ")


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Sequence[str]]
Permitted = Callable[[Address], bool]

MAX_BYTES = 2_000_000
TIMEOUT_S = 30.0
MAX_REDIRECTS = 5
MAX_CHARS = 100_000
_AGENT = "guildhall-webfetch"
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_TEXT = re.compile(r"text/|application/(.*\+)?(json|xml|javascript|yaml|toml|x-ndjson)\b|^$")
_RELAY_NETWORK = ipaddress.IPv4Network("192.88.99.0/24")  # reserved since RFC 7526, but global for Python
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))


def web_tools(*, resolve: Resolve | None = None, permitted: Permitted | None = None) -> tuple[Tool, ...]:
    """Return WebFetch. `resolve` looks up host names. `permitted` accepts IP addresses, by default public ones."""
    handlers = web_handlers(resolve=resolve, permitted=permitted)
    return (tool(name="WebFetch", capabilities={"net"}, repeatable=True)(handlers["WebFetch"]),)


def web_handlers(*, resolve: Resolve | None = None, permitted: Permitted | None = None) -> dict[str, Handler]:
    return {"WebFetch": _Fetcher(resolve or resolve_host, permitted or is_public, SystemClock()).fetch}


def is_public(address: Address) -> bool:
    """Return True for public IP addresses. Loopback, private, local and embedded IPv4 addresses are not public."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address.is_site_local or address.scope_id:
            return False
        if any(address in network for network in _EMBEDDING):  # the embedded IPv4 address could be private
            return False
    elif address in _RELAY_NETWORK:
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the IP addresses of a host name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, kw_only=True)
class _Page:
    status: int
    content_type: str
    location: str | None
    body: bytes
    is_truncated: bool


class _Fetcher:
    def __init__(self, resolve: Resolve, permitted: Permitted, clock: Clock) -> None:
        self._resolve = resolve
        self._permitted = permitted
        self._clock = clock

    def fetch(self, url: str, max_chars: int = 20_000) -> ToolResult:
        """Fetch a public web page. Returns its text with links.

        Args:
            url: The URL, with http:// or https://.
            max_chars: The maximum number of characters, at most 100000.
        """
        if not 1 <= max_chars <= MAX_CHARS:
            raise UsageError(f"max_chars: expected 1 to {MAX_CHARS:,}")
        deadline = self._clock.monotonic() + TIMEOUT_S
        for _ in range(MAX_REDIRECTS + 1):
            page = self._get(url, deadline)
            if page.status not in _REDIRECT_STATUSES or page.location is None:
                return _format_page(url, page, max_chars)
            url = urljoin(url, page.location)
        raise Refused(f"cannot fetch the page: more than {MAX_REDIRECTS} redirects, the last one to {url}")

    def _get(self, url: str, deadline: float) -> _Page:
        parts, host, port = _check_url(url)
        connection = _Connection(parts.scheme, host, port, self._addresses(host, port))
        try:
            return self._exchange(connection, parts, deadline)
        except ssl.SSLError as error:
            raise NotFound(f"cannot connect to {host} securely: {error.reason or error}") from None
        except (OSError, http.client.HTTPException, zlib.error) as error:
            if self._clock.monotonic() >= deadline:
                raise TimedOut(f"{host} did not respond within {TIMEOUT_S:g} s") from None
            raise NotFound(f"cannot reach {host}: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def _exchange(self, connection: _Connection, parts: SplitResult, deadline: float) -> _Page:
        remaining_s = deadline - self._clock.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        connection.timeout = remaining_s
        timer = threading.Timer(remaining_s, connection.cut_off)  # a server can send slowly without end
        timer.daemon = True
        timer.start()
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = {"User-Agent": _AGENT, "Accept": "text/html,text/*;q=0.9,*/*;q=0.5", "Accept-Encoding": "gzip"}
            connection.request("GET", target, headers=headers)
            page = _read(connection.getresponse())
        finally:
            timer.cancel()
        if self._clock.monotonic() >= deadline:
            raise TimeoutError
        return page

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = list(self._resolve(host, port))
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise NotFound(f"cannot resolve {host}", hint="Check the spelling of the host name.")
        for text in found:
            if not self._permitted(ipaddress.ip_address(text)):
                hint = "Only public addresses can be fetched, not this machine and not private networks."
                raise Refused(f"{host} is at {text}, which is not a public address", hint=hint)
        return found


class _Connection(http.client.HTTPConnection):
    """A connection to resolved IP addresses. The host name is sent to the server and checked in its certificate."""

    def __init__(self, scheme: str, host: str, port: int, addresses: Sequence[str]) -> None:
        super().__init__(host, port, timeout=TIMEOUT_S)
        self._scheme = scheme
        self._addresses = addresses
        self._opened: socket.socket | None = None  # http.client drops `sock` when the response starts
        self.default_port = 443 if scheme == "https" else 80

    def connect(self) -> None:
        failure: OSError = OSError("no address")
        for address in self._addresses:
            try:
                self.sock = socket.create_connection((address, self.port), self.timeout)
                break
            except OSError as error:
                failure = error
        else:
            raise failure
        if self._scheme == "https":
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
        self._opened = self.sock

    def cut_off(self) -> None:
        """Close the connection from another thread."""
        if self._opened is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._opened, socket.SHUT_RDWR)  # without the TLS close message


def _check_url(url: str) -> tuple[SplitResult, str, int]:
    """Return the parts, the host and the port of a URL. Raise UsageError or Refused if it cannot be fetched."""
    if len(url) > 8_000 or re.search(r"[\x00-\x20\x7f]", url):
        raise UsageError("invalid URL: contains spaces or control characters, or is longer than 8,000 characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"invalid URL {url!r}: {error}") from None
    if parts.scheme not in {"http", "https"}:
        raise Refused(f"cannot fetch {url!r}: the scheme must be http or https")
    if parts.username is not None or parts.password is not None:
        raise Refused("cannot fetch the URL: it contains a user name or password")
    try:
        host = _host(parts.hostname or "")
        f"{parts.path}{parts.query}".encode("ascii")
    except ValueError:
        problem = f"invalid URL {url!r}: invalid host name, or a character outside of ASCII"
        raise UsageError(problem, hint="Write characters outside of ASCII as %XX.") from None
    port = port if port is not None else 443 if parts.scheme == "https" else 80
    if port < 1024 and port not in {80, 443}:
        raise Refused(f"cannot fetch port {port}: only 80, 443 and ports from 1024 are allowed")
    return parts, host, port


def _host(name: str) -> str:
    """Return the host in the form for DNS. Numeric addresses are normalised: 0x7f000001 is 127.0.0.1."""
    if ":" in name:
        return str(ipaddress.IPv6Address(name))
    try:
        return socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        if not (host := name.encode("idna").decode("ascii")):
            raise ValueError("no host") from None
        return host


def _read(response: http.client.HTTPResponse) -> _Page:
    body = response.read(MAX_BYTES + 1)
    if (response.getheader("Content-Encoding") or "").lower() in {"gzip", "x-gzip"}:
        body = zlib.decompressobj(wbits=31).decompress(body[:MAX_BYTES], MAX_BYTES + 1)
    return _Page(
        status=response.status,
        content_type=response.getheader("Content-Type") or "",
        location=response.getheader("Location"),
        body=body[:MAX_BYTES],
        is_truncated=len(body) > MAX_BYTES,
    )


def _format_page(url: str, page: _Page, max_chars: int) -> ToolResult:
    media_type = page.content_type.partition(";")[0].strip().lower()
    if not _TEXT.match(media_type) and media_type != "application/xhtml+xml":
        raise GuildError(f"cannot show {url}: {media_type} is not text", hint="Fetch a page or a text file instead.")
    text = _decode(page)
    if media_type in {"text/html", "application/xhtml+xml"} or (not media_type and text.lstrip()[:1] == "<"):
        text = readable(text, url)
    notes = [f"only the first {MAX_BYTES:,} bytes were read"] if page.is_truncated else []
    if len(text) > max_chars:
        notes.append(f"{len(text) - max_chars:,} of {len(text):,} characters are left out")
        text = text[:max_chars]
    tail = f"\n[{'; '.join(notes)}]" if notes else ""
    shown = f"URL: {url}\nContent-Type: {page.content_type or 'unknown'}\nStatus: {page.status}\n\n{text}{tail}"
    return ToolResult.error(shown) if page.status >= 400 else ToolResult.of(shown)


def _decode(page: _Page) -> str:
    named = re.search(r"charset=[\"']?([\w.:-]+)", page.content_type)
    charset = named[1] if named else "utf-8"
    if named is None and (in_page := re.search(rb"<meta[^>]{0,200}charset=[\"']?([\w.:-]+)", page.body[:4096])):
        charset = in_page[1].decode("ascii")
    try:
        return page.body.decode(charset, "replace")
    except (LookupError, ValueError):  # an unknown encoding, or not an encoding of text
        return page.body.decode("utf-8", "replace")
