"""A real Prometheus scrapes a kvarved under load, and each panel's and each rule's query is answered with data."""
import http.server
import json
import pathlib
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest
import yaml
from conftest import BUILD, CHART, HERE, ROOT, TOOLS, run
from live import LoadedDaemon, free_port

BOARDS = sorted((CHART / "files/dashboards").glob("*.json"))
RULES = yaml.safe_load((CHART / "files/rules/kvarve.yaml").read_text())
RECORDED = HERE / "testdata/vllm_metrics"  # two scrapes of a vLLM with the connector, some requests apart
WAIT_SECONDS_MAX = 60
# Rates need two samples; rules look back up to an hour and a half.
RATE_INTERVAL = "10s"


def panels(board):
    return json.loads(board.read_text())["panels"]


def targets():
    for board in BOARDS:
        for panel in panels(board):
            for target in panel["targets"]:
                yield pytest.param(target["expr"], id=f"{board.stem}: {panel['title']} {target['refId']}")


class VllmExporter:
    """Answers the first recorded scrape, then the second one."""

    def __init__(self):
        texts = [path.read_bytes() for path in sorted(RECORDED.glob("*.txt"))]
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                asked.append(1)
                body = texts[0] if len(asked) <= 2 else texts[1]
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]


class Prometheus:
    def __init__(self, folder, jobs):
        rules = yaml.safe_load((CHART / "files/rules/kvarve.yaml").read_text())
        for group in rules["groups"]:
            group["interval"] = "1s"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in jobs.items()]}))
        self.port = free_port()
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(
            [TOOLS / "bin/prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def query(self, expression):
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def until(self, expression):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                result = self.query(expression)
            except OSError:
                result = []
            if result:
                return result
            time.sleep(0.3)
        raise AssertionError(f"no data for {expression}")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    daemon = LoadedDaemon(tmp_path_factory.mktemp("kvarved"))
    exporter = VllmExporter()
    server = Prometheus(folder, {"kvarve": daemon.metrics_port, "vllm": exporter.port})
    try:
        server.until("kvarve:hit_ratio:rate5m")
        server.until("kvarve:saved_prefill_seconds:rate5m > 0")
        server.until("rate(kvarve_nvme_loaded_blocks_total[10s]) > 0")
        yield server
    finally:
        server.process.terminate()
        server.process.wait(20)
        exporter.server.shutdown()
        daemon.stop()


@pytest.mark.parametrize("expression", list(targets()))
def test_the_panel_has_data(prometheus, expression):
    query = expression.replace("$__rate_interval", RATE_INTERVAL)
    query = re.sub(r"\$(job|instance|tenant|model)\b", ".*", query)
    assert "$" not in query
    result = prometheus.until(query)
    assert all(float(sample["value"][1]) == float(sample["value"][1]) for sample in result) or "quantile" in query  # not NaN


def metric_names(expression):
    """Names of metrics in a query: words that begin like one and are no record."""
    return {name for name in re.findall(r"\b(?:kvarve|vllm)[\w:]*", re.sub(r'"[^"]*"', "", expression)) if not name.startswith("kvarve:")}


def rule_expressions():
    return [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def is_known(prometheus, name):
    """A series of it is there; or an engine declares it, for what has not happened there has no series."""
    declared = (RECORDED / "2.txt").read_text(encoding="utf-8")
    return bool(prometheus.query(f"count({name})")) or f"# TYPE {name} " in declared


def test_every_metric_of_rules_and_panels_exists(prometheus):
    """Panels too: `or vector(0)` has data under any name."""
    names = set().union(*(metric_names(expression) for expression in [*rule_expressions(), *(target.values[0] for target in targets())]))
    assert len(names) > 40
    assert [name for name in sorted(names) if not is_known(prometheus, name)] == []


def test_every_record_has_data(prometheus):
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                assert prometheus.until(rule["record"])


def test_variables_find_values(prometheus):
    for board in BOARDS:
        for variable in json.loads(board.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
            metric = re.sub(r"\$\w+", ".*", metric)
            assert all(sample["metric"][label] for sample in prometheus.until(f"count by ({label}) ({metric})"))


def test_no_alert_of_a_healthy_daemon_is_critical(prometheus):
    alerts = prometheus.query('ALERTS{severity="critical"}')
    assert alerts == []


def test_the_dashboards_are_what_the_table_says(tmp_path):
    run("/usr/bin/python3", ROOT / "deploy/grafana/make_dashboards.py", tmp_path)
    made = {path.name: path.read_text() for path in pathlib.Path(tmp_path).glob("*.json")}
    assert made == {path.name: path.read_text() for path in BOARDS}, "run deploy/grafana/make_dashboards.py"


def test_panels_lie_side_by_side_and_have_units():
    for board in BOARDS:
        taken = set()
        for panel in panels(board):
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            assert not cells & taken and place["x"] + place["w"] <= 24
            taken |= cells
            assert panel["fieldConfig"]["defaults"]["unit"]
