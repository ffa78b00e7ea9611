#!/bin/sh
# Runs two pickers on the same configuration and the same requests, and prints where their
# decisions differ: Usher, and the one whose command is given. docs/guide/migrate-from-llm-d.md
# says how to read it.
set -eu

if [ $# -eq 0 ] || [ "$1" = --help ] || [ "$1" = -h ]; then
    cat >&2 <<'USAGE'
usage: deploy/compare.sh COMMAND [OPTIONS]

COMMAND is a shell's command that takes the flags of `usher serve`, for example
'/opt/epp --v=1'. OPTIONS are those of `usher compare`, such as --config-file FILE.
The program `usher` is that of this repository, or the one that USHER_BIN names.
USAGE
    exit 2
fi

repository=$(cd "$(dirname "$0")/.." && pwd)
usher=${USHER_BIN:-}
for built in release debug; do
    if [ -z "$usher" ] && [ -x "$repository/target/$built/usher" ]; then
        usher=$repository/target/$built/usher
    fi
done
if [ -z "$usher" ]; then
    cargo build --quiet --release --bin usher --manifest-path "$repository/Cargo.toml"
    usher=$repository/target/release/usher
fi
# The program takes over: it gets the signals, and ends what it started.
exec "$usher" compare "$@"
