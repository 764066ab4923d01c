"""Wrong values are refused, by a message that names the value; and kvarved runs with what right ones give."""
import json
import os
import shutil

import pytest
import yaml
from chart_objects import config_text, containers, kvarved, of_kind, pod_specs
from conftest import BUILD, CHART, HERE, helm, objects, render, run

# values -> what the message must name
WRONG = [
    ({"mode": "deployment"}, "/mode"),
    ({"capacty": "16GiB"}, "capacty"),
    ({"capacity": 17179869184}, "/capacity"),
    ({"replicas": -1}, "/replicas"),
    ({"replicas": "two"}, "/replicas"),
    ({"user": {"uid": 0}}, "/user/uid"),
    ({"metrics": {"port": 80}}, "/metrics/port"),
    ({"socket": {"hostPath": "/run/kvarve/kvarved.sock"}}, "/socket/hostPath"),
    ({"socket": {"hostPath": "run/kvarve"}}, "/socket/hostPath"),
    ({"nvme": {"hostPath": "/"}}, "/nvme/hostPath"),
    ({"nvme": {"backend": "aio"}}, "/nvme/backend"),
    ({"nvme": {"hostPath": "/etc"}}, "/nvme/hostPath"),
    ({"nvme": {"hostPath": "/var/lib"}}, "/nvme/hostPath"),
    ({"nvme": {"hostPath": "/mnt/../etc"}}, "/nvme/hostPath"),
    ({"socket": {"hostPath": "/run"}}, "/socket/hostPath"),
    ({"socket": {"hostPath": "/usr/lib/kvarve"}}, "/socket/hostPath"),
    ({"nameOverride": "Bad_Name"}, "/nameOverride"),
    ({"nameOverride": "-x"}, "/nameOverride"),
    ({"fullnameOverride": "My Release"}, "/fullnameOverride"),
    ({"image": {"tag": "a b"}}, "/image/tag"),
    ({"cpu": {"limit": "0"}}, "/cpu/limit"),
    ({"cpu": {"request": "1 core"}}, "/cpu/request"),
    ({"cpu": {"request": 0}}, "/cpu/request"),
    ({"podDisruptionBudget": {"maxUnavailable": "150%"}}, "/podDisruptionBudget/maxUnavailable"),
    ({"updateStrategy": {"type": "Blue"}}, "/updateStrategy/type"),
    ({"tolerations": [{"operator": "Exist"}]}, "/tolerations/0/operator"),
    ({"networkPolicy": {"clients": [{"podSelectr": {}}]}}, "podSelectr"),
    ({"networkPolicy": {"monitoring": [{}]}}, "/networkPolicy/monitoring/0"),
    ({"engine": {"env": [{"nome": "A", "value": "1"}]}}, "nome"),
    ({"extraEnv": [{"value": "1"}]}, "/extraEnv/0"),
    ({"extraVolumeMounts": [{"name": "a", "mountPath": "relative"}]}, "/extraVolumeMounts/0/mountPath"),
    ({"bindAddress": "::"}, "/bindAddress"),
    # null takes a default away.
    ({"mode": None}, "missing property mode"),
    ({"nvme": None}, "missing property nvme"),
    ({"memory": {"overhead": None}}, "missing property overhead"),
    ({"engine": {"user": None}}, "missing property user"),
    ({"image": {"digest": "sha256:123"}}, "/image/digest"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"seccomp": {"profile": "Unconfined"}}, "/seccomp/profile"),
    ({"config": {"arenas": {}}}, "arenas"),
    ({"config": {"log": {"level": "loud"}}}, "/config/log/level"),
    ({"config": {"limits": {"sessions": 100000}}}, "/config/limits/sessions"),
    ({"config": {"limits": {"hold": "5 parsecs"}}}, "/config/limits/hold"),
    ({"config": {"arena": {"chunk_bytes": "256MB"}}}, "/config/arena/chunk_bytes"),
    ({"config": {"arena": {"prefault": "perhaps"}}}, "/config/arena/prefault"),
    ({"metrics": {"rules": {"labels": {"release": 3}}}}, "/metrics/rules/labels/release"),
    ({"terminationGracePeriodSeconds": 0}, "/terminationGracePeriodSeconds"),
    # Right each, wrong together: the templates say so.
    ({"config": {"socket": {"path": "/x.sock"}}}, "config.socket.path: the chart sets it; use the value socket.hostPath"),
    ({"config": {"rpc": {"listen": "0.0.0.0:1"}}}, "config.rpc.listen: the chart sets it; use the value rpc.port"),
    ({"mode": "statefulset"}, "gRPC needs TLS"),
    ({"rpc": {"enabled": True, "insecurePlaintext": True}}, "rpc.tokenKeys.secretName"),
    ({"rpc": {"enabled": True, "insecurePlaintext": True, "tls": {"secretName": "x"}}}, "contradicts rpc.tls"),
    ({"mode": "statefulset", "rpc": {"tls": {"certManager": {"enabled": True}}}}, "issuerRef.name"),
    ({"mode": "sidecar", "rpc": {"enabled": True, "tls": {"secretName": "x"}}}, "a sidecar serves its own pod"),
    ({"nvme": {"backend": "io_uring", "size": "1GiB"}}, "seccomp.profile: io_uring"),
    ({"nvme": {"size": "1GiB", "stopTimeout": "1m"}}, "terminationGracePeriodSeconds: 60 is less than the 70"),
    ({"memory": {"limit": "16GiB"}}, "memory.limit: 16GiB is too little for a capacity of 16GiB: at least 20480Mi"),
    ({"memory": {"hugePages": True, "limit": "2GiB"}}, "memory.limit: 2GiB is too little"),
    ({"capacity": "16Gi"}, 'capacity: "16Gi" is no size; write it like 512MiB, 1.5GiB or 2TiB'),
    ({"capacity": "16GB"}, 'capacity: "16GB" is no size'),
    ({"capacity": "50%"}, 'capacity: "50%" is no size'),
    ({"nvme": {"size": "lots"}}, 'nvme.size: "lots" is no size'),
    ({"memory": {"overhead": "3G"}}, 'memory.overhead: "3G" is no size'),
    ({"memory": {"limit": "64Gi"}}, 'memory.limit: "64Gi" is no size'),
    ({"capacity": "0GiB"}, "capacity: 0GiB is too small; use at least 32MiB"),
    ({"capacity": "1KiB"}, "capacity: 1KiB is too small"),
    ({"nvme": {"size": "0GiB"}}, "nvme.size: 0GiB is too small"),
    ({"nvme": {"size": "1MiB"}}, "nvme.size: 1MiB is too small"),
    ({"cpu": {"request": "8"}}, "cpu.request: 8 is more than cpu.limit, 4"),
    ({"cpu": {"request": 1.5, "limit": "1200m"}}, "cpu.request: 1.5 is more than cpu.limit, 1200m"),
    ({"rpc": {"enabled": True, "port": 9410, "tls": {"secretName": "x"}}}, "rpc.port: 9410 is metrics.port, too"),
    ({"mode": "sidecar", "metrics": {"port": 8000}}, "metrics.port: 8000 is engine.port, too"),
    ({"nvme": {"hostPath": "/run/kvarve"}}, "nvme.hostPath: /run/kvarve and socket.hostPath"),
    ({"nvme": {"hostPath": "/run/kvarve/data"}}, "neither in the other"),
    ({"socket": {"hostPath": "/var/lib/kvarve/run"}}, "neither in the other"),
    ({"rpc": {"tls": {"certManager": {"renewBefore": "720h"}}}}, "renewBefore: 720h is not less than the certificates duration, 720h"),
    ({"seccomp": {"operator": True}}, "seccomp.operator: has nothing to bring"),
    ({"updateStrategy": {"type": "Recreate"}}, "updateStrategy.type: Recreate is nothing for mode daemonset"),
    ({"mode": "sidecar", "updateStrategy": {"type": "OnDelete"}}, "use RollingUpdate or Recreate"),
    ({"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "maxSurge: mode daemonset cannot: two daemons cannot share"),
    ({"updateStrategy": {"rollingUpdate": {"partition": 1}}}, "partition: mode daemonset cannot"),
    ({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 1}}}, "contradicts type OnDelete"),
    ({"podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels: app.kubernetes.io/name is the charts own label"),
    ({"commonLabels": {"helm.sh/chart": "x"}}, "commonLabels: helm.sh/chart is the charts own label"),
    ({"metrics": {"rules": {"labels": {"app.kubernetes.io/instance": "x"}}}}, "metrics.rules.labels: app.kubernetes.io/instance"),
    ({"metrics": {"podMonitor": {"labels": {"app.kubernetes.io/name": "x"}}}}, "metrics.podMonitor.labels: app.kubernetes.io/name"),
    ({"metrics": {"dashboards": {"labels": {"app.kubernetes.io/name": "x"}}}}, "metrics.dashboards.labels: app.kubernetes.io/name"),
    ({"podAnnotations": {"checksum/config": "x"}}, "podAnnotations: checksum/config is the charts own"),
    ({"extraVolumes": [{"name": "data", "emptyDir": {}}]}, "extraVolumes: data is a volume of the charts own"),
    ({"engine": {"volumes": [{"name": "shm", "emptyDir": {}}]}}, "engine.volumes: shm is a volume of the charts own"),
]

RIGHT = [
    {"cpu": {"request": 2}}, {"cpu": {"request": 0.5, "limit": 0.5}}, {"cpu": {"request": "0.05", "limit": "1500m"}}, {"cpu": {"limit": None}},
    {"config": None}, {"tolerations": None}, {"engine": {"args": None}}, {"nvme": {"size": None}}, {"podLabels": None}, {"networkPolicy": {"clients": None}},
    {"nvme": {"hostPath": "/data"}}, {"nvme": {"hostPath": "/var/lib/kvarve/node..1"}}, {"nvme": {"hostPath": "/run/kvarve2"}}, {"nvme": {"hostPath": "/mnt/kvarve"}},
    {"podDisruptionBudget": {"maxUnavailable": "100%"}}, {"capacity": "32MiB"}, {"image": {"repository": "localhost:5000/a/b", "tag": "v1.0_2-rc.1"}},
    {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "25%"}}},
]


@pytest.mark.parametrize("values, named", WRONG, ids=lambda part: part if isinstance(part, str) else "")
def test_wrong_values_are_refused(tmp_path, values, named):
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    answer = helm("template", "demo", CHART, "--values", path, check=False)
    assert answer.returncode != 0, answer.stdout
    assert named in answer.stderr.replace("'", "")


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_right_values_are_taken(tmp_path, values):
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    assert pod_specs(objects(render("--values", path)))
    assert pod_specs(objects(render("--values", path, "--set=mode=sidecar"))) or "updateStrategy" in values


def test_a_number_of_processors_may_be_written_bare():
    ((_, spec),) = pod_specs(objects(render("--set=cpu.request=2")))
    assert kvarved(spec)["resources"]["requests"]["cpu"] == "2"


def test_the_least_capacity_and_disk_are_what_the_daemon_takes(tmp_path):
    """What the chart refuses as too small the daemon refuses, and it runs with the least that the chart takes."""
    text = config_text(objects(render("--set=capacity=32MiB,nvme.size=64MiB,nvme.backend=posix,config.arena.chunk_bytes=32MiB")))
    (tmp_path / "kvarved.yaml").write_text(text)
    check = (BUILD / "bin/kvarved", "--check", "--config", tmp_path / "kvarved.yaml")
    assert "32.0 MiB for blocks" in run(*check).stdout
    assert "use at least 32.0 MiB" in run(*check, "--arena.capacity_bytes=31MiB", check=False).stderr


def test_versions_are_the_projects():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = run(BUILD / "bin/kvarved", "--version").stdout.split()[1]
    assert chart["appVersion"] == version


# ---- the daemon runs with what the chart makes

SMALL = ("--set=capacity=96MiB,config.arena.chunk_bytes=32MiB,config.arena.prefault=false",)


def smaller(values):
    """What of a variant does not fit a small machine."""
    if (values.get("nvme") or {}).get("size"):
        yield "--set=nvme.size=640MiB"
    if "quotas" in values.get("config", {}).get("tenant", {}):
        yield "--set=config.tenant.quotas={team-a=host_bytes:32MiB..64MiB entries:..1000}"


def seccomp_prefix(spec):
    profile = kvarved(spec)["securityContext"]["seccompProfile"]
    if profile["type"] != "Localhost":
        return ""
    return f"/usr/bin/python3 {HERE / 'with_seccomp.py'} {CHART / 'files/seccomp/kvarved.json'}"


SERVE = r"""
set -e
mount -t tmpfs -o mode=2777,gid=$GID none /run/kvarve      # an emptyDir with fsGroup, or a folder of the host
mount -t tmpfs -o mode=2777,gid=$GID none /var/lib/kvarve
if [ "$KIND" = DaemonSet ]; then chmod 0750 /run/kvarve /var/lib/kvarve; chown $USER_ID:$GID /run/kvarve /var/lib/kvarve; fi
mount --bind "$TLS" /etc/kvarve
mount --bind /run/kvarve /mnt && mount -o remount,bind,ro /mnt  # what an engine's container sees of the folder
exec setpriv --reuid $USER_ID --regid $GID --clear-groups --bounding-set=-all --no-new-privs bash -ec '
  $SECCOMP "$BIN/kvarved" --config=/etc/kvarve/kvarved.yaml --metrics.listen=127.0.0.1:0 & daemon=$!
  trap "kill -9 $daemon 2>/dev/null" EXIT
  for i in $(seq 300); do "$BIN/kvarve" status >/dev/null 2>&1 && break; kill -0 $daemon; sleep 0.1; done
  head -c 262144 /dev/zero | tr "\0" k > /run/kvarve/in 2>/dev/null || head -c 262144 /dev/zero | tr "\0" k > /var/lib/kvarve/in
  IN=/run/kvarve/in; [ -f $IN ] || IN=/var/lib/kvarve/in
  engine=unix:///mnt/${KVARVE_ENDPOINT#unix:///run/kvarve/}
  KVARVE_ENDPOINT=$engine "$BIN/kvarve" put --block-bytes 64KiB --block-tokens 16 --tokens '"$TOKENS"' < $IN
  KVARVE_ENDPOINT=$engine "$BIN/kvarve" get --block-bytes 64KiB --block-tokens 16 --tokens '"$TOKENS"' | cmp - $IN
  "$BIN/kvarve" doctor
  "$BIN/kvarve" drain
  kill -TERM $daemon; wait $daemon; echo stopped with $?; trap - EXIT'
"""


def secrets(folder, run_as):
    """What the Secrets hold, from the daemon's own tools."""
    tool = BUILD / "bin/kvarve"
    run(tool, "cert", "dev", "--host", "localhost", "--folder", folder / "ca")
    run(tool, "token", "key", cwd=folder)
    for place in ("tls", "token-keys", "revocations"):
        (folder / place).mkdir()
    for source, name in (("ca/server.pem", "tls.crt"), ("ca/server.key", "tls.key"), ("ca/ca.pem", "ca.crt")):
        shutil.copy(folder / source, folder / "tls" / name)
    for name in ("keys.json", "jwks.json"):
        shutil.copy(folder / "kvarve-token-keys.json", folder / "token-keys" / name)
    for path in (folder / "tls/tls.key",):
        os.chmod(path, 0o440)  # what the kubelet makes of defaultMode 0400 and fsGroup
        os.chown(path, 0, run_as)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_kvarved_serves_with_the_rendered_configuration(variant, tmp_path):
    values = yaml.safe_load(variant[0].read_text())
    documents = objects(render("--values", variant[0], *SMALL, *smaller(values)))
    (config,) = (d for d in of_kind(documents, "ConfigMap"))
    pods = pod_specs(documents)
    (tmp_path / "kvarved.yaml").write_text(config["data"]["kvarved.yaml"])
    settings = yaml.safe_load(config["data"]["kvarved.yaml"])
    secrets(tmp_path, 10410)
    os.chmod(tmp_path, 0o755)
    for place in ("/run/kvarve", "/var/lib/kvarve", "/etc/kvarve"):
        os.makedirs(place, exist_ok=True)
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "KIND": pods[0][0] if pods else "Deployment", "SECCOMP": seccomp_prefix(pods[0][1]) if pods else "", "USER_ID": "10410", "GID": "10410",
        "TLS": str(tmp_path), "BIN": str(BUILD / "bin"), "TOKENS": ",".join(str(i * 7) for i in range(64)),
        "KVARVE_ENDPOINT": "unix://" + settings["socket"]["path"]}
    done = run("unshare", "--mount", "--net", "bash", "-c", "ip link set lo up; " + SERVE, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped with 0" in done.stdout
    backend = (values.get("nvme") or {}).get("backend")
    if backend:
        assert f"backend={'posix' if backend == 'posix' else 'io_uring'}" in done.stderr


# ---- another chart includes the sidecar

PARENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: mine}
spec:
  selector: {matchLabels: {app: mine}}
  template:
    metadata:
      labels:
        app: mine
        app.kubernetes.io/name: mine
        {{- include "kvarve.sidecar.labels" .Subcharts.kvarve | nindent 8 }}
    spec:
      securityContext: {supplementalGroups: [10410], fsGroup: 10410}
      initContainers:
        {{- include "kvarve.sidecar.container" .Subcharts.kvarve | nindent 8 }}
      containers:
        - name: engine
          image: mine
          env:
            {{- include "kvarve.sidecar.engineEnv" .Subcharts.kvarve | nindent 12 }}
          volumeMounts:
            {{- include "kvarve.sidecar.engineVolumeMounts" .Subcharts.kvarve | nindent 12 }}
      volumes:
        {{- include "kvarve.sidecar.volumes" .Subcharts.kvarve | nindent 8 }}
"""


def test_a_chart_of_ones_own_takes_the_sidecar(tmp_path):
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: mine, version: 1.0.0}\n")
    (tmp_path / "values.yaml").write_text(
        "kvarve: {mode: sidecar, capacity: 1GiB, engine: {enabled: false}, metrics: {podMonitor: {enabled: true}}}\n")
    (tmp_path / "templates/deployment.yaml").write_text(PARENT)
    shutil.copytree(CHART, tmp_path / "charts/kvarve")
    documents = objects(render(chart=tmp_path))
    ((_, spec),) = pod_specs(documents)
    cache, engine = containers(spec)
    assert cache["restartPolicy"] == "Always" and cache["name"] == "kvarved"
    (config,) = of_kind(documents, "ConfigMap")
    assert {"name": "config", "configMap": {"name": config["metadata"]["name"]}} in spec["volumes"]
    path = yaml.safe_load(config["data"]["kvarved.yaml"])["socket"]["path"]
    assert {"name": "KVARVE_ENDPOINT", "value": "unix://" + path} in engine["env"]
    assert {"name": "socket", "mountPath": "/run/kvarve", "readOnly": True} in engine["volumeMounts"]
    assert "readinessProbe" not in cache
    (monitor,) = of_kind(documents, "PodMonitor")
    labels = documents_labels(documents)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["app.kubernetes.io/name"] == "mine"  # stays the pod's own
    assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]


def documents_labels(documents):
    return next(d for d in documents if d["kind"] == "Deployment")["spec"]["template"]["metadata"]["labels"]


def test_a_chart_may_have_it_on_a_condition(tmp_path):
    (tmp_path / "Chart.yaml").write_text(
        "{apiVersion: v2, name: mine, version: 1.0.0, dependencies: [{name: kvarve, version: 0.x, condition: kvarve.enabled}]}\n")
    shutil.copytree(CHART, tmp_path / "charts/kvarve")
    assert of_kind(objects(render("--set=kvarve.enabled=true", chart=tmp_path)), "DaemonSet")
    assert objects(render("--set=kvarve.enabled=false", chart=tmp_path)) == []


def test_the_seccomp_profile_of_the_operator_is_the_file():
    documents = objects(render("--values", HERE / "testdata/values/statefulset-cert-manager.yaml"))
    (profile,) = of_kind(documents, "SeccompProfile")
    assert profile["spec"] == json.loads((CHART / "files/seccomp/kvarved.json").read_text())


def test_the_seccomp_profile_lets_an_administrator_look_around():
    """`kubectl exec -- bash` starts a shell with job control, which makes process groups and sessions."""
    under = ("/usr/bin/python3", HERE / "with_seccomp.py", CHART / "files/seccomp/kvarved.json")
    shell = run(*under, "/bin/bash", "-ec", "set -m; /bin/echo in a group of its own & wait $!")
    assert shell.stdout == "in a group of its own\n" and "not permitted" not in shell.stderr
    run(*under, "/usr/bin/python3", "-c", "import os; os.setpgid(0, 0); assert os.getpgid(0) == os.getpgrp() == os.getpid()")
    assert run(*under, "/usr/bin/setsid", "--wait", "/bin/echo", "in a session").stdout == "in a session\n"
