"""What the chart's objects say to Kubernetes and to Prometheus, apart from how they look."""
import fnmatch
import re
import shutil

import pytest
import yaml
from chart_objects import config_text, containers, gibibytes_of_size, kvarved, mebibytes, of_kind, pod_specs
from conftest import CHART, VALUES, helm, objects, render

POOL = ("--set=mode=statefulset,rpc.tls.certManager.enabled=true,rpc.tls.certManager.issuerRef.name=ca",)
MONITORED = "--set=metrics.podMonitor.enabled=true"


def only(documents, kind):
    (found,) = of_kind(documents, kind)
    return found


def values_of(variant):
    return yaml.safe_load(variant[0].read_text())


def has_engine(values):
    return values.get("mode") == "sidecar" and values.get("engine", {}).get("enabled", True)


# ---- memory, users, probes

def test_memory_has_room_for_the_capacity(variant):
    """The daemon refuses more than 80 % of its limit. Huge pages are no part of the limit: nobody pays for them twice."""
    values = values_of(variant)
    capacity = gibibytes_of_size(values.get("capacity", "16GiB"))
    overhead = gibibytes_of_size(values.get("memory", {}).get("overhead", "3GiB"))
    for _, spec in pod_specs(objects(variant[1])):
        limits = kvarved(spec)["resources"]["limits"]
        limit = mebibytes(limits["memory"]) / 1024
        if values.get("memory", {}).get("hugePages"):
            assert limit == overhead
            assert 0 <= mebibytes(limits["hugepages-2Mi"]) / 1024 - capacity < 2 / 1024
        else:
            assert "hugepages-2Mi" not in limits
            assert limit * 0.8 >= capacity and limit >= capacity + overhead


@pytest.mark.parametrize("capacity, pages", [("1.3GiB", 666), ("1001MiB", 501), ("64GiB", 32768), ("33MiB", 17)])
def test_huge_pages_are_whole(capacity, pages):
    """The API server refuses quantities that are no multiple of the page."""
    ((_, spec),) = pod_specs(objects(render(f"--set=capacity={capacity},memory.hugePages=true")))
    assert kvarved(spec)["resources"]["limits"]["hugepages-2Mi"] == f"{pages * 2}Mi"


def test_users_and_groups_may_use_what_is_mounted(variant):
    user = {"uid": 10410, "gid": 10410, **values_of(variant).get("user", {})}
    for kind, spec in pod_specs(objects(variant[1])):
        context = spec["securityContext"]
        assert context["runAsUser"] == user["uid"] and context["runAsGroup"] == user["gid"]
        assert context["fsGroup"] == user["gid"]  # volumes and secrets
        cache = kvarved(spec)["securityContext"]
        assert (cache["runAsUser"], cache["runAsGroup"]) == (user["uid"], user["gid"])
        if kind == "Deployment":
            assert context["supplementalGroups"] == [user["gid"]]  # the engine's way to the socket


def test_another_user_is_taken_everywhere():
    ((_, spec),) = pod_specs(objects(render("--set=mode=sidecar,user.uid=700,user.gid=701")))
    assert spec["securityContext"]["fsGroup"] == 701 and spec["securityContext"]["supplementalGroups"] == [701]
    ((_, spec),) = pod_specs(objects(render("--set=user.uid=700,user.gid=701")))
    assert {"--owner=700", "--group=701"} <= set(spec["initContainers"][0]["command"])


def probes(container):
    """Path of each probe; its port is one that the container names."""
    ports = {port["name"] for port in container["ports"]}
    found = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert all(probe["port"] in ports for probe in found.values())
    return {name: probe["path"] for name, probe in found.items()}


def test_probes(variant):
    """A daemon that drains is alive. Beside an engine it is not asked whether it is ready: that would count for the engine."""
    for kind, spec in pod_specs(objects(variant[1])):
        wanted = {"startupProbe": "/readyz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
        if kind == "Deployment":
            del wanted["readinessProbe"]
        assert probes(kvarved(spec)) == wanted
        for container in spec["containers"]:
            if container["name"] == "vllm":
                assert probes(container) == dict.fromkeys(("startupProbe", "livenessProbe", "readinessProbe"), "/health")


def test_a_sidecar_asks_for_the_disk_that_it_fills():
    ((_, spec),) = pod_specs(objects(render("--set=mode=sidecar,nvme.size=20GiB")))
    data = next(v for v in spec["volumes"] if v["name"] == "data")["emptyDir"]["sizeLimit"]
    assert kvarved(spec)["resources"]["requests"]["ephemeral-storage"] == data == "21504Mi"


def test_a_newer_chart_that_says_the_same_leaves_pods_alone(tmp_path):
    shutil.copytree(CHART, tmp_path / "kvarve")
    path = tmp_path / "kvarve/Chart.yaml"
    text = path.read_text()
    path.write_text(re.sub(r"(?m)^(version|appVersion): .*$", r"\1: 9.9.9", text))
    for mode in ("--set=mode=daemonset", "--set=mode=sidecar", *POOL):
        pinned = (mode, "--set=image.tag=pinned")
        old, new = (pod_template(objects(render(*pinned, chart=chart))) for chart in (CHART, tmp_path / "kvarve"))
        assert old == new
    assert only(objects(render(chart=tmp_path / "kvarve")), "ConfigMap")["metadata"]["labels"]["helm.sh/chart"] == "kvarve-9.9.9"


def pod_template(documents):
    return next(d["spec"]["template"] for d in documents if d["kind"] in ("DaemonSet", "StatefulSet", "Deployment"))


# ---- who is reached, and by which name

def test_the_certificate_has_every_name_of_the_pool():
    documents = objects(render(*POOL, "--set=replicas=3,clusterDomain=corp.example"))
    names = only(documents, "Certificate")["spec"]["dnsNames"]
    pool = only(documents, "StatefulSet")
    hosts = [f"{pool['metadata']['name']}.inference.svc"]
    hosts += [f"{pool['metadata']['name']}-{i}.{pool['spec']['serviceName']}.inference.svc" for i in range(3)]
    services = {service["metadata"]["name"] for service in of_kind(documents, "Service")}
    assert {pool["metadata"]["name"], pool["spec"]["serviceName"]} == services
    for host in hosts:
        for full in (host, host + ".corp.example"):
            assert any(full.count(".") == name.count(".") and fnmatch.fnmatchcase(full, name) for name in names), full
    assert only(documents, "Certificate")["spec"]["secretName"] in str(pod_template(documents)["spec"]["volumes"])


def test_an_engine_stays_at_one_pod_of_the_pool():
    services = of_kind(objects(render(*POOL)), "Service")
    reached = next(service for service in services if service["spec"].get("clusterIP") != "None")
    assert reached["spec"]["sessionAffinity"] == "ClientIP"


def test_budget_of_disruptions(variant):
    values = values_of(variant)
    wanted = {"enabled": True, "maxUnavailable": 1, **values.get("podDisruptionBudget", {})}
    budgets = of_kind(objects(variant[1]), "PodDisruptionBudget")
    if not wanted["enabled"] or not (values.get("mode") == "statefulset" or has_engine(values)):
        assert budgets == []
        return
    assert budgets[0]["spec"]["maxUnavailable"] == wanted["maxUnavailable"]


def test_network_policy(variant):
    """Ports are numbers: not every plugin finds names of an init container. Pods of another chart are not ours to cut off."""
    documents, values = objects(variant[1]), values_of(variant)
    policies, policy = of_kind(documents, "NetworkPolicy"), values.get("networkPolicy", {})
    if not policy.get("enabled", True):
        assert policies == []
        return
    ((_, spec),) = pod_specs(documents)
    ports = {port["name"]: port["containerPort"] for c in containers(spec) for port in c.get("ports", [])}
    clients, monitoring = policy.get("clients", []), policy.get("monitoring", [])
    wanted = {ports["metrics"]: monitoring or None}
    if "grpc" in ports and clients:
        wanted[ports["grpc"]] = clients
    if "http" in ports:
        wanted[ports["http"]] = clients + monitoring if clients else None
    rules = policies[0]["spec"]["ingress"]
    assert {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]} == wanted
    if values.get("mode") != "sidecar":
        assert policies[0]["spec"]["egress"] == []


def test_pods_of_another_chart_get_no_network_policy():
    assert of_kind(objects(render("--set=mode=sidecar,engine.enabled=false")), "NetworkPolicy") == []


def test_what_listens_takes_the_address_family_that_pods_have():
    settings = yaml.safe_load(config_text(objects(render(*POOL, "--set=bindAddress=[::]"))))
    assert settings["metrics"]["listen"] == "[::]:9410" and settings["rpc"]["listen"] == "[::]:7410"
    for address, asked in (("[::]", True), ("0.0.0.0", False)):
        ((_, spec),) = pod_specs(objects(render(f"--set=mode=sidecar,bindAddress={address}")))
        assert ("--host=::" in spec["containers"][0]["args"]) is asked


# ---- Prometheus and Grafana

def test_observability_objects_hold_the_files_of_this_tree():
    documents = objects(render("--set=metrics.rules.enabled=true,metrics.dashboards.enabled=true"))
    assert only(documents, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files/rules/kvarve.yaml").read_text())
    boards = next(d for d in of_kind(documents, "ConfigMap") if d["metadata"]["name"].endswith("-dashboards"))
    files = {path.name: path.read_text() for path in (CHART / "files/dashboards").glob("*.json")}
    assert boards["data"] == files and len(files) == 4
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"


def scraped(documents):
    """job -> port of each endpoint, as Prometheus will call it, and the pods that the monitor selects."""
    monitor = only(documents, "PodMonitor")["spec"]
    jobs = {}
    for endpoint in monitor["podMetricsEndpoints"]:
        (job,) = [r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job" and "sourceLabels" not in r]
        jobs[job] = (endpoint["port"], endpoint["path"])
    return jobs, monitor["selector"]["matchLabels"]


@pytest.mark.parametrize("named", ["nameOverride=kvarve", "nameOverride=cache", "fullnameOverride=pool"])
def test_the_job_is_kvarve_however_the_release_is_called(named):
    """Alerts select by it."""
    documents = objects(render(MONITORED, "--set=" + named))
    jobs, selected = scraped(documents)
    assert jobs == {"kvarve": ("metrics", "/metrics")}
    assert selected.items() <= pod_template(documents)["metadata"]["labels"].items()
    rules = yaml.safe_load((CHART / "files/rules/kvarve.yaml").read_text())
    (down,) = [r for g in rules["groups"] for r in g["rules"] if r.get("alert") == "KvarveDown"]
    operator, wanted = re.search(r'up\{job(=~?)"([^"]+)"\}', down["expr"]).groups()
    assert wanted == "kvarve" if operator == "=" else re.fullmatch(wanted, "kvarve")


def test_the_charts_own_engine_is_scraped_too():
    documents = objects(render(MONITORED, "--set=mode=sidecar"))
    jobs, _ = scraped(documents)
    assert jobs == {"kvarve": ("metrics", "/metrics"), "vllm": ("http", "/metrics")}
    ports = {port["name"]: c["name"] for c in containers(pod_template(documents)["spec"]) for port in c["ports"]}
    assert ports == {"metrics": "kvarved", "http": "vllm"}


# ---- values of one's own

def test_common_labels_are_on_every_object():
    extra = "--set=commonLabels.team=a,podLabels.team=b,metrics.rules.enabled=true,metrics.rules.labels.team=c"
    for mode in ("--set=mode=daemonset", "--set=mode=sidecar", *POOL):
        documents = objects(render(mode, extra, MONITORED))
        assert len(documents) > 5
        for document in documents:
            assert document["metadata"]["labels"]["team"] == ("c" if document["kind"] == "PrometheusRule" else "a")
        assert pod_template(documents)["metadata"]["labels"]["team"] == "b"


EXTRA = """
runtimeClassName: kata
seLinuxOptions: {type: spc_t}
extraEnv: [{name: KVARVE_LOG_FORMAT, value: json}]
extraVolumes: [{name: more, emptyDir: {}}]
extraVolumeMounts: [{name: more, mountPath: /more}]
engine:
  pullPolicy: Never
  volumes: [{name: weights, persistentVolumeClaim: {claimName: w}}]
  volumeMounts: [{name: weights, mountPath: /weights}]
"""


def test_extras_reach_pod_and_container(tmp_path):
    path = tmp_path / "values.yaml"
    path.write_text(EXTRA)
    for mode in ("--set=mode=daemonset", "--set=mode=sidecar", *POOL):
        ((kind, spec),) = pod_specs(objects(render("--values", path, mode)))
        cache = kvarved(spec)
        assert spec["runtimeClassName"] == "kata" and spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
        assert {"name": "KVARVE_LOG_FORMAT", "value": "json"} in cache["env"]
        assert {"name": "more", "emptyDir": {}} in spec["volumes"]
        assert {"name": "more", "mountPath": "/more"} in cache["volumeMounts"]
        if kind == "Deployment":
            engine = spec["containers"][0]
            assert {"name": "weights", "persistentVolumeClaim": {"claimName": "w"}} in spec["volumes"]
            assert {"name": "weights", "mountPath": "/weights"} in engine["volumeMounts"]
            assert engine["imagePullPolicy"] == "Never"


# ---- what is said after the installation

def notes_of(*arguments):
    text = helm("install", "demo", CHART, "--dry-run=client", "--namespace=inference", *arguments).stdout
    return text[text.index("NOTES:"):]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_notes_say_the_next_step(values):
    notes = notes_of("--values", values)
    assert "kvarve doctor" in notes or "own" in values.stem
    assert "KVARVE" in notes
    set_ = yaml.safe_load(values.read_text())
    assert ("WARNING" in notes) is set_.get("rpc", {}).get("insecurePlaintext", False)
    assert re.search(r"port-forward \S+/\S+ 9410", notes) and "http://127.0.0.1:9410/" in notes
    fixed = (set_.get("nvme") or {}).get("size") and set_.get("mode") != "sidecar"
    assert ("nvme.size" in notes) is bool(fixed)


def test_notes_mount_the_folder_so_that_engines_start_first():
    """An engine's pod may come to a node before kvarved; and it needs to write nothing in the folder."""
    volumes = re.search(r"volumes: +(\[.*\])", notes_of())[1]
    assert yaml.safe_load(volumes) == [{"name": "kvarve", "hostPath": {"path": "/run/kvarve", "type": "DirectoryOrCreate"}}]
    mounts = re.search(r"volumeMounts: +(\[.*\])", notes_of())[1]
    assert yaml.safe_load(mounts) == [{"name": "kvarve", "mountPath": "/run/kvarve", "readOnly": True}]


def test_notes_name_every_pod_of_a_pool():
    found = re.findall(r"kvarves://(\S+)", notes_of(*POOL, "--set=replicas=3,rpc.port=7000"))
    assert found == [f"demo-kvarve-{i}.demo-kvarve-nodes.inference.svc:7000" for i in range(3)]
    assert "share no blocks" in notes_of(*POOL, "--set=replicas=3") and "share no blocks" not in notes_of(*POOL)
    assert len(re.findall(r"kvarves://", notes_of(*POOL, "--set=replicas=40"))) == 16
