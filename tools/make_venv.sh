#!/usr/bin/env bash
# Builds .venv anew from requirements.lock, with this package in editable mode.
# PYTHON_BIN names the interpreter to use; without it, the first on PATH of
# python3.11, python3.10 and python3.9 that works is taken.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  echo "error: $*" >&2
  exit 1
}

# Prints the interpreter behind $1 if it is 3.9-3.11 and can make virtual
# environments. A name on PATH is not enough: version managers leave shims that
# fail to run, and Debian's python3 comes without ensurepip. The real path is
# taken because $1 may lie in the .venv that is about to be removed.
usable() {
  "$1" -c '
import ensurepip, os, sys, venv
if not (3, 9) <= sys.version_info[:2] <= (3, 11):
  sys.exit(1)
print(os.path.realpath(sys.executable))
' 2>/dev/null
}

find_python() {
  local name candidate
  for name in python3.11 python3.10 python3.9; do
    while IFS= read -r candidate; do
      usable "$candidate" && return
    done < <(type -aP "$name")
  done
  return 1
}

# Names the Python that is there instead, if there is one.
describe_newer() {
  local version
  version=$(python3 -V 2>/dev/null) && echo " (python3 is $version)"
  return 0
}

# TFF 0.87.0 has wheels for this platform alone.
platform="$(uname -s) $(uname -m)"
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc='no glibc'
[[ "$platform, $libc" =~ ^Linux\ x86_64,\ glibc\ 2\.([0-9]+) ]] &&
  ((BASH_REMATCH[1] >= 31)) ||
  die 'TFF 0.87.0 needs Linux x86_64 with glibc 2.31 or later;' \
    "this is $platform, $libc."

if [[ -n ${PYTHON_BIN:-} ]]; then
  python=$(usable "$PYTHON_BIN") ||
    die "PYTHON_BIN=$PYTHON_BIN is not a working Python 3.9, 3.10 or 3.11" \
      'with the venv module.'
else
  python=$(find_python) ||
    die "TFF 0.87.0 needs Python 3.9, 3.10 or 3.11 with the venv module, and" \
      "PATH has none$(describe_newer). Ways to install one: pyenv install 3.11;" \
      'uv python install 3.11; conda create -n py311 python=3.11. Then:' \
      'PYTHON_BIN=/path/to/python3.11 make ...'
fi

echo "Setting up .venv with $("$python" -V) (once: about 2 minutes, 3 GB) ..."
failed() {
  tail -n 30 .venv/pip.log >&2 2>/dev/null || true
  die '.venv is not set up; the reason is above (in full: .venv/pip.log).'
}

pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --quiet "$@" \
    >> .venv/pip.log 2>&1
}

trap failed ERR
rm -rf .venv
"$python" -m venv .venv
# The pip that the first 3.9 releases bundle does not know TFF's wheel tag.
pip_install 'pip>=23'
pip_install --no-deps -r requirements.lock
pip_install --no-deps --no-build-isolation -e .
# Last, so that an interrupted install is never taken for a finished one.
touch .venv/stamp
