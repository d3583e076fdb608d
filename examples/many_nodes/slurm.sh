#!/bin/bash
#SBATCH --job-name=gradwire
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=01:00:00
# sbatch slurm.sh, in a folder that all nodes share. One task a node starts the node's ranks.
set -eu
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR NODES=$SLURM_JOB_NUM_NODES RANKS_PER_NODE=1
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-eth0}
srun --kill-on-bad-exit=1 sh -c 'NODE=$SLURM_NODEID sh launch.sh'
