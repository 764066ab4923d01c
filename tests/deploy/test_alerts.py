"""Each alert fires when it should and not when it should not, by promtool; and each has a runbook."""
import json
import re

import pytest
import yaml
from conftest import CHART, ROOT, TOOLS, run

RULES = CHART / "files/rules/kvarve.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule}
RUNBOOKS = "https://github.com/kvarve/kvarve/blob/main/docs/operations.md#"
AT = 'job="kvarve",instance="a:9410",namespace="n",pod="p"'
MINUTES = 240


def s(metric, more=""):
    return f"{metric}{{{AT}{',' if more else ''}{more}}}"


def grows(by):  # a counter, a sample a minute
    return f"0+{by}x{MINUTES}"


def stays(at):
    return f"{at}x{MINUTES}"


def jumps(*values, minute=20):  # the first until then, the others a minute each, the last to the end
    first, *between, last = values
    return " ".join([f"{first}x{minute - 1}", *map(str, between), f"{last}x{MINUTES}"])


STORED = s("kvarve_put_blocks_total", 'result="stored"')
LOCAL = s("kvarve_local_requests_total", 'type="put",result="ok"')
HITS, MISSES = (s("kvarve_tenant_lookup_keys_total", f'tenant="t",result="{result}"') for result in ("hit", "miss"))
CALLS = s("kvarve_rpc_requests_total", 'method="ReadRun",code="OK"')
ENGINE = 'model_name="m",engine="0"'

# alert -> series just beyond its bound, from which minute on they are, and series just within it
CASES = {
    "KvarveDown": ({s("up"): stays(0)}, 0, {s("up"): stays(1), 'up{job="other",instance="b"}': stays(0)}),
    "KvarveRestarts": ({s("kvarve_start_time_seconds"): jumps(1, 2, 3, 4, 5)}, 23, {s("kvarve_start_time_seconds"): jumps(1, 2, 3, 4)}),
    "KvarveWrongBytes": ({s("kvarve_corruption_total", 'tier="host"'): jumps(0, 1)}, 20, {s("kvarve_corruption_total", 'tier="host"'): stays(5)}),
    "KvarveDeviceFails": ({s("kvarve_nvme_device_state", 'device="d",state="write_off"'): stays(1)}, 0,
                          {s("kvarve_nvme_device_state", 'device="d",state="ready"'): stays(1)}),
    "KvarveDeviceErrors": ({s("kvarve_nvme_write_failures_total", 'device="d"'): jumps(0, 2)}, 20,
                           {s("kvarve_nvme_read_errors_total", 'device="d"'): stays(3)}),
    "KvarvePutsShed": ({s("kvarve_nvme_shed_blocks_total"): grows(55), STORED: grows(1000)}, 1,
                       {s("kvarve_nvme_shed_blocks_total"): grows(45), STORED: grows(1000)}),
    "KvarveWriteBudgetUsedUp": ({s("kvarve_nvme_admit_dropped_total", 'reason="budget"'): grows(550), STORED: grows(1000)}, 1,
                                {s("kvarve_nvme_admit_dropped_total", 'reason="budget"'): grows(450), STORED: grows(1000)}),
    "KvarveSlowBackend": ({s("kvarve_io_backend", 'device="d",backend="posix",direct="true",as_wanted="false"'): stays(1)}, 0,
                          {s("kvarve_io_backend", 'device="d",backend="posix",direct="true",as_wanted="true"'): stays(1),
                           s("kvarve_io_backend", 'device="e",backend="io_uring",direct="false",as_wanted="false"'): stays(1)}),
    "KvarveHitRatioLow": ({HITS: grows(45), MISSES: grows(955)}, 1, {HITS: grows(55), MISSES: grows(945)}),
    "KvarveNoRoom": ({s("kvarve_put_blocks_total", 'result="rejected_no_space"'): grows(55), STORED: grows(945)}, 1,
                     {s("kvarve_put_blocks_total", 'result="rejected_no_space"'): grows(45), STORED: grows(955)}),
    "KvarveQuotaRefusals": ({s("kvarve_tenant_quota_refused_blocks_total", 'tenant="t",resource="host_bytes"'): grows(66)}, 5,
                            {s("kvarve_tenant_quota_refused_blocks_total", 'tenant="t",resource="host_bytes"'): grows(54)}),
    "KvarveQuarantine": ({s("kvarve_lease_quarantine_bytes"): stays(110), s("kvarve_arena_capacity_bytes"): stays(1000)}, 0,
                         {s("kvarve_lease_quarantine_bytes"): stays(90), s("kvarve_arena_capacity_bytes"): stays(1000)}),
    "KvarveMemoryNotGivenBack": ({s("kvarve_arena_draining_bytes"): stays(1)}, 0, {s("kvarve_arena_draining_bytes"): stays(0)}),
    "KvarveConnectionsRefused": ({s("kvarve_connections_refused_total", 'reason="not_allowed"'): jumps(0, 11)}, 20,
                                 {s("kvarve_connections_refused_total", 'reason="not_allowed"'): jumps(0, 9)}),
    "KvarveClientsDie": ({s("kvarve_session_deaths_total", 'how="process_exit"'): jumps(0, 11)}, 20,
                         {s("kvarve_session_deaths_total", 'how="process_exit"'): jumps(0, 9),
                          s("kvarve_session_deaths_total", 'how="bye"'): grows(600)}),
    "KvarveAuthFailures": ({s("kvarve_auth_failures_total", 'reason="wrong_token"'): grows(66)}, 5,
                           {s("kvarve_auth_failures_total", 'reason="wrong_token"'): grows(54)}),
    "KvarveCredentialsStale": ({s("kvarve_auth_reloads_total", 'result="failed"'): grows(1)}, 1,
                               {s("kvarve_auth_reloads_total", 'result="ok"'): grows(6)}),
    "KvarveSlowRequests": ({s("kvarve_slow_requests_total"): grows(11), LOCAL: grows(1000)}, 1,
                           {s("kvarve_slow_requests_total"): grows(9), LOCAL: grows(1000)}),
    "KvarveCatalogueErrors": ({s("kvarve_catalogue_errors_total", 'device="d"'): jumps(0, 1)}, 20,
                              {s("kvarve_catalogue_errors_total", 'device="d"'): stays(3)}),
    "KvarveSlowCalls": ({s("kvarve_rpc_slow_requests_total"): grows(11), CALLS: grows(1000)}, 1,
                        {s("kvarve_rpc_slow_requests_total"): grows(9), CALLS: grows(1000)}),
    "KvarveCallsFail": (
        {s("kvarve_rpc_requests_total", 'method="Lookup",code="INTERNAL"'): grows(11), CALLS: grows(989)}, 1,
        {s("kvarve_rpc_requests_total", 'method="Lookup",code="INTERNAL"'): grows(9), CALLS: grows(991),
         s("kvarve_rpc_requests_total", 'method="Lookup",code="RESOURCE_EXHAUSTED"'): grows(900)}),
    "KvarveEnginePassive": ({s("kvarve_connector_passive", ENGINE + ',reason="speculative decoding"'): stays(1)}, 0,
                            {s("kvarve_connector_passive", ENGINE + ',reason="speculative decoding"'): stays(0)}),
    "KvarveLoadsFail": ({s("kvarve_connector_load_failures_total", ENGINE): jumps(0, 11)}, 20,
                        {s("kvarve_connector_load_failures_total", ENGINE): jumps(0, 9)}),
    "KvarveSavesDropped": (
        {s("kvarve_connector_save_dropped_blocks_total", ENGINE): grows(55), s("kvarve_connector_save_blocks_total", ENGINE): grows(1000)}, 1,
        {s("kvarve_connector_save_dropped_blocks_total", ENGINE): grows(45), s("kvarve_connector_save_blocks_total", ENGINE): grows(1000)}),
}


def minutes_of(name):
    """`for` of the rule."""
    text = ALERTS[name].get("for", "0m")
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def judge(tmp_path, series, expressions=(), alerts=()):
    """Lets promtool judge: (minute, expression, value), and (minute, alert, the labels and annotations that it has)."""
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {"expr": expression, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": value}]}
                for minute, expression, value in expressions],
            "alert_rule_test": [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected]}
                                for minute, name, expected in alerts]}]}
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(case))
    answer = run(TOOLS / "bin/promtool", "test", "rules", path, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def firing(name):
    return f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'


def test_promtool_finds_the_rules_good():
    assert "SUCCESS" in run(TOOLS / "bin/promtool", "check", "rules", RULES).stdout


def test_who_fires_at_once():
    """What lasts a moment wakes nobody; what has happened, has."""
    at_once = {name for name in ALERTS if minutes_of(name) == 0}
    assert at_once == {"KvarveRestarts", "KvarveWrongBytes", "KvarveDeviceErrors", "KvarveConnectionsRefused", "KvarveClientsDie",
                       "KvarveCatalogueErrors"}


def test_each_alert_has_its_cases():
    assert set(CASES) == set(ALERTS)


@pytest.mark.parametrize("name", CASES)
def test_it_fires_just_beyond_its_bound_and_not_a_minute_early(tmp_path, name):
    beyond, first, _ = CASES[name]
    due = first + minutes_of(name)
    early = [(due - 1, firing(name), 0)] if due > 0 else []
    # Records are of another group, and which group is evaluated first is nobody's choice.
    late = 1 if "kvarve:" in ALERTS[name]["expr"] else 0
    judge(tmp_path, beyond, [*early, (due + late, firing(name), 1)])


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire_just_within_its_bound(tmp_path, name):
    _, first, within = CASES[name]
    due = first + minutes_of(name)
    judge(tmp_path, within, [(minute, firing(name), 0) for minute in (due, due + 10, MINUTES)])


def test_wrong_bytes_of_a_device_fire_too(tmp_path):
    judge(tmp_path, {s("kvarve_nvme_corrupt_blocks_total", 'device="d"'): jumps(0, 1)}, [(20, firing("KvarveWrongBytes"), 1)])


def test_what_an_alert_says(tmp_path):
    """Where it is, in the labels that routes are made of, and what to do, in words without a hole."""
    judge(tmp_path, {s("kvarve_connections_refused_total", 'reason="not_allowed",uid="5"'): jumps(0, 11)}, alerts=[
        (20, "KvarveConnectionsRefused", {
            "exp_labels": {"job": "kvarve", "instance": "a:9410", "namespace": "n", "pod": "p", "reason": "not_allowed", "severity": "warning"},
            "exp_annotations": {"summary": "a:9410 turned clients away: not_allowed", "runbook_url": RUNBOOKS + "kvarveconnectionsrefused"}})])


@pytest.mark.parametrize("name", ALERTS)
def test_annotations_name_labels_that_the_alert_has(name):
    rule = ALERTS[name]
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    groups = re.findall(r"(?:sum|max) by \(([^)]*)\)", rule["expr"])
    kept = set(groups[0].replace(" ", "").split(",")) if groups else None
    if kept is not None:
        assert named <= kept
        assert {"job", "instance", "namespace", "pod", "node"} <= kept
    else:  # of the series itself
        of_the_series = set(re.findall(r'(\w+)="', " ".join(CASES[name][0]))) | {"job", "instance"}
        assert named <= of_the_series


def test_records(tmp_path):
    """A hit ratio of one in four; an engine that computes 30 tokens and loads 60 each minute, the 30 within 3 seconds."""
    keys = "kvarve_tenant_lookup_keys_total"
    series = {
        s(keys, 'tenant="t",result="hit"'): "0+60x60", s(keys, 'tenant="t",result="miss"'): "0+180x60",
        'kvarve_connector_loaded_tokens_total{model_name="m"}': "0+60x60",
        'vllm:prompt_tokens_total{model_name="m"}': "0+90x60",
        'vllm:request_prefill_time_seconds_sum{model_name="m"}': "0+3x60"}
    expected = {"kvarve:hit_ratio:rate5m": ({"job": "kvarve", "instance": "a:9410", "namespace": "n", "pod": "p"}, 0.25),
                "kvarve:tenant_hit_ratio:rate5m": ({"job": "kvarve", "namespace": "n", "tenant": "t"}, 0.25),
                "kvarve:saved_prefill_seconds:rate5m": ({"model_name": "m"}, 0.1)}  # 6 s a minute
    case = {"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [{
        "interval": "1m", "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{
            "expr": f"round({name}, 0.000001)", "eval_time": "30m",
            "exp_samples": [{"labels": "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}", "value": value}]}
            for name, (labels, value) in expected.items()]}]}
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(case))
    answer = run(TOOLS / "bin/promtool", "test", "rules", path, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_each_alert_has_a_runbook():
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#### (Kvarve\w+)$", page, re.M))
    assert sections == set(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == RUNBOOKS + name.lower()
