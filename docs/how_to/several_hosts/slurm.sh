#!/usr/bin/env bash
# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Trains DLRM on four hosts of a SLURM cluster:
#   sbatch slurm.sh DIRECTORY [flags of the program]
# DIRECTORY is one that all hosts see. If a host dies, the job starts again and
# continues from the last checkpoint.
#SBATCH --job-name=dlrm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
shopt -s extglob nullglob

directory=${1:?"Usage: sbatch slurm.sh DIRECTORY [flags of the program]"}
shift
# One that is being written has a longer name.
checkpoints=("$directory"/checkpoints/+([0-9]))

# srun does not take over --cpus-per-task of sbatch by itself.
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" \
  python -m jax_tpu_embedding.sparsecore.examples.dlrm \
  --num_processes=0 --num_devices="$SLURM_NTASKS" --output_dir="$directory" \
  ${checkpoints:+--resume} "$@"
code=$?

# 75: a host died. Any other error would come again.
if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < 10)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
