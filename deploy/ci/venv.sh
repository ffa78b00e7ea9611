#!/bin/sh
# Makes a Python environment of packages, for tests, and prints its path, the only line on stdout.
#
#   deploy/ci/venv.sh NAME VARIABLE [DIR] <requirements.txt
#
# It is DIR/NAME, DIR being .demo in the repository by default; once there, nothing is fetched again. Requirements have
# hashes. VARIABLE is what to set to do without.
set -eu

name=$1
variable=$2
dir=${3:-$(cd "$(dirname "$0")/../.." && pwd)/.demo}
venv=$dir/$name
log=$dir/$name-install.log

fail() {
    echo "venv.sh: no $name: $1, or set $variable" >&2
    exit 1
}

# An environment is of one version of Python, which may be gone or another by now.
is_whole() {
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))' 2>/dev/null) &&
        [ -d "$packages" ]
}
if is_whole; then
    echo "$venv"
    exit 0
fi

command -v python3 >/dev/null 2>&1 || fail "python3 is not on the PATH: install Python 3"
mkdir -p "$dir" 2>/dev/null || fail "cannot create $dir: name another directory"

# Several of us may run at once: each makes an environment of its own, and puts it in its place at the end.
fresh=$(mktemp -d "$dir/$name.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
trap 'exit 1' HUP INT TERM

cat >"$fresh/requirements.txt"
python3 -m venv "$fresh/venv" >"$log" 2>&1 ||
    fail "python3 -m venv failed, see $log: install the venv module (Debian: apt-get install python3-venv)"
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --retries 2 --timeout 20 \
    --no-deps --only-binary :all: --require-hashes --requirement "$fresh/requirements.txt" >>"$log" 2>&1 ||
    fail "pip failed, see $log: check the network"
is_whole || rm -rf "$venv"
mv -T "$fresh/venv" "$venv" 2>>"$log" || is_whole || fail "can't move it to $venv, see $log: remove that"
echo "$venv"
