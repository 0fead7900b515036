// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include "gtest/gtest.h"

namespace jte {
namespace {

namespace fs = std::filesystem;

class CpuQuotaTest : public testing::Test {
 protected:
  CpuQuotaTest()
      : root_(fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }

  void Write(std::string_view file, std::string_view text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << '\n';
  }

  std::optional<int> Quota() const {
    return CpuQuota(root_ / "groups", root_ / "membership");
  }

 private:
  fs::path root_;
};

TEST_F(CpuQuotaTest, IsThatOfTheGroupRoundedUp) {
  Write("membership", "0::/a/b");
  Write("groups/a/b/cpu.max", "250000 100000");
  EXPECT_EQ(Quota(), 3);
  Write("groups/a/b/cpu.max", "200000 100000");
  EXPECT_EQ(Quota(), 2);
  Write("groups/a/b/cpu.max", "1000 100000");
  EXPECT_EQ(Quota(), 1);
}

TEST_F(CpuQuotaTest, IsTheSmallestOfTheGroupsAround) {
  Write("membership", "0::/a/b");
  Write("groups/a/b/cpu.max", "max 100000");
  Write("groups/a/cpu.max", "400000 100000");
  EXPECT_EQ(Quota(), 4);
  Write("groups/a/b/cpu.max", "900000 100000");
  EXPECT_EQ(Quota(), 4);
}

TEST_F(CpuQuotaTest, OfVersion1IsRead) {
  Write("membership",
        "9:cpuset:/a\n4:cpu,cpuacct:/a\n3:cpuacct:/b\n1:name=systemd:/b");
  Write("groups/cpu,cpuacct/a/cpu.cfs_quota_us", "150000");
  Write("groups/cpu,cpuacct/a/cpu.cfs_period_us", "50000");
  Write("groups/cpuacct/b/cpu.cfs_quota_us", "1");
  Write("groups/cpuacct/b/cpu.cfs_period_us", "1");
  EXPECT_EQ(Quota(), 3);
}

TEST_F(CpuQuotaTest, OfAContainerIsThatOfTheRoot) {
  Write("membership", "0::/outside/docker/4fb1");
  Write("groups/cpu.max", "50000 100000");
  EXPECT_EQ(Quota(), 1);
}

TEST_F(CpuQuotaTest, IsNoneWithoutOne) {
  EXPECT_EQ(Quota(), std::nullopt) << "no file at all";
  Write("membership", "0::/a\n4:cpu:/a\nnot a line");
  EXPECT_EQ(Quota(), std::nullopt) << "no groups are shown";
  Write("groups/a/cpu.max", "max 100000");
  Write("groups/cpu/a/cpu.cfs_quota_us", "-1");
  Write("groups/cpu/a/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Quota(), std::nullopt);
  Write("groups/a/cpu.max", "100000 0");
  EXPECT_EQ(Quota(), std::nullopt) << "not what a system would say";
}

}  // namespace
}  // namespace jte
