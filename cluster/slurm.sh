#!/usr/bin/env bash
# A sweep under Slurm: starts Ray on every node of the job, runs the sweep on the first node, stops Ray.
#
#   sbatch cluster/slurm.sh sweep.yaml /shared/sweeps/notes [more options of uedp-ray sweep]
#
# Adapt the #SBATCH lines to your site; for GPUs add #SBATCH --gpus-per-node=N, and set GPUS to what each worker of a trial
# gets (1, or a fraction of 1; default auto: the GPUs are divided among the trials). The same version of uedp-ray must be on the PATH of all nodes: activate its
# environment before sbatch, or below. Submit again to resume, also after a requeue and after the time limit, before which
# the sweep is stopped cleanly.
#
# What it costs to get wrong:
# - Authentication. Anyone who reaches a Ray port runs code as you and reads the text, and a Slurm network has many other
#   users. A token for this job alone is created below; do not disable it. It does not encrypt: un-noised sums of updates
#   cross the network between your nodes.
# - Shared storage. Trials write their ledgers to the second argument: a folder on a file system that all nodes mount, with
#   file locks (Lustre: mounted with flock). If a ledger is lost, no privacy claim can be stated; scratch storage that is
#   purged after a few weeks loses it.
# - Nodes that are taken away (preemption, --requeue). The rounds since the last checkpoint run again and are charged
#   again: the same budget buys fewer rounds. Lower training.checkpoint_every.
# - Private text is on that storage, and Ray keeps what it moves in /dev/shm and /tmp of the nodes: hence --exclusive.
#SBATCH --job-name=uedp-sweep
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=uedp-sweep-%j.log
set -euo pipefail

config=${1:?a sweep file} out=${2:?a folder that all nodes share}
shift 2
resume=()
[[ ! -e $out/sweep.yaml ]] || resume=(--resume)

read -r head < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$head:$((20000 + SLURM_JOB_ID % 20000)) # two jobs on one network use different ports
token=$(od -An -tx1 -N32 /dev/urandom | tr -d ' \n')
export RAY_ADDRESS=$address RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$token RAY_USAGE_STATS_ENABLED=0

# One step over all nodes; its first task, on this node, is the head. What Ray spilled to disk is deleted with it.
# shellcheck disable=SC2016
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=0 bash -c '
  address=$RAY_ADDRESS
  unset RAY_ADDRESS # the head would try to connect to itself
  if [[ $SLURM_NODEID == 0 ]]; then
    role=(--head --port "${address##*:}" --include-dashboard=false)
  else
    role=(--address "$address")
    until ray health-check --address "$address" >/dev/null 2>&1; do sleep 2; done
  fi
  folder=/tmp/ray-$SLURM_JOB_ID-$SLURM_NODEID
  ray start "${role[@]}" --block --num-cpus "$SLURM_CPUS_PER_TASK" --temp-dir "$folder" &
  trap "kill $!" TERM
  wait $!
  wait $!
  rm -rf "$folder"
' &
ray=$!
trap 'kill "$ray" 2>/dev/null || true; wait "$ray" || true' EXIT

python - "$SLURM_JOB_NUM_NODES" <<'PYTHON'
import sys
import time

import ray

for attempt in range(150):  # five minutes
    try:
        ray.init(log_to_driver=False, logging_level="error", ignore_reinit_error=True)
        alive = sum(node["Alive"] for node in ray.nodes())
    except ConnectionError:
        alive = 0
    if alive == int(sys.argv[1]):
        sys.exit()
    time.sleep(2)
sys.exit(f"{alive} of {sys.argv[1]} Ray nodes started")
PYTHON

# Job control, because a plain background process would ignore the SIGINT that stops a sweep cleanly.
set -m
uedp-ray sweep "$config" --out "$out" --address "$address" --set resources.gpus_per_worker="${GPUS:-auto}" "${resume[@]}" "$@" &
sweep=$!
set +m
trap 'kill -INT "$sweep" 2>/dev/null || true' USR1 TERM
until ! kill -0 "$sweep" 2>/dev/null; do # the trap ends a wait, not the sweep
  wait "$sweep" || true
done
wait "$sweep"
