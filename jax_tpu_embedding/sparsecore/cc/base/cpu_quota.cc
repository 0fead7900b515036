// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/cpu_quota.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace jte {
namespace {

namespace fs = std::filesystem;

constexpr int kNoQuota = std::numeric_limits<int>::max();

// Of one group, in CPUs rounded up. Files without a quota begin with "max"
// (version 2) or "-1" (version 1).
int QuotaOf(const fs::path& group) {
  int64_t quota = 0;
  int64_t period = 0;
  std::ifstream both(group / "cpu.max");
  if (!(both >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return kNoQuota;
  const int64_t cpus = quota / period + (quota % period != 0);
  return static_cast<int>(std::min<int64_t>(cpus, kNoQuota));
}

// Whether "cpu" is among the controllers "cpu,cpuacct".
bool HasCpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

std::optional<int> CpuQuota(const fs::path& groups,
                            const fs::path& membership) {
  int quota = kNoQuota;
  std::ifstream lines(membership);
  // "0::/a/b" (version 2) or "4:cpu,cpuacct:/a/b" (version 1).
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second =
        first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !HasCpu(controllers)) continue;
    const fs::path root = groups / controllers;
    // In a container the path may be that outside of it, and the container's
    // group is the root.
    fs::path path = fs::path(line.substr(second + 1)).relative_path();
    for (;; path = path.parent_path()) {
      quota = std::min(quota, QuotaOf(root / path));
      if (path.empty()) break;
    }
  }
  if (quota == kNoQuota) return std::nullopt;
  return quota;
}

}  // namespace jte
