#!/usr/bin/env bash
# tools/venv.sh DIRECTORY: make a virtual environment there, unless there is a working one.
# PYTHON names the interpreter to use; otherwise the first one on PATH that is new enough is taken.
set -euo pipefail
directory=$1

new_enough() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if new_enough "$directory/bin/python" && "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
    exit
fi

for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if new_enough "$python"; then
        break
    fi
    python=
done
if [ -z "$python" ]; then
    echo "Godwit needs Python 3.11 or newer${PYTHON:+, which $PYTHON is not}. Install one," >&2
    echo "or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi

# Debian and Ubuntu ship Python without ensurepip; it comes with the -venv package.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package=$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')
    if ! "$(dirname "$0")/apt.sh" "$package" python3-venv; then
        echo "$python cannot make virtual environments: install $package, then run make again." >&2
        exit 1
    fi
fi
"$python" -m venv --clear "$directory"
