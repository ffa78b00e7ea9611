#!/bin/sh
# Makes a Python with libzmq and msgpack, which a test plays an engine with, and prints the path of its interpreter,
# the only line on stdout.
#
#   deploy/ci/zeromq.sh [DIR]      DIR defaults to .demo in the repository
#
# Engines publish KV events by these two packages (pyzmq is under the BSD licence, its libzmq under the MPL 2.0, msgpack
# under the Apache licence); they are used in tests only, and are no part of Usher. Once there, nothing is fetched again.
# USHER_PYZMQ=/path/to/python skips all of it.
set -eu

pyzmq=27.3.0
msgpack=1.2.4

fail() {
    echo "zeromq.sh: $1" >&2
    exit 1
}

if [ -n "${USHER_PYZMQ:-}" ]; then
    "$USHER_PYZMQ" -c 'import zmq, msgpack' 2>/dev/null || fail "USHER_PYZMQ=$USHER_PYZMQ can't import zmq and msgpack"
    echo "$USHER_PYZMQ"
    exit 0
fi

dir=${1:-$(cd "$(dirname "$0")/../.." && pwd)/.demo}
venv=$dir/pyzmq-$pyzmq-msgpack-$msgpack
# An environment is of one version of Python, which may be gone.
is_whole() {
    "$venv/bin/python" -c 'import zmq, msgpack' 2>/dev/null
}
if is_whole; then
    echo "$venv/bin/python"
    exit 0
fi

command -v python3 >/dev/null 2>&1 || fail "python3 is not on the PATH: install Python 3, or set USHER_PYZMQ"
mkdir -p "$dir" 2>/dev/null || fail "cannot create $dir: name another directory"

# Several of us may run at once: each makes an environment of its own, and puts it in its place at the end.
fresh=$(mktemp -d "$dir/pyzmq.XXXXXX")
log=$dir/pyzmq-install.log
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' HUP INT TERM

python3 -m venv "$fresh/venv" >"$log" 2>&1 ||
    fail "python3 -m venv failed: install the venv module (Debian: apt-get install python3-venv); details in $log"
# Only wheels, as these have libzmq in them.
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --retries 2 --timeout 20 \
    --no-deps --only-binary :all: "pyzmq==$pyzmq" "msgpack==$msgpack" >>"$log" 2>&1 ||
    fail "pip could not install pyzmq $pyzmq and msgpack $msgpack: check the network, or set USHER_PYZMQ; details in $log"
is_whole || rm -rf "$venv"
mv -T "$fresh/venv" "$venv" 2>>"$log" || is_whole || fail "can't move it to $venv; details in $log"
echo "$venv/bin/python"
