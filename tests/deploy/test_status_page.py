"""The status page in a real browser against a daemon under load. KVARVE_SCREENSHOTS=FOLDER keeps pictures."""
import json
import os
import pathlib
import shutil
import time

import pytest
from live import RECOMPUTE_US, TOKEN, LoadedDaemon
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium")
WIDTHS = (400, 1600)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    daemon = LoadedDaemon(tmp_path_factory.mktemp("kvarved"))
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def wait_until(page, expression):
    """Asks from here: the page's own policy forbids what playwright's wait_for_function does in it."""
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(100)


class Seen:
    def __init__(self, browser, daemon, width):
        self.page = browser.new_page(viewport={"width": width, "height": 1000})
        self.messages, self.requests = [], []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.messages.append("failed: " + request.url))
        self.page.goto(f"http://127.0.0.1:{daemon.metrics_port}/")
        wait_until(self.page, "window.shown !== undefined && window.shown.history.length > 0 && "
                              "window.shown.stats.hit_blocks > 0 && window.shown.status.nvme.blocks > 0 && "
                              "document.getElementById('state').textContent !== '…'")

    def snapshot(self):
        """The JSON that is shown, and the figures of the page, at one moment."""
        return self.page.evaluate("""() => ({
            all: window.shown,
            figures: Object.fromEntries([...document.querySelectorAll('[data-name]')].filter(e => e.dataset.value !== undefined)
                .map(e => [e.dataset.name, Number(e.dataset.value)])),
            tables: Object.fromEntries([...document.querySelectorAll('table')].map(t => [t.id,
                [...t.rows].slice(1).map(r => [...r.cells].map(c => c.dataset.value !== undefined ? Number(c.dataset.value) : c.textContent))])),
            lines: Object.fromEntries(['ratio', 'reads', 'saved'].map(id => [id,
                [...document.querySelectorAll(`#${id} polyline`)].map(p => p.getAttribute('points'))])),
            text: document.body.innerText, state: document.getElementById('state').textContent})""")


@pytest.fixture(params=WIDTHS, scope="module")
def seen(request, browser, daemon):
    seen = Seen(browser, daemon, request.param)
    yield seen
    folder = os.environ.get("KVARVE_SCREENSHOTS")
    if folder:
        seen.page.screenshot(path=str(pathlib.Path(folder) / f"status-page-{request.param}.png"))
    seen.page.close()


def test_figures_are_those_of_the_json(seen):
    shown = seen.snapshot()
    status, stats, figures = shown["all"]["status"], shown["all"]["stats"], shown["figures"]
    assert stats["hit_blocks"] > 0 and status["nvme"]["blocks"] > 0
    expected = {
        "memory": status["used_bytes"], "NVMe": status["nvme"]["bytes"],
        "keys looked up": stats["lookup_keys"], "blocks read": stats["hit_blocks"], "bytes read": stats["hit_bytes"],
        "prefill saved": stats["saved_recompute_seconds"], "bytes stored": stats["put_bytes"], "blocks evicted": stats["evicted_blocks"], "blocks with wrong bytes": stats["corrupt_blocks"],
        "slow requests": stats["slow_requests"], "sessions": status["sessions"], "ended, process alive": status["ended_sessions"],
        "leases": status["leases"], "read in place": status["leased_bytes"], "quarantined": status["quarantined_bytes"],
        "staging": status["staging_bytes"], "blocks": status["blocks"], "namespaces": status["namespaces"], "index": status["index_bytes"]}
    assert figures == expected
    assert stats["saved_recompute_seconds"] == pytest.approx(stats["hit_blocks"] * RECOMPUTE_US / 1e6)
    assert shown["state"] == "ready"


def test_tables_are_those_of_the_json(seen):
    shown = seen.snapshot()
    everything, tables = shown["all"], shown["tables"]
    assert [row[0] for row in tables["tenants"]] == [t["tenant"] for t in everything["tenants"]["tenants"]]
    assert [row[1] for row in tables["tenants"]] == [t["used_bytes"] for t in everything["tenants"]["tenants"]]
    assert tables["devices"][0][:4] == [everything["status"]["nvme"]["devices"][0][name] for name in ("path", "state", "capacity_bytes", "segments_in_use")]
    assert len(tables["slow"]) == len(everything["slow_requests"]) > 0
    assert [row[2] for row in tables["slow"]] == [r["micros"] for r in everything["slow_requests"]]
    assert [row[0] for row in tables["settings"]] == [s["name"] for s in everything["settings"]]


def in_words(count):
    """Bytes as the page writes them."""
    units, value = ["B", "KiB", "MiB", "GiB", "TiB"], count
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    if units[0] == "B":
        return f"{value:.0f} B"
    return f"{value:.{max(0, 2 - (len(str(int(value))) - 1))}f} {units[0]}"


def test_words_are_those_figures(seen):
    """What people read is not data-value, so it is computed here once more."""
    shown = seen.snapshot()
    stats, status, text = shown["all"]["stats"], shown["all"]["status"], shown["text"]
    assert f"{in_words(stats['put_bytes'])}" in text
    assert f"{in_words(status['used_bytes'])} of {in_words(status['capacity_bytes'])}" in text
    assert f"{stats['lookup_keys']:,}" in text
    assert f"{100 * stats['lookup_hit_keys'] / stats['lookup_keys']:.1f} % since the start" in text


def test_lines_are_the_history(seen):
    """Each point of the lines, from the JSON: y is 98 at nothing and 2 at the top of the scale."""
    wait_until(seen.page, "window.shown.history.length >= 3")
    shown = seen.snapshot()
    history, drawn = shown["all"]["history"], shown["lines"]
    figures = {"reads": [], "saved": [], "ratio": []}
    for a, b in zip(history, history[1:]):
        seconds = b["time"] - a["time"]
        figures["reads"].append((b["hit_bytes"] - a["hit_bytes"]) / seconds)
        figures["saved"].append((b["saved_seconds"] - a["saved_seconds"]) / seconds)
        figures["ratio"].append((b["found_keys"] - a["found_keys"]) / (b["lookup_keys"] - a["lookup_keys"]))
    for name, values in figures.items():
        top = 1 if name == "ratio" else max(values)
        points = [float(point.split(",")[1]) for point in " ".join(drawn[name]).split()]
        assert points[1:] == pytest.approx([98 - 96 * value / top for value in values], abs=0.02), name


def test_the_page_goes_on(seen):
    before = seen.snapshot()["all"]["stats"]["hit_blocks"]
    wait_until(seen.page, f"window.shown.stats.hit_blocks > {before}")


def test_nothing_is_said_on_the_console_and_nobody_else_is_asked(seen, daemon):
    assert seen.messages == []
    assert seen.requests and all(url.startswith((f"http://127.0.0.1:{daemon.metrics_port}/", "data:")) for url in seen.requests)


def test_it_fits_its_width(seen):
    wide, inner = seen.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner
    small = seen.page.evaluate("""[...document.querySelectorAll('h1, h2, dt, dd, td, p')].filter(e => e.textContent &&
        (e.getBoundingClientRect().height < 10 || parseFloat(getComputedStyle(e).fontSize) < 12)).length""")
    assert small == 0
    columns = seen.page.evaluate("getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length")
    assert columns == (1 if inner == 400 else 3)


def test_secrets_are_masked(daemon):
    _, text = daemon.get("/status.json")
    settings = {row["name"]: row["value"] for row in json.loads(text)["settings"]}
    assert settings["rpc.token_file"] == "(set, not shown)"
    assert settings["rpc.tls_key_file"] == ""
    assert TOKEN not in text and str(daemon.folder / "token") not in text
    assert settings["nvme.devices"] == f"{daemon.folder}/nvme0"


def test_it_only_reads(daemon):
    import urllib.error
    import urllib.request
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/status.json"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{daemon.metrics_port}{path}", data=b"{}", method=method), timeout=5)
            assert refused.value.code in (400, 404, 405)


def test_it_may_load_nothing_from_elsewhere(daemon):
    import urllib.request
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.metrics_port}/", timeout=5) as answer:
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "http" not in policy
