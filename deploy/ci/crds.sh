#!/usr/bin/env bash
# Collects the definitions of other projects' custom resources that Usher's manifests use
# and prints the folder that they are in, the only line on stdout.
#
#   deploy/ci/crds.sh CACHE
#
# They come out of those projects' Go modules, all under Apache-2.0, and are not kept in
# this repository. A folder's name holds the versions, so a new version is a new folder.
# Once it is there no network is used. Definitions that no module has are written for the
# tests, in tests/kubernetes/crds.
set -euo pipefail

gateway_api=1.6.1
envoy_gateway=1.9.1
istio=1.31.1
prometheus=0.85.0
keda=2.21.0

fail() {
    echo "crds.sh: $1" >&2
    exit 1
}

(($# == 1)) || fail "name a folder to keep them in: deploy/ci/crds.sh CACHE"
mkdir -p "$1" || fail "cannot create $1: name another folder"
# The last number counts changes of the list of files below.
crds=$(cd "$1" && pwd)/crds-gateway-$gateway_api-envoy-$envoy_gateway-istio-$istio-prometheus-$prometheus-keda-$keda-2

if [ -d "$crds" ]; then
    echo "$crds"
    exit 0
fi

command -v go >/dev/null 2>&1 || fail "go is not on the PATH: install Go 1.26 or later"

# Under a name of its own first, so that a half-made folder is never taken for a whole one.
fresh=$crds.$$
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$fresh"
# Outside of modules and work spaces, and with the Go that is there: nothing is compiled.
cd "$fresh"
export GO111MODULE=on GOFLAGS=-mod=mod GOWORK=off GOTOOLCHAIN=local

# take MODULE FILE...: copies files of a module; their names keep them apart.
take() {
    local module=$1 dir
    shift
    dir=$(go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
    [ -n "$dir" ] || fail "cannot download $module: check the network"
    grep -q 'Apache License' "$dir/LICENSE" || fail "$module is not under Apache-2.0"
    for file; do
        [ -f "$dir/$file" ] || fail "$module has no $file"
        install -m 644 "$dir/$file" "$fresh/${file##*/}"
    done
}

kinds=config/crd/standard/gateway.networking.k8s.io
take "sigs.k8s.io/gateway-api@v$gateway_api" "${kinds}_gateways.yaml" "${kinds}_gatewayclasses.yaml" "${kinds}_httproutes.yaml" \
    "${kinds}_backendtlspolicies.yaml" "${kinds}_referencegrants.yaml"
kinds=charts/gateway-helm/charts/crds/crds/generated/gateway.envoyproxy.io
take "github.com/envoyproxy/gateway@v$envoy_gateway" "${kinds}_backends.yaml" "${kinds}_backendtrafficpolicies.yaml" \
    "${kinds}_clienttrafficpolicies.yaml" "${kinds}_envoyextensionpolicies.yaml" "${kinds}_envoypatchpolicies.yaml" \
    "${kinds}_envoyproxies.yaml"
take "istio.io/api@v$istio" kubernetes/customresourcedefinitions.gen.yaml
take "github.com/prometheus-operator/prometheus-operator@v$prometheus" \
    example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml \
    example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
take "github.com/kedacore/keda/v2@v$keda" config/crd/bases/keda.sh_scaledobjects.yaml

mv "$fresh" "$crds"
echo "$crds"
