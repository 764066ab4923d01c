#!/usr/bin/env python3
"""The Grafana dashboards, from one table of panels: title, unit, kind, queries.

usage: make_dashboards.py [FOLDER]   writes FOLDER/*.json (default: the chart's files/dashboards)

$job and $instance choose daemons, $tenant tenants, $model engines; rates go over Grafana's $__rate_interval.
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "helm/kvarve/files/dashboards"
DAEMON = 'job=~"$job",instance=~"$instance"'
TENANT = DAEMON + ',tenant=~"$tenant"'
ENGINE = 'model_name=~"$model"'
STAT, TIME, TABLE = "stat", "timeseries", "table"


def rate(metric, labels=DAEMON):
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def by(label, expression):
    return f"sum by ({label}) ({expression})"


def total(expression):
    return f"sum({expression})"


def seldom(expression):
    """Of a series that is there only once something happened."""
    return f"({expression}) or vector(0)"


def ratio(part, whole):
    return f"{part} / clamp_min({whole}, 1e-9)"


def found(labels=DAEMON, of=total):
    keys = "kvarve_tenant_lookup_keys_total"
    return ratio(of(rate(keys, labels + ',result="hit"')), of(rate(keys, labels)))


def quantile(q):
    return f'histogram_quantile({q}, {by("type, le", rate("kvarve_local_request_seconds_bucket"))})'


# Seconds of prefill that an engine did not spend: what it loaded, at what its own prefill costs a token.
SAVED = (f'sum({rate("kvarve_connector_loaded_tokens_total", ENGINE)}) * '
         f'sum({rate("vllm:request_prefill_time_seconds_sum", ENGINE)}) / '
         f'clamp_min(sum({rate("vllm:prompt_tokens_total", ENGINE)}) - sum({rate("kvarve_connector_loaded_tokens_total", ENGINE)}), 1)')

# dashboard -> (title, variables, rows of panels); a panel: title, unit, kind, {legend: query}
DASHBOARDS = {
    "kvarve-overview": ("kvarve: overview", ("job", "instance"), [
        [("Daemons", "none", STAT, {"": f'count(kvarve_build_info{{{DAEMON}}})'}),
         ("Keys found", "percentunit", STAT, {"": found()}),
         ("Memory in use", "percentunit", STAT, {"": ratio(f'sum(kvarve_arena_bytes{{{DAEMON},state="resident"}})', f"sum(kvarve_arena_capacity_bytes{{{DAEMON}}})")}),
         ("Clients", "none", STAT, {"": f"sum(kvarve_sessions{{{DAEMON}}})"}),
         ("Up since", "dateTimeAsIso", STAT, {"{{instance}}": f"kvarve_start_time_seconds{{{DAEMON}}} * 1000"})],
        [("Keys found of those looked up", "percentunit", TIME, {"{{instance}}": found(of=lambda e: by("instance", e))}),
         ("Blocks read and not found", "ops", TIME, {"read": total(rate("kvarve_hit_blocks_total")), "not found": total(rate("kvarve_miss_blocks_total"))})],
        [("Bytes read, by way", "Bps", TIME, {"{{transport}}": by("transport", rate("kvarve_get_bytes_total"))}),
         ("Bytes stored", "Bps", TIME, {"{{instance}}": by("instance", rate("kvarve_put_bytes_total"))})],
        [("Blocks put, by result", "ops", TIME, {"{{result}}": by("result", rate("kvarve_put_blocks_total"))}),
         ("Blocks that left, by reason", "ops", TIME, {"{{reason}}": by("reason", rate("kvarve_evicted_blocks_total"))})],
        [("Time of requests, median", "s", TIME, {"{{type}}": quantile(0.5)}),
         ("Time of requests, 99th percentile", "s", TIME, {"{{type}}": quantile(0.99)})],
        [("Slow requests", "ops", TIME, {"{{instance}}": rate("kvarve_slow_requests_total")}),
         ("Refused connections, by reason", "ops", TIME, {"{{reason}}": by("reason", rate("kvarve_connections_refused_total"))}),
         ("Versions", "none", TABLE, {"{{instance}} {{version}}": f"kvarve_build_info{{{DAEMON}}}"})],
        [("gRPC calls, by method and code", "ops", TIME, {"{{method}} {{code}}": by("method, code", rate("kvarve_rpc_requests_total"))}),
         ("gRPC: connections and streams", "none", TIME, {"connections": f"sum(kvarve_rpc_connections{{{DAEMON}}})", "streams": f"sum(kvarve_rpc_streams{{{DAEMON}}})"}),
         ("gRPC: slow, cut and refused", "ops", TIME, {"slow calls": total(rate("kvarve_rpc_slow_requests_total")), "streams: {{reason}}": by("reason", rate("kvarve_rpc_streams_ended_total")), "connections: {{reason}}": by("reason", rate("kvarve_rpc_connections_ended_total"))})],
        [("gRPC: callers refused, by reason", "ops", TIME, {"{{reason}}": by("reason", rate("kvarve_auth_failures_total"))}),
         ("gRPC: failed TLS handshakes", "ops", TIME, {"{{instance}}": by("instance", rate("kvarve_rpc_tls_handshake_failures_total"))})],
    ]),
    "kvarve-tiers": ("kvarve: tiers and devices", ("job", "instance"), [
        [("Memory: capacity and use", "bytes", TIME, {"capacity": f"sum(kvarve_arena_capacity_bytes{{{DAEMON}}})", "{{state}}": f"sum by (state) (kvarve_arena_bytes{{{DAEMON}}})"}),
         ("Memory not given back, and wasted ends", "bytes", TIME, {"draining": f"sum(kvarve_arena_draining_bytes{{{DAEMON}}})", "wasted": f"sum(kvarve_arena_wasted_bytes{{{DAEMON}}})", "quarantined": f"sum(kvarve_lease_quarantine_bytes{{{DAEMON}}})"})],
        [("Blocks, by tier", "none", TIME, {"memory": f"sum(kvarve_index_entries{{{DAEMON}}})", "NVMe": f"sum(kvarve_nvme_blocks{{{DAEMON}}})"}),
         ("Memory of indexes", "bytes", TIME, {"index": f"sum(kvarve_index_bytes{{{DAEMON}}})", "policy": f"sum(kvarve_policy_bytes{{{DAEMON}}})", "NVMe index": f"sum(kvarve_nvme_index_bytes{{{DAEMON}}})"}),
         ("Page size", "bytes", TABLE, {"{{instance}} {{pool}}": f"kvarve_arena_page_size_bytes{{{DAEMON}}}"})],
        [("NVMe: size and use", "bytes", TIME, {"{{device}}": f"kvarve_nvme_capacity_bytes{{{DAEMON}}}", "blocks found": f"sum(kvarve_nvme_bytes{{{DAEMON}}})"}),
         ("NVMe: on their way", "bytes", TIME, {"dirty": f"sum(kvarve_nvme_dirty_bytes{{{DAEMON}}})", "at most": f"sum(kvarve_nvme_dirty_bytes_max{{{DAEMON}}})"}),
         ("Devices", "none", TABLE, {"{{device}} {{state}}": f"kvarve_nvme_device_state{{{DAEMON}}}", "{{device}} {{backend}} direct={{direct}} as wanted={{as_wanted}}": f"kvarve_io_backend{{{DAEMON}}}"})],
        [("NVMe: blocks written and loaded", "ops", TIME, {"written": total(rate("kvarve_nvme_written_blocks_total")), "loaded": total(rate("kvarve_nvme_loaded_blocks_total"))}),
         ("NVMe: bytes, by urgency", "Bps", TIME, {"{{device}} {{class}} {{op}}": by("device, class, op", rate("kvarve_nvme_io_bytes_total"))})],
        [("NVMe: write amplification", "none", TIME, {"{{instance}}": ratio(by("instance", rate("kvarve_nvme_device_written_bytes_total")), by("instance", rate("kvarve_nvme_written_bytes_total")))}),
         ("NVMe: not admitted, by reason", "ops", TIME, {"{{reason}}": by("reason", rate("kvarve_nvme_admit_dropped_total"))}),
         ("NVMe: shed and given up", "ops", TIME, {"shed": total(rate("kvarve_nvme_shed_blocks_total")), "{{reason}}": by("reason", rate("kvarve_nvme_given_up_blocks_total"))})],
        [("NVMe: loads that failed", "ops", TIME, {"{{reason}}": by("reason", rate("kvarve_nvme_load_misses_total"))}),
         ("NVMe: errors", "ops", TIME, {"{{device}} reads": rate("kvarve_nvme_read_errors_total"), "{{device}} writes": rate("kvarve_nvme_write_failures_total"), "{{device}} wrong bytes": rate("kvarve_nvme_corrupt_blocks_total")}),
         ("NVMe: segments", "none", TIME, {"{{device}} {{state}}": f"sum by (device, state) (kvarve_nvme_segments{{{DAEMON}}})"}),
         ("NVMe: write budget left", "bytes", TIME, {"{{device}}": f"kvarve_nvme_budget_bytes{{{DAEMON}}}"})],
    ]),
    "kvarve-tenants": ("kvarve: tenants", ("job", "instance", "tenant"), [
        [("Memory", "bytes", TIME, {"{{tenant}}": f'sum by (tenant) (kvarve_tenant_bytes{{{TENANT},tier="host"}})'}),
         ("Quotas", "none", TABLE, {"{{tenant}} {{resource}} {{limit}}": f"sum by (tenant, resource, limit) (kvarve_tenant_quota{{{TENANT}}})"})],
        [("Keys found", "percentunit", TIME, {"{{tenant}}": found(TENANT, lambda e: by("tenant", e))}),
         ("Keys looked up", "ops", TIME, {"{{tenant}} {{result}}": by("tenant, result", rate("kvarve_tenant_lookup_keys_total", TENANT))})],
        [("Bytes read", "Bps", TIME, {"{{tenant}}": by("tenant", rate("kvarve_tenant_hit_bytes_total", TENANT))}),
         ("Bytes stored", "Bps", TIME, {"{{tenant}}": by("tenant", rate("kvarve_tenant_put_bytes_total", TENANT))})],
        [("Requests, by way and result", "ops", TIME, {"{{tenant}} {{transport}} {{result}}": by("tenant, transport, result", rate("kvarve_tenant_requests_total", TENANT))}),
         ("Bytes, by way and direction", "Bps", TIME, {"{{tenant}} {{transport}} {{direction}}": by("tenant, transport, direction", rate("kvarve_tenant_transport_bytes_total", TENANT))})],
        [("Blocks evicted", "ops", TIME, {"{{tenant}}": by("tenant", rate("kvarve_tenant_evicted_blocks_total", TENANT))}),
         ("Refused by quota", "ops", TIME, {"{{tenant}} {{resource}}": by("tenant, resource", rate("kvarve_tenant_quota_refused_blocks_total", TENANT))})],
        [("Blocks", "none", TIME, {"{{tenant}}": f"sum by (tenant) (kvarve_tenant_entries{{{TENANT}}})"}),
         ("Read in place now", "bytes", TIME, {"{{tenant}}": f"sum by (tenant) (kvarve_tenant_leased_bytes{{{TENANT}}})"}),
         ("Clients", "none", TIME, {"{{tenant}}": f"sum by (tenant) (kvarve_tenant_sessions{{{TENANT}}})",
                                    "{{tenant}} over gRPC": f"sum by (tenant) (kvarve_tenant_rpc_connections{{{TENANT}}})"})],
    ]),
    "kvarve-engines": ("kvarve: engines", ("job", "instance", "model"), [
        [("Prefill saved", "s", STAT, {"seconds a second": SAVED}),
         ("Prompt tokens loaded instead of computed", "percentunit", STAT, {"": ratio(total(rate("kvarve_connector_loaded_tokens_total", ENGINE)), total(rate("vllm:prompt_tokens_total", ENGINE)))}),
         ("Passive connectors", "none", STAT, {"": seldom(f"sum(kvarve_connector_passive{{{ENGINE}}})")})],
        [("Prefill saved, seconds a second", "none", TIME, {"saved": SAVED}),
         ("Tokens: loaded and prompted", "ops", TIME, {"loaded": total(rate("kvarve_connector_loaded_tokens_total", ENGINE)), "prompted": total(rate("vllm:prompt_tokens_total", ENGINE))})],
        [("Time to first token", "s", TIME, {"median": f'histogram_quantile(0.5, {by("le", rate("vllm:time_to_first_token_seconds_bucket", ENGINE))})', "99th percentile": f'histogram_quantile(0.99, {by("le", rate("vllm:time_to_first_token_seconds_bucket", ENGINE))})'}),
         ("Lookups, and those without an answer", "ops", TIME, {"lookups": total(rate("kvarve_connector_lookups_total", ENGINE)), "failures": seldom(total(rate("kvarve_connector_lookup_failures_total", ENGINE)))})],
        [("Blocks loaded and saved", "ops", TIME, {"loaded": total(rate("kvarve_connector_load_blocks_total", ENGINE)), "saved": total(rate("kvarve_connector_save_blocks_total", ENGINE))}),
         ("Loads and saves that failed", "ops", TIME, {"loads": seldom(total(rate("kvarve_connector_load_failures_total", ENGINE))), "saves": seldom(total(rate("kvarve_connector_save_failed_blocks_total", ENGINE))), "saves dropped": seldom(total(rate("kvarve_connector_save_dropped_blocks_total", ENGINE)))})],
        [("Clients of the daemon", "none", TIME, {"sessions": f"sum(kvarve_sessions{{{DAEMON}}})", "ended, process alive": f"sum(kvarve_ended_sessions{{{DAEMON}}})"}),
         ("Ends of sessions, by how", "ops", TIME, {"{{how}}": by("how", rate("kvarve_session_deaths_total"))}),
         ("Staging and leases", "bytes", TIME, {"staging": f"sum(kvarve_staging_bytes{{{DAEMON}}})", "leased": f"sum(kvarve_leased_bytes{{{DAEMON}}})"})],
    ]),
}
VARIABLES = {
    "job": "label_values(kvarve_build_info, job)",
    "instance": 'label_values(kvarve_build_info{job=~"$job"}, instance)',
    "tenant": f"label_values(kvarve_tenant_bytes{{{DAEMON}}}, tenant)",
    "model": "label_values(kvarve_connector_loaded_tokens_total, model_name)",
}
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panel(number, title, unit, kind, queries, place):
    targets = [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto",
                **({"instant": True, "format": "table"} if kind == TABLE else {})}
               for i, (legend, query) in enumerate(queries.items())]
    return {"id": number, "type": kind, "title": title, "datasource": SOURCE, "gridPos": place, "targets": targets,
            "fieldConfig": {"defaults": {"unit": unit, "min": 0} if kind == TIME else {"unit": unit}, "overrides": []}}


def dashboard(uid, title, variables, rows):
    panels, y = [], 0
    for row in rows:
        height = STAT_HEIGHT if all(kind == STAT for _, _, kind, _ in row) else HEIGHT
        width = WIDTH // len(row)
        for i, (name, unit, kind, queries) in enumerate(row):
            place = {"x": i * width, "y": y, "w": width, "h": height}
            panels.append(panel(len(panels) + 1, name, unit, kind, queries, place))
        y += height
    chosen = [{"name": name, "type": "query", "datasource": SOURCE, "query": VARIABLES[name], "refresh": 2, "multi": True,
               "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}} for name in variables]
    return {"uid": uid, "title": title, "tags": ["kvarve"], "schemaVersion": 39, "version": 1, "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"}, "editable": True, "panels": panels,
            "links": [{"type": "dashboards", "tags": ["kvarve"], "title": "kvarve", "asDropdown": False, "keepTime": True}],
            "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *chosen]}}


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for uid, (title, variables, rows) in DASHBOARDS.items():
        text = json.dumps(dashboard(uid, title, variables, rows), indent=1) + "\n"
        (folder / f"{uid}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
