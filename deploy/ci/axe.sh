#!/bin/sh
# Fetches axe-core, which the tests of the page for browsers look for barriers with, and prints the path of its
# script, the only line on stdout.
#
#   deploy/ci/axe.sh [DIR]      see venv.sh; USHER_AXE=/path/to/axe.min.js skips it
#
# It comes in a Python package, as Envoy does. axe-core is under the MPL 2.0; it is no part of Usher.
set -eu

if [ -n "${USHER_AXE:-}" ]; then
    [ -r "$USHER_AXE" ] || { echo "axe.sh: USHER_AXE=$USHER_AXE is not a file that can be read" >&2 && exit 1; }
    echo "$USHER_AXE"
    exit 0
fi
venv=$("$(dirname "$0")/venv.sh" axe-0.1.8 USHER_AXE "${1:-}" <<'END'
axe-playwright-python==0.1.8 --hash=sha256:fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8
END
)
ls "$venv"/lib/python3*/site-packages/axe_playwright_python/axe.min.js
