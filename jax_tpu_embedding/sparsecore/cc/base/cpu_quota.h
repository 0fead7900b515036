// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// How much CPU time a control group leaves this process.
//
// A container is mostly limited by a quota of time and not by CPUs: with one of
// two CPUs on a machine of 64, a process may run on all 64, and is stopped for
// the rest of every 100 ms once its threads together have used 200. More
// threads than the quota has CPUs then wait for each other.
//
// Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
// Documentation/scheduler/sched-bwc.rst (cpu.cfs_quota_us).

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CPU_QUOTA_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CPU_QUOTA_H_

#include <filesystem>
#include <optional>

namespace jte {

// The smallest quota of the process's group and those around it, in CPUs
// rounded up; none if there is no quota or none can be read. `groups` is where
// the system shows its control groups, `membership` the file with those of the
// process.
std::optional<int> CpuQuota(
    const std::filesystem::path& groups = "/sys/fs/cgroup",
    const std::filesystem::path& membership = "/proc/self/cgroup");

}  // namespace jte

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_BASE_CPU_QUOTA_H_
