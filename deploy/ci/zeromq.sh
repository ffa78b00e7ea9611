#!/bin/sh
# Makes a Python with libzmq and msgpack, by which engines publish KV events and a test plays one, and prints the path
# of its interpreter, the only line on stdout.
#
#   deploy/ci/zeromq.sh [DIR]      see venv.sh; USHER_PYZMQ=/path/to/python skips it
#
# pyzmq is under the BSD licence, its libzmq under the MPL 2.0, msgpack under the Apache licence; they are no part of
# Usher. Hashes are of the wheels for x86-64 and arm64 and Python 3.11 to 3.14.
set -eu

if [ -n "${USHER_PYZMQ:-}" ]; then
    "$USHER_PYZMQ" -c 'import zmq, msgpack' || { echo "zeromq.sh: USHER_PYZMQ=$USHER_PYZMQ lacks a module" >&2 && exit 1; }
    echo "$USHER_PYZMQ"
    exit 0
fi
venv=$("$(dirname "$0")/venv.sh" pyzmq-27.3.0-msgpack-1.2.4 USHER_PYZMQ "${1:-}" <<'END'
pyzmq==27.3.0 \
    --hash=sha256:477b8ad30d66fc905c5388351e83b9ac25824b00e82c0d052b72ea6392636dfd \
    --hash=sha256:f3d14fc8a7b85156c67e3f6ebbe8f2af2f89da2a407997a66e2a578e1bdabf6a \
    --hash=sha256:858fe25231e0fd8612da142efde019faa5ef63fa150a821a27870e791b38c798 \
    --hash=sha256:ad8b828407caee77ff3ab0bdb2984ee8d48922328b226e8fda7c84a71a55dbb4
msgpack==1.2.4 \
    --hash=sha256:a45ceb5f199d5e388f28b550ba881096a3740d4bda10e661d77f59d9a2e8187a \
    --hash=sha256:0c75cfda0d3ccb1f6abc20e0608ad6b226e11f317b5ac297721504d2509e2bd9 \
    --hash=sha256:c4d5bbdbea8f5669b3a734d6c226772804fb120848f99cbe63a0ddee63b049c9 \
    --hash=sha256:9ca1e78106675f2aed07dc37b842ce19be70010ab22c5c5c04688f0840d48539 \
    --hash=sha256:7fabd415c41e62006c6641fcdf5b3e866f581c4e11c58328c0d0f69584b9577d \
    --hash=sha256:e9c5ba0f053a7e98f013f083c9d1b2dffb26cad8c897c533d8286e44ed24c669 \
    --hash=sha256:5d65b791ce4283e02b6267742ad540899155e1b32887b9cbdda47f38f5a076b5 \
    --hash=sha256:2444a4e04f924630d059ae6eae8f91fdfcd28ed9fd17b21bacf4e74550a091f7
END
)
echo "$venv/bin/python"
