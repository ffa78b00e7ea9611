#!/bin/sh
# Checks the Helm chart with each of its values files, and builds the overlays for
# kustomize. helm and kustomize are looked for where the tests look for the API server, in
# KUBEBUILDER_ASSETS (deploy/ci/kube.sh builds all of them).
#
# `cargo test --test kubernetes` checks the rest: a real API server takes every object,
# Usher its flags and configuration, Envoy its own; the rights are enough, and kustomize
# builds what the chart renders.
set -eu

cd "$(dirname "$0")/../.."
assets=${KUBEBUILDER_ASSETS:-}
for program in helm kustomize; do
    if ! [ -x "$assets/$program" ]; then
        if [ "${CI:-}" = true ]; then
            echo "$program is missing, and CI has to check the chart: KUBEBUILDER_ASSETS=\$(deploy/ci/kube.sh CACHE)" >&2
            exit 1
        fi
        echo "chart: not checked here, CI does; to check it: export KUBEBUILDER_ASSETS=\$(deploy/ci/kube.sh CACHE)"
        exit 0
    fi
done

# Helm reads no file outside of the chart.
for file in rules.yaml dashboards; do
    if ! diff -r "deploy/observability/$file" "deploy/chart/observability/$file"; then
        echo "deploy/chart/observability/$file is not what deploy/observability has; \`make chart-accept\` writes it anew" >&2
        exit 1
    fi
done

# A helm that was built from its module alone takes a version of 2020.
kubernetes=1.36.3
out=$(mktemp)
trap 'rm -f "$out"' EXIT
trap 'exit 1' HUP INT TERM
count=0
for values in deploy/chart/ci/*-values.yaml deploy/envoy-gateway/usher-values.yaml \
    deploy/kustomize/base/values.yaml deploy/kustomize/overlays/*/values.yaml; do
    for command in "lint --strict --quiet deploy/chart" "template usher deploy/chart --namespace models"; do
        # Two words and more are meant.
        # shellcheck disable=SC2086
        if ! "$assets/helm" $command --kube-version "$kubernetes" --values "$values" >"$out" 2>&1; then
            echo "helm ${command%% *} with $values:" >&2
            cat "$out" >&2
            exit 1
        fi
    done
    count=$((count + 1))
done
for overlay in deploy/kustomize/base deploy/kustomize/overlays/*/; do
    "$assets/kustomize" build "$overlay" >/dev/null
done
echo "chart: $count values files"
