"""The chart's objects: as they were (golden), valid for Kubernetes, and within what an administrator allows."""
import os
import re

import kubernetes_validate
import pytest
import yaml
from chart_objects import config_text, containers, gibibytes_of_size, kvarved, mebibytes, of_kind, pod_specs
from conftest import CHART, HERE, VALUES, helm, objects, render

GOLDEN = HERE / "testdata/golden"
NEWEST_VERSIONS = kubernetes_validate.utils.all_versions()[-4:]
CUSTOM_KINDS = {"PodMonitor", "PrometheusRule", "Certificate", "SeccompProfile"}  # of operators, which bring the schemas
PREPARE = "prepare-host-paths"


def test_there_are_variants_enough():
    assert len(VALUES) >= 8
    assert len(NEWEST_VERSIONS) == 4


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: path.stem if path else "no-values")
def test_lint(values):
    helm("lint", "--strict", CHART, *(("--values", values) if values else ()))


def test_golden(variant):
    """KVARVE_WRITE_GOLDEN=1 writes them anew; the difference belongs into the review."""
    values, text = variant
    path = GOLDEN / values.name
    if os.environ.get("KVARVE_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_every_object_is_valid_for_the_four_newest_kubernetes(variant):
    documents = objects(variant[1])
    assert documents
    for document in documents:
        if document["kind"] in CUSTOM_KINDS:
            continue
        for version in NEWEST_VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def test_validation_sees_a_wrong_object():
    service = objects(render("--values", HERE / "testdata/values/statefulset.yaml"))
    service = of_kind(service, "Service")[0]
    service["spec"]["ports"][0]["port"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, NEWEST_VERSIONS[-1], strict=True)


# ---- policy

def test_nobody_is_root_but_who_prepares_folders(variant):
    for kind, spec in pod_specs(objects(variant[1])):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        for container in containers(spec):
            context = container["securityContext"]
            if container["name"] == PREPARE:
                assert kind == "DaemonSet"
                assert context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
                assert container["command"][0] == "install" and "sh" not in container["command"]
                continue
            assert context["runAsNonRoot"] is True and context["runAsUser"] > 0 and context["runAsGroup"] > 0


def test_nobody_has_privileges(variant):
    values = yaml.safe_load(variant[0].read_text())
    for _, spec in pod_specs(objects(variant[1])):
        for switch in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            assert not spec.get(switch)
        assert spec["automountServiceAccountToken"] is False
        for container in containers(spec):
            context = container["securityContext"]
            assert context["privileged"] is False
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
            if container["name"] != PREPARE:
                asked = ["IPC_LOCK"] if values.get("ipcLock") and container["name"] == "kvarved" else None
                assert context["capabilities"].get("add") == asked
    for account in of_kind(objects(variant[1]), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_everybody_has_limits(variant):
    for _, spec in pod_specs(objects(variant[1])):
        for container in containers(spec):
            resources = container["resources"]
            assert resources["requests"]["cpu"] and resources["requests"]["memory"]
            assert resources["limits"]["memory"] == resources["requests"]["memory"] or container["name"] == PREPARE


def test_the_volume_has_room_for_the_file(variant):
    values = yaml.safe_load(variant[0].read_text())
    size = (values.get("nvme") or {}).get("size")
    documents = objects(variant[1])
    for claim in (c for d in of_kind(documents, "StatefulSet") for c in d["spec"]["volumeClaimTemplates"]):
        room = mebibytes(claim["spec"]["resources"]["requests"]["storage"]) / 1024
        assert room >= 1 + (gibibytes_of_size(size) * 1.05 if size else 0) - 0.001
    for _, spec in pod_specs(documents):
        data = [v for v in spec["volumes"] if v["name"] == "data" and "emptyDir" in v]
        assert not data or not size or mebibytes(data[0]["emptyDir"]["sizeLimit"]) / 1024 > gibibytes_of_size(size)


def test_a_stop_fits_into_the_grace_period(variant):
    for _, spec in pod_specs(objects(variant[1])):
        container = kvarved(spec)
        settings = yaml.safe_load(config_text(objects(variant[1])))
        units = {"ms": 0.001, "s": 1, "m": 60}
        stop = settings.get("nvme", {}).get("stop_timeout", "0s")
        number = stop.rstrip("ms")
        seconds = float(number) * units[stop[len(number):]]
        shell, flag, command = container["lifecycle"]["preStop"]["exec"]["command"]
        drain = re.fullmatch(r"kvarve drain; exec sleep (\d+)", command)
        assert (shell, flag) == ("/bin/sh", "-c") and drain
        assert int(drain[1]) + seconds + 5 <= spec["terminationGracePeriodSeconds"]


def test_no_plaintext_port_without_the_flag(variant):
    documents = objects(variant[1])
    settings = yaml.safe_load(config_text(documents))
    rpc = settings.get("rpc", {})
    if "listen" not in rpc:
        assert "grpc" not in {port["name"] for _, spec in pod_specs(documents) for port in kvarved(spec)["ports"]}
        assert all(port["name"] != "grpc" for service in of_kind(documents, "Service") for port in service["spec"]["ports"])
        return
    plaintext = yaml.safe_load(variant[0].read_text()).get("rpc", {}).get("insecurePlaintext", False)
    files = {name: rpc.get(f"tls_{name}_file") for name in ("certificate", "key", "client_ca")}
    assert all(files.values()) is not plaintext
    assert (rpc.get("insecure_plaintext_off_loopback") == "true") is plaintext
    for _, spec in pod_specs(documents):
        mounted = {mount["mountPath"] for mount in kvarved(spec)["volumeMounts"]}
        assert ("/etc/kvarve/tls" in mounted) is not plaintext


def test_the_folder_of_the_socket_is_mounted_and_not_the_socket(variant):
    for kind, spec in pod_specs(objects(variant[1])):
        for container in containers(spec):
            for mount in container.get("volumeMounts", []):
                assert not mount["mountPath"].endswith(".sock")
                assert mount["name"] != "socket" or "subPath" not in mount
        volume = next(v for v in spec["volumes"] if v["name"] == "socket")
        if kind == "DaemonSet":
            assert volume["hostPath"]["type"] == "DirectoryOrCreate"
            assert not volume["hostPath"]["path"].endswith(".sock")
        else:
            assert "emptyDir" in volume
        host_paths = {v["name"] for v in spec["volumes"] if "hostPath" in v}
        assert host_paths <= ({"socket", "data"} if kind == "DaemonSet" else set())


def test_secrets_are_for_the_daemon_alone(variant):
    for _, spec in pod_specs(objects(variant[1])):
        for volume in spec["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o400
        secret = {volume["name"] for volume in spec["volumes"] if "secret" in volume}
        for container in containers(spec):
            if container["name"] != "kvarved":
                assert not secret & {mount["name"] for mount in container.get("volumeMounts", [])}


def test_names_and_labels_join(variant):
    """What selects pods selects those of the release, and names of volumes, ports and secrets meet."""
    documents = objects(variant[1])
    for document in documents:
        assert len(document["metadata"]["name"]) <= 63
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"
    for workload in (d for d in documents if d["kind"] in ("DaemonSet", "StatefulSet", "Deployment")):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        selectors = [workload["spec"]["selector"]["matchLabels"]]
        selectors += [service["spec"]["selector"] for service in of_kind(documents, "Service")]
        selectors += [budget["spec"]["selector"]["matchLabels"] for budget in of_kind(documents, "PodDisruptionBudget")]
        selectors += [policy["spec"]["podSelector"]["matchLabels"] for policy in of_kind(documents, "NetworkPolicy")]
        for selector in selectors:
            assert selector.items() <= labels.items()
        spec = workload["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        for container in containers(spec):
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["serviceName"] in {service["metadata"]["name"] for service in of_kind(documents, "Service")}


def test_a_changed_configuration_rolls_the_pods():
    def checksum(*arguments):
        (daemonset,) = of_kind(objects(render(*arguments)), "DaemonSet")
        return daemonset["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    assert checksum() == checksum()
    assert checksum() != checksum("--set=capacity=17GiB")


def test_large_numbers_have_no_exponent():
    text = config_text(objects(render("--set=config.cache.max_entries=67108864")))
    assert yaml.safe_load(text)["cache"]["max_entries"] == 67108864
