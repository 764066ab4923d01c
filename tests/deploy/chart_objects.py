"""Finding things in rendered objects."""

WORKLOADS = ("DaemonSet", "StatefulSet", "Deployment")


def pod_specs(documents):
    return [(d["kind"], d["spec"]["template"]["spec"]) for d in documents if d["kind"] in WORKLOADS]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def of_kind(documents, kind):
    return [d for d in documents if d["kind"] == kind]


def kvarved(spec):
    return next(c for c in containers(spec) if c["name"] == "kvarved")


def config_text(documents):
    return of_kind(documents, "ConfigMap")[0]["data"]["kvarved.yaml"]


def mebibytes(quantity):
    units = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}
    return float(quantity[:-2]) * units[quantity[-2:]]


def gibibytes_of_size(text):
    return float(text[:-3]) * {"MiB": 1 / 1024, "GiB": 1, "TiB": 1024}[text[-3:]]
