#!/usr/bin/env bash
# Make .venv with everything that the demo and the tests need. Called by the Makefile.
set -euo pipefail

die() { echo "setup: $*" >&2; exit 2; }

command -v "$PYTHON" >/dev/null || die "no '$PYTHON' here; install Python 3.11 or newer, or: make PYTHON=/path/to/python3"
"$PYTHON" - <<'PY' || die "$("$PYTHON" --version) is too old; install Python 3.11 or newer, or: make PYTHON=/path/to/python3"
import sys
sys.exit(sys.version_info < (3, 11))
PY
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || die "Python has no venv module; on Debian or Ubuntu: apt-get install python3-venv"

need_kb=$((3 * 1024 * 1024))
have_kb=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$have_kb" -ge "$need_kb" ] || die "needs 3 GiB of free disk here, has $((have_kb / 1024)) MiB"

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || die "could not make $VENV; remove it and try again"
echo "setup: installing into $VENV; to download at most: $(sed -n 's/^# download: //p' constraints/cpu.txt)"

log="$VENV/install.log"
if ! "$VENV/bin/pip" install --disable-pip-version-check --progress-bar off \
    -c constraints/cpu.txt -e '.[dev]' -e './workers[train,reward,gym]' >"$log" 2>&1; then
  tail -n 15 "$log" >&2
  die "pip failed; the whole log is in $log"
fi
awk '/Downloading .*\(([0-9.]+) [kMG]B\)/ {
       match($0, /\([0-9.]+ [kMG]B\)/); split(substr($0, RSTART + 1, RLENGTH - 2), a, " ");
       mb += a[1] * (a[2] == "kB" ? 0.001 : a[2] == "GB" ? 1000 : 1) }
     END { printf "setup: done, %.0f MB downloaded\n", mb }' "$log"
