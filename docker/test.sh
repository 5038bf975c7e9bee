#!/bin/sh
# The tests of the containers, with whatever this machine has: an engine that runs; or, as root, one started for
# them, with wheels and base images made from packages; or neither, and they are skipped with the reason.
set -eu
cd "$(dirname "$0")/.."

cache=${TESTBED_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rumormill}
tests=".venv/bin/pytest tests/docker -m docker -s"

if docker info > /dev/null 2>&1; then
  exec $tests "$@"
fi
if test "$(id -u)" = 0 && command -v dockerd > /dev/null && command -v debootstrap > /dev/null; then
  make wheelhouse
  docker/base.sh "$cache/base"
  export TESTBED_BASE_TARS="$cache/base"
  exec docker/with-engine.sh $tests "$@"
fi
exec $tests "$@"
