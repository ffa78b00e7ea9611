#!/usr/bin/env bash
# limit.sh PROGRAM [ARGUMENT...]: runs a test program, and ends it with all that it started when
# it takes longer than TEST_LIMIT seconds (900). Names the tests that hadn't ended by then.
set -uo pipefail

# Their tests wait most of the time, for servers and for deadlines.
case ${1##*/} in
    kubernetes-* | envoy-* | shell-*) export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))} ;;
esac
seconds=${TEST_LIMIT:-900}
output=$(mktemp)
trap 'rm -f "$output"' EXIT
# What a program leaves behind may hold its output open, so that this ends, too.
timeout --kill-after=10 "$seconds" "$@" 2>&1 | timeout "$((seconds + 30))" tee "$output"
status=${PIPESTATUS[0]}
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    {
        echo "$1 did not end within $seconds s (TEST_LIMIT). It was still running:"
        sed -n 's/^test \(.*\) has been running for over 60 seconds$/\1/p' "$output" | sort -u |
            while read -r name; do grep -q "^test $name \.\.\. " "$output" || echo "  $name"; done
    } >&2
fi
exit "$status"
