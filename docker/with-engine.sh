#!/bin/sh
# Runs a command with a Docker engine: the one that runs already or else, as root, one that lives as long as the
# command does: with-engine.sh COMMAND...
#
# Its own engine is in network, mount and process namespaces of its own. Docker's packet filter (FORWARD is DROP,
# and bridges are filtered too) changes nothing outside, and nothing outlives the command but images and volumes,
# in $TESTBED_ENGINE_DIR. There is no other network in there: build with wheels and imported base images.
set -eu

test $# -gt 0 || { echo "usage: with-engine.sh COMMAND..." >&2; exit 2; }
if docker info > /dev/null 2>&1; then
  exec "$@"
fi
for tool in docker dockerd unshare ip iptables; do
  command -v $tool > /dev/null || { echo "with-engine.sh: no Docker engine runs, and there is no $tool" >&2; exit 3; }
done
test "$(id -u)" = 0 || { echo "with-engine.sh: no Docker engine runs, and only root can start one" >&2; exit 3; }

export TESTBED_ENGINE_DIR="${TESTBED_ENGINE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/rumormill/docker}"
mkdir -p "$TESTBED_ENGINE_DIR"
exec unshare --net --mount --pid --fork --kill-child --mount-proc sh -c '
  set -u
  ip link set lo up
  run=$(mktemp -d)
  export DOCKER_HOST=unix://$run/docker.sock
  dockerd --host "$DOCKER_HOST" --data-root "$TESTBED_ENGINE_DIR" --exec-root "$run/exec" --pidfile "$run/pid" \
    > "$TESTBED_ENGINE_DIR/engine.log" 2>&1 &
  engine=$!
  tries=60
  until docker info > /dev/null 2>&1; do
    tries=$((tries - 1))
    if test $tries = 0 || ! kill -0 $engine 2> /dev/null; then
      echo "with-engine.sh: dockerd does not start; the end of $TESTBED_ENGINE_DIR/engine.log:" >&2
      tail -n 3 "$TESTBED_ENGINE_DIR/engine.log" >&2
      exit 3
    fi
    sleep 0.5
  done
  "$@"
  status=$?
  containers=$(docker ps --quiet)
  test -z "$containers" || docker stop --time 5 $containers > /dev/null
  kill $engine
  wait $engine
  rm -rf "$run"
  exit $status
' with-engine "$@"
