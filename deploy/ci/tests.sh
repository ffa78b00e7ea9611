#!/usr/bin/env bash
# tests.sh: runs all tests in CI, none for as long as CI takes (limit.sh). Those that wait for servers most of the
# time run beside the others; their output follows at the end.
set -uo pipefail
cd "$(dirname "$0")/../.."

waiting=(kubernetes shell)
# CARGO may have arguments.
read -ra cargo <<<"${CARGO:-cargo}"
cargo+=(test --locked --config 'target."cfg(all())".runner = "deploy/ci/limit.sh"')

beside=() others=(--lib --bins)
for file in tests/*/main.rs; do
    name=$(basename "$(dirname "$file")")
    if [[ " ${waiting[*]} " == *" $name "* ]]; then beside+=(--test "$name"); else others+=(--test "$name"); fi
done

"${cargo[@]}" --no-run || exit
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"${cargo[@]}" --no-fail-fast "${beside[@]}" >"$output" 2>&1 &
pid=$!
status=0
"${cargo[@]}" --no-fail-fast "${others[@]}" || status=$?
"${cargo[@]}" --doc || status=$?
wait "$pid" || status=$?
cat "$output"
exit "$status"
