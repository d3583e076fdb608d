#!/bin/sh
# Start it on every host at about the same time, in a folder of its own:
#
#   NODES=2 NODE=0 MASTER_ADDR=10.0.0.1 GLOO_SOCKET_IFNAME=eth0 sh launch.sh   (first host)
#   NODES=2 NODE=1 MASTER_ADDR=10.0.0.1 GLOO_SOCKET_IFNAME=eth0 sh launch.sh   (second host)
set -eu
: "${NODES:?how many hosts there are}" "${NODE:?number of this host, from 0}"
: "${MASTER_ADDR:?address of host 0}" "${GLOO_SOCKET_IFNAME:?interface to the other hosts}"
export GLOO_SOCKET_IFNAME
RANKS_PER_NODE=${RANKS_PER_NODE:-1}
STEPS=${STEPS:-20}
PYTHON=${PYTHON:-python}
HERE=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}" # measure imports train.py

everywhere() {
  "$PYTHON" -m torch.distributed.run --nnodes "$NODES" --node-rank "$NODE" \
    --nproc-per-node "$RANKS_PER_NODE" --master-addr "$MASTER_ADDR" "$@"
}

# 1. All ranks measure the links together; rank 0 writes the file, on host 0.
everywhere --master-port 29501 -m gradwire measure --out machine.json --force

# 2. Host 0 measures the model and plans. The others wait at the next rendezvous.
if [ "$NODE" = 0 ]; then
  "$PYTHON" -m gradwire measure --model train:make --out workload.json --errors errors.json --force
  "$PYTHON" -m gradwire plan --workload workload.json --hardware machine.json \
    --errors errors.json --ranks $((NODES * RANKS_PER_NODE)) \
    --ranks-per-node "$RANKS_PER_NODE" --out plan.json --force
fi

# 3. All train; rank 0 tells the others the plan.
everywhere --master-port 29502 "$HERE/train.py" --steps "$STEPS" --plan plan.json
