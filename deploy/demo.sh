#!/bin/sh
# Builds Usher for the demo, and runs `usher demo` with these arguments. The profile `demo`, without jemalloc, builds
# in less than half the time that `release` takes.
set -eu

cd "$(dirname "$0")/.."
# CARGO may have arguments.
cargo=${CARGO:-cargo}
build="--locked --profile demo --no-default-features --features lab --bin usher"
if [ ! -t 2 ]; then
    # Cargo draws no bar here, and its last packages take a minute.
    # shellcheck disable=SC2086
    $cargo build $build &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    while sleep 2 && kill -0 "$pid" 2>/dev/null; do
        printf . >&2
    done
    trap - INT TERM
    wait "$pid"
    printf '\n' >&2
else
    # shellcheck disable=SC2086
    $cargo build $build
fi
# shellcheck disable=SC2086
exec $cargo run $build --quiet -- demo "$@"
