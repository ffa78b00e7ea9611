#!/bin/sh
# instructions.sh check|accept: counts the instructions that a request costs, and compares
# them with the checked-in numbers or replaces those.
set -eu

if ! command -v valgrind >/dev/null 2>&1; then
    if [ "${CI:-}" = true ] || [ "$1" = accept ]; then
        echo "valgrind is missing, and instructions can't be counted without it" >&2
        exit 1
    fi
    echo "instructions: not counted here, CI does; to count them install valgrind"
    exit 0
fi

"${CARGO:-cargo}" run --locked --quiet --profile bench --package usher-instructions -- "$1"
