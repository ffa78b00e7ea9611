#!/bin/sh
# Fetches axe-core, which the tests of the page for browsers look for barriers with, and prints the path of its
# script, the only line on stdout.
#
#   deploy/ci/axe.sh [DIR]      DIR defaults to .demo in the repository
#
# It comes in a Python package, as Envoy does; see deploy/envoy/get.sh. axe-core is under the MPL 2.0; it is used in
# tests only, and is no part of Usher. USHER_AXE=/path/to/axe.min.js skips all of it.
set -eu

version=0.1.8
hash=fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8

fail() {
    echo "axe.sh: $1" >&2
    exit 1
}

if [ -n "${USHER_AXE:-}" ]; then
    [ -r "$USHER_AXE" ] || fail "USHER_AXE=$USHER_AXE is not a file that can be read"
    echo "$USHER_AXE"
    exit 0
fi

dir=${1:-$(cd "$(dirname "$0")/../.." && pwd)/.demo}
script=$dir/axe-$version.min.js
if [ -s "$script" ]; then
    echo "$script"
    exit 0
fi

command -v python3 >/dev/null 2>&1 || fail "python3 is not on the PATH: install Python 3, or set USHER_AXE"
mkdir -p "$dir" 2>/dev/null || fail "cannot create $dir: name another directory"

# Several of us may run at once: each fetches into a folder of its own, and puts the script in its place at the end.
fresh=$(mktemp -d "$dir/axe.XXXXXX")
log=$dir/axe-install.log
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' HUP INT TERM

python3 -m venv "$fresh/venv" >"$log" 2>&1 ||
    fail "python3 -m venv failed: install the venv module (Debian: apt-get install python3-venv); details in $log"
echo "axe-playwright-python==$version --hash=sha256:$hash" >"$fresh/requirements.txt"
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --retries 2 --timeout 20 \
    --no-deps --require-hashes --target "$fresh/package" --requirement "$fresh/requirements.txt" >>"$log" 2>&1 ||
    fail "pip could not install axe-playwright-python $version: check the network, or set USHER_AXE; details in $log"
mv "$fresh/package/axe_playwright_python/axe.min.js" "$script" 2>>"$log" || fail "the package has no axe.min.js; details in $log"
echo "$script"
