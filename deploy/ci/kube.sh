#!/usr/bin/env bash
# Builds the Kubernetes API server, etcd, helm and kustomize that Usher is tested with and prints
# the folder that they are in, the only line on stdout.
#
#   export KUBEBUILDER_ASSETS=$(deploy/ci/kube.sh CACHE)
#
# They come as Go modules, so that a machine with Go needs nothing else. Each is built
# once; a folder's name holds the versions, so a new version is a new folder. The first
# time takes minutes (mostly the API server), a gigabyte of Go's caches, and network.
set -euo pipefail

kube=1.36.3
etcd=3.6.8
helm=3.19.5
kustomize=5.8.0

fail() {
    echo "kube.sh: $1" >&2
    exit 1
}

(($# == 1)) || fail "name a folder to keep the programs in: deploy/ci/kube.sh CACHE"
mkdir -p "$1" || fail "cannot create $1: name another folder"
bin=$(cd "$1" && pwd)/kube-$kube-etcd-$etcd-helm-$helm-kustomize-$kustomize
mkdir -p "$bin"

missing() {
    for program in kube-apiserver etcd helm kustomize; do
        [ -x "$bin/$program" ] || echo "$program"
    done
}

if [ -z "$(missing)" ]; then
    echo "$bin"
    exit 0
fi

command -v go >/dev/null 2>&1 ||
    fail "go is not on the PATH: install Go 1.26 or later, or set KUBEBUILDER_ASSETS to a folder with kube-apiserver and etcd"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export CGO_ENABLED=0 GOFLAGS=-mod=mod
# Without this, Go's own module of the folder above would be asked.
export GOWORK=off

# module NAME GO: the beginning of a module of our own, the only place where a
# program's `replace` lines count.
module() {
    mkdir "$work/$1"
    cd "$work/$1"
    printf 'module build\n\ngo %s\n' "$2" >go.mod
}

# build PROGRAM PACKAGE LDFLAGS: under a name of its own first, so that a half-made
# program is never taken for a whole one, and two of us may build at once.
build() {
    local fresh=$bin/$1.$$
    echo "kube.sh: building $1, log in $bin/$1.log" >&2
    if ! go build -trimpath -ldflags "-s -w $3" -o "$fresh" "$2" >"$bin/$1.log" 2>&1; then
        tail -5 "$bin/$1.log" >&2
        fail "cannot build $1: check the network and the disk"
    fi
    mv "$fresh" "$bin/$1"
}

# go_of PATH: the Go version that a module asks for, and (in `dir`) its folder.
dir=
go_of() {
    dir=$(cd "$work" && GO111MODULE=on go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
    [ -n "$dir" ] || fail "cannot download $1: check the network"
}

kube_apiserver() {
    go_of "k8s.io/kubernetes@v$kube"
    module kube "$(sed -n 's/^go //p' "$dir/go.mod")"
    {
        grep '^godebug ' "$dir/go.mod" || true
        echo "require k8s.io/kubernetes v$kube"
        # Kubernetes takes its own parts from folders beside it. As modules they have
        # its version with a leading 0.
        sed -n "s|^.*\(k8s.io/[a-z0-9-]*\) => \./staging/.*$|replace \1 => \1 v0.${kube#*.}|p" "$dir/go.mod"
    } >>go.mod
    local at=k8s.io/component-base/version minor=${kube#*.}
    build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver \
        "-X $at.gitVersion=v$kube -X $at.gitMajor=1 -X $at.gitMinor=${minor%%.*}"
}

etcd_server() {
    go_of "go.etcd.io/etcd/server/v3@v$etcd"
    module etcd "$(sed -n 's/^go //p' "$dir/go.mod")"
    echo "require go.etcd.io/etcd/server/v3 v$etcd" >>go.mod
    build etcd go.etcd.io/etcd/server/v3 ""
}

helm_client() {
    go_of "helm.sh/helm/v3@v$helm"
    module helm "$(sed -n 's/^go //p' "$dir/go.mod")"
    echo "require helm.sh/helm/v3 v$helm" >>go.mod
    build helm helm.sh/helm/v3/cmd/helm "-X helm.sh/helm/v3/internal/version.version=v$helm"
}

kustomize_client() {
    go_of "sigs.k8s.io/kustomize/kustomize/v5@v$kustomize"
    module kustomize "$(sed -n 's/^go //p' "$dir/go.mod")"
    echo "require sigs.k8s.io/kustomize/kustomize/v5 v$kustomize" >>go.mod
    build kustomize sigs.k8s.io/kustomize/kustomize/v5 \
        "-X sigs.k8s.io/kustomize/api/provenance.version=v$kustomize"
}

for program in $(missing); do
    case $program in
    kube-apiserver) (kube_apiserver) ;;
    etcd) (etcd_server) ;;
    helm) (helm_client) ;;
    kustomize) (kustomize_client) ;;
    esac
done
echo "$bin"
