#!/bin/sh
# stage.sh NAME COMMAND [ARGUMENT...]: runs a command and says what it is, how it ended
# and how long it took.
set -u

name=$1
shift
start=$(date +%s)
echo "== $name"
"$@"
status=$?
took=$(($(date +%s) - start))
if [ "$status" -eq 0 ]; then
    echo "== $name: ok, $took s"
else
    echo "== $name: FAILED, $took s" >&2
fi
exit "$status"
