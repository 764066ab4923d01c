"""Each alert fires when it should and not when it should not, by promtool; and each has a runbook."""
import json
import re

import pytest
import yaml
from conftest import CHART, ROOT, TOOLS, run

RULES = CHART / "files/rules/kvarve.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule}
AT = 'job="kvarve",instance="a:9410"'
FLAT, RISES, FAST = "0x180", "0+6x180", "0+600x180"  # a sample a minute: 0.1 and 10 a second


def s(metric, more=""):
    return f"{metric}{{{AT}{',' if more else ''}{more}}}"


# alert -> series with which it fires, series with which it does not, and minutes after which both are so
CASES = {
    "KvarveDown": ({s("up"): FLAT}, {s("up"): "1x180", 'up{job="other",instance="b"}': FLAT}, 10),
    "KvarveRestarts": ({s("kvarve_start_time_seconds"): "0+100x180"}, {s("kvarve_start_time_seconds"): "1x80 2x100"}, 90),
    "KvarveWrongBytes": ({s("kvarve_corruption_total", 'tier="host"'): "0x20 1x160"}, {s("kvarve_corruption_total", 'tier="host"'): "5x180"}, 40),
    "KvarveDeviceFails": ({s("kvarve_nvme_device_state", 'device="d",state="write_off"'): "1x180"},
                          {s("kvarve_nvme_device_state", 'device="d",state="ready"'): "1x180"}, 5),
    "KvarveDeviceErrors": ({s("kvarve_nvme_write_failures_total", 'device="d"'): "0x20 2x160"},
                           {s("kvarve_nvme_read_errors_total", 'device="d"'): "3x180"}, 25),
    "KvarvePutsShed": ({s("kvarve_nvme_shed_blocks_total"): FAST, s("kvarve_put_blocks_total", 'result="stored"'): FAST},
                       {s("kvarve_nvme_shed_blocks_total"): RISES, s("kvarve_put_blocks_total", 'result="stored"'): FAST}, 60),
    "KvarveWriteBudgetUsedUp": (
        {s("kvarve_nvme_admit_dropped_total", 'reason="budget"'): FAST, s("kvarve_put_blocks_total", 'result="stored"'): FAST},
        {s("kvarve_nvme_admit_dropped_total", 'reason="budget"'): RISES, s("kvarve_put_blocks_total", 'result="stored"'): FAST}, 150),
    "KvarveSlowBackend": ({s("kvarve_io_backend", 'device="d",backend="posix",direct="true"'): "1x180"},
                          {s("kvarve_io_backend", 'device="d",backend="io_uring",direct="true"'): "1x180"}, 30),
    "KvarveHitRatioLow": (
        {s("kvarve_tenant_lookup_keys_total", 'tenant="t",result="hit"'): FLAT, s("kvarve_tenant_lookup_keys_total", 'tenant="t",result="miss"'): FAST},
        {s("kvarve_tenant_lookup_keys_total", 'tenant="t",result="hit"'): FAST, s("kvarve_tenant_lookup_keys_total", 'tenant="t",result="miss"'): FAST}, 120),
    "KvarveNoRoom": (
        {s("kvarve_put_blocks_total", 'result="rejected_no_space"'): FAST, s("kvarve_put_blocks_total", 'result="stored"'): FAST},
        {s("kvarve_put_blocks_total", 'result="rejected_no_space"'): RISES, s("kvarve_put_blocks_total", 'result="stored"'): FAST}, 60),
    "KvarveQuotaRefusals": ({s("kvarve_tenant_quota_refused_blocks_total", 'tenant="t",resource="host_bytes"'): FAST},
                            {s("kvarve_tenant_quota_refused_blocks_total", 'tenant="t",resource="host_bytes"'): RISES}, 60),
    "KvarveQuarantine": ({s("kvarve_lease_quarantine_bytes"): "200x180", s("kvarve_arena_capacity_bytes"): "1000x180"},
                         {s("kvarve_lease_quarantine_bytes"): "50x180", s("kvarve_arena_capacity_bytes"): "1000x180"}, 30),
    "KvarveMemoryNotGivenBack": ({s("kvarve_arena_draining_bytes"): "5x180"}, {s("kvarve_arena_draining_bytes"): "5x30 0x150"}, 120),
    "KvarveConnectionsRefused": ({s("kvarve_connections_refused_total", 'reason="not_allowed"'): FAST},
                                 {s("kvarve_connections_refused_total", 'reason="not_allowed"'): "40x180"}, 30),
    "KvarveClientsDie": ({s("kvarve_session_deaths_total", 'how="process_exit"'): FAST},
                         {s("kvarve_session_deaths_total", 'how="bye"'): FAST}, 30),
    "KvarveAuthFailures": ({s("kvarve_auth_failures_total", 'reason="wrong_token"'): FAST},
                           {s("kvarve_auth_failures_total", 'reason="wrong_token"'): RISES}, 30),
    "KvarveCredentialsStale": ({s("kvarve_auth_reloads_total", 'result="failed"'): RISES},
                               {s("kvarve_auth_reloads_total", 'result="ok"'): RISES}, 30),
    "KvarveSlowRequests": (
        {s("kvarve_slow_requests_total"): FAST, s("kvarve_local_requests_total", 'type="put",result="ok"'): FAST},
        {s("kvarve_slow_requests_total"): "0+1x180", s("kvarve_local_requests_total", 'type="put",result="ok"'): FAST}, 60),
    "KvarveCatalogueErrors": ({s("kvarve_catalogue_errors_total", 'device="d"'): RISES},
                              {s("kvarve_catalogue_errors_total", 'device="d"'): "3x180"}, 30),
}


def firing(tmp_path, name, series, minutes, expected):
    """Lets promtool judge whether so many alerts of the name fire."""
    case = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": series_name, "values": values} for series_name, values in series.items()],
            "promql_expr_test": [{
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": "{}", "value": expected}]}]}]}
    path = tmp_path / "case.yaml"
    path.write_text(json.dumps(case))
    return run(TOOLS / "bin/promtool", "test", "rules", path, check=False)


def test_promtool_finds_the_rules_good():
    assert "SUCCESS" in run(TOOLS / "bin/promtool", "check", "rules", RULES).stdout


def test_each_alert_has_its_cases():
    assert set(CASES) == set(ALERTS)


@pytest.mark.parametrize("name", CASES)
def test_it_fires(tmp_path, name):
    bad, _, minutes = CASES[name]
    answer = firing(tmp_path, name, bad, minutes, 1)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire(tmp_path, name):
    _, good, minutes = CASES[name]
    answer = firing(tmp_path, name, good, minutes, 0)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_records(tmp_path):
    """A hit ratio of one in four; an engine that computes 30 tokens and loads 60 each minute, the 30 within 3 seconds."""
    keys = "kvarve_tenant_lookup_keys_total"
    series = {
        s(keys, 'tenant="t",result="hit"'): "0+60x60", s(keys, 'tenant="t",result="miss"'): "0+180x60",
        'kvarve_connector_loaded_tokens_total{model_name="m"}': "0+60x60",
        'vllm:prompt_tokens_total{model_name="m"}': "0+90x60",
        'vllm:request_prefill_time_seconds_sum{model_name="m"}': "0+3x60"}
    expected = {"kvarve:hit_ratio:rate5m": ({"job": "kvarve", "instance": "a:9410"}, 0.25),
                "kvarve:tenant_hit_ratio:rate5m": ({"job": "kvarve", "tenant": "t"}, 0.25),
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
