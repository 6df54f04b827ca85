#!/bin/sh
# Makes a virtual environment: venv.sh FOLDER [MAJOR.MINOR]. Works where ensurepip is missing (Debian without python3-venv).
set -eu
folder=$1
version=${2:-}

works() { "$1" -c "import sys; v = '$version'; sys.exit(sys.version_info < (3, 10) or (v != '' and '%d.%d' % sys.version_info[:2] != v))" >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-} "python$version" python3 python3.13 python3.12 python3.11 python3.10 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"${version:-3}"*/bin/python; do
        if works "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    if command -v uv >/dev/null 2>&1; then uv python find "${version:->=3.10}" 2>/dev/null || true; fi
}

[ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
python=$(find_python)
if [ -z "$python" ]; then
    echo "no Python ${version:-3.10 or later} found: apt-get install python3 python3-venv" >&2
    exit 1
fi
if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv "$folder" 2>/dev/null; then exit 0; fi
rm -rf "$folder"
if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$folder" 2>/dev/null; then
    "$python" -m pip --python "$folder/bin/python" install --quiet pip && exit 0
fi
rm -rf "$folder"
if command -v uv >/dev/null 2>&1 && uv venv --quiet --seed --python "$python" "$folder"; then exit 0; fi
rm -rf "$folder"
echo "cannot make a virtual environment with $python: apt-get install python3-venv" >&2
exit 1
