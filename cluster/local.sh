#!/usr/bin/env bash
# A Ray cluster of several nodes on this machine (Linux), to try what happens on a real cluster: placement, a node that dies.
#
#   eval "$(cluster/local.sh start 2)"      two nodes; the printed exports tell Ray where they are
#   uedp-ray sweep sweeps/mine.yaml --out runs/mine --address "$RAY_ADDRESS" --set resources.gpus_per_worker=auto
#   uedp-ray train run.yaml --workers 2 --out runs/two
#   cluster/local.sh kill 2                 node 2 dies at once, as a spot node does; node 1 is the head
#   cluster/local.sh stop                   stops the nodes of this script and nothing else
#
# Set before start: CPUS (1) and GPUS (0) of each node, OBJECT_STORE_BYTES (500000000), PORT (6399), DASHBOARD_PORT (8265),
# STATE (/tmp/uedp-ray-UID: the token, logs and Ray's files; keep the path short, since socket paths are limited).
#
# What it costs to get wrong:
# - Authentication. The nodes talk over loopback, but Ray opens some ports on every interface, and anyone who reaches one runs
#   code as you. A token created here keeps them out; with RAY_AUTH_MODE=disabled anybody on your network can get in.
# - Shared storage. All nodes see this machine's disk. A run that works here says nothing about storage elsewhere, where a
#   ledger that was written to a node's own disk is lost with the node.
# - Spot nodes. A killed node's rounds run again and are charged again: under a fixed budget the run ends earlier.
# - Private text. Ray keeps copies of what it moves in memory (/dev/shm) and in STATE until stop.
set -euo pipefail

STATE=${STATE:-/tmp/uedp-ray-$(id -u)}
PORT=${PORT:-6399}
HEAD=127.0.0.2 # Ray turns 127.0.0.1 into the address of the network card
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$STATE/token RAY_USAGE_STATS_ENABLED=${RAY_USAGE_STATS_ENABLED:-0}

die() {
  echo "local.sh: $*" >&2
  exit 1
}

is_running() { # NODE: is the process that was recorded for it still that node?
  [[ -e $STATE/$1.pid ]] && ps -ww -o args= -p "$(<"$STATE/$1.pid")" | grep -q "ray start"
}

start() {
  local count=$1 node role
  [[ $count =~ ^[1-9][0-9]*$ ]] || die "start N: the number of nodes, not '$count'"
  [[ ! -e $STATE ]] || die "$STATE exists: stop the cluster that is running, or set STATE and PORT for another"
  (umask 077 && mkdir "$STATE" && od -An -tx1 -N32 /dev/urandom | tr -d ' \n' >"$STATE/token")
  for ((node = 1; node <= count; node++)); do
    role=(--address "$HEAD:$PORT")
    ((node > 1)) || role=(--head --port "$PORT" --dashboard-host "$HEAD" --dashboard-port "${DASHBOARD_PORT:-8265}")
    mkdir "$STATE/$node" && touch "$STATE/$node.log"
    # A separate session, so that kill can reach every process of the node.
    setsid ray start "${role[@]}" --block --node-ip-address "127.0.0.$((node + 1))" --temp-dir "$STATE/$node" \
      --dashboard-agent-listen-port 0 --num-cpus "${CPUS:-1}" --num-gpus "${GPUS:-0}" --object-store-memory "${OBJECT_STORE_BYTES:-500000000}" \
      >"$STATE/$node.log" 2>&1 &
    echo $! >"$STATE/$node.pid"
    until grep -q "Ray runtime started" "$STATE/$node.log"; do
      sleep 0.2
      is_running "$node" && continue
      cat "$STATE/$node.log" >&2
      stop
      die "node $node did not start"
    done
  done
  echo "$count nodes at $HEAD:$PORT; dashboard at http://$HEAD:${DASHBOARD_PORT:-8265}; logs in $STATE; stop with: $0 stop" >&2
  echo "export RAY_ADDRESS=$HEAD:$PORT RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$STATE/token"
}

end() { # SIGNAL NODE
  is_running "$2" || return 0
  pkill "-$1" --session "$(<"$STATE/$2.pid")" || true
}

stop() {
  local file node
  [[ -e $STATE ]] || die "nothing runs in $STATE"
  [[ -f $STATE/token && -d $STATE/1 ]] || die "$STATE holds no cluster of this script: nothing is removed"
  for file in "$STATE"/*.pid; do
    node=$(basename "$file" .pid)
    if is_running "$node"; then kill "$(<"$file")"; fi
  done
  for file in "$STATE"/*.pid; do
    node=$(basename "$file" .pid)
    for _ in {1..100}; do
      is_running "$node" || break
      sleep 0.1
    done
    end KILL "$node"
    rm -rf "$STATE/$node" "$STATE/$node.log" "$file"
  done
  rm "$STATE/token"
  rmdir "$STATE" || die "$STATE holds more than this script made, and stays"
}

case ${1:-} in
  start) start "${2:-2}" ;;
  kill) end KILL "${2:?which node?}" ;;
  stop) stop ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" && exit 2 ;;
esac
