# Installs the wheel beside this script: install.sh [PYTHON …], into the first of them that exists, else the one on PATH.
set -eu
here=$(dirname "$0")
# A server on PATH says better than PATH itself which Python the image's command uses.
server=$(command -v uvicorn || true)
shebang=
if [ -n "$server" ] && IFS= read -r line <"$server" 2>/dev/null; then
    case $line in
    '#!'/*python*) line=${line#??} && shebang=${line%% *} ;;
    esac
fi

set -- "$@" "$shebang" "$(command -v python || true)" "$(command -v python3 || true)" /app/.venv/bin/python
python=
for candidate in "$@"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "openenv: no Python found in this image" >&2
    exit 1
fi

export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1
if "$python" -m pip --version >/dev/null 2>&1; then
    "$python" -m pip uninstall -q -y openenv-core openenv >/dev/null 2>&1 || true
    "$python" -m pip install -q "$here"/openenv-*.whl
elif command -v uv >/dev/null 2>&1; then
    uv pip uninstall -q --python "$python" openenv-core openenv >/dev/null 2>&1 || true
    uv pip install -q --no-cache --python "$python" "$here"/openenv-*.whl
elif command -v pip >/dev/null 2>&1; then
    pip --python "$python" uninstall -q -y openenv-core openenv >/dev/null 2>&1 || true
    pip --python "$python" install -q "$here"/openenv-*.whl
else
    echo "openenv: neither pip nor uv found for $python" >&2
    exit 1
fi
cd / && "$python" -c 'import sys, openenv_sandbox as o; print("openenv", o.__version__, "in", sys.executable)'
rm -rf "$here"
