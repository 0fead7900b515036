// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/huge_pages.h"

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace jte {
namespace {

// New memory that starts at a huge page.
class Mapping {
 public:
  explicit Mapping(size_t size) : size_(size + kHugePageBytes) {
    data_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // Small pages, whatever the system's default is.
    madvise(data_, size_, MADV_NOHUGEPAGE);
    const auto address = reinterpret_cast<uintptr_t>(data_);
    const size_t skipped = (kHugePageBytes - address) % kHugePageBytes;
    bytes_ = {static_cast<std::byte*>(data_) + skipped, size};
  }
  ~Mapping() { munmap(data_, size_); }

  std::span<std::byte> bytes() const { return bytes_; }

  // Huge pages can be made from now on.
  void Allow() const { madvise(data_, size_, MADV_HUGEPAGE); }

 private:
  size_t size_;
  void* data_;
  std::span<std::byte> bytes_;
};

// A number of /proc/self/smaps_rollup, in bytes.
size_t MemoryInBytes(const std::string& name) {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    size_t kib = 0;
    if (word == name + ":" && file >> kib) return kib * 1024;
  }
  return 0;
}

// The system itself is asked, so that no mistake of UseHugePages skips its
// tests.
bool SystemCan() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string choices;
  if (!std::getline(file, choices) ||
      choices.find("[never]") != std::string::npos) {
    return false;
  }
  const Mapping mapping(kHugePageBytes);
  std::ranges::fill(mapping.bytes(), std::byte{1});
  mapping.Allow();
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  return madvise(mapping.bytes().data(), kHugePageBytes, kCollapse) == 0;
}

// From Linux 6.7 on.
bool SystemTells() {
  utsname system;
  int major = 0;
  int minor = 0;
  return uname(&system) == 0 &&
         std::sscanf(system.release, "%d.%d", &major, &minor) == 2 &&
         std::pair(major, minor) >= std::pair(6, 7);
}

TEST(HugePagesTest, MovesWhatIsThereAndKeepsContents) {
  if (!SystemCan()) GTEST_SKIP() << "This kernel cannot, or may not.";
  const Mapping mapping(4 * kHugePageBytes);
  const std::span bytes = mapping.bytes();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 251);
  mapping.Allow();
  const size_t before = MemoryInBytes("AnonHugePages");
  // Not the first and the last one, of which a byte belongs to somebody else.
  EXPECT_EQ(UseHugePages(bytes.subspan(1, bytes.size() - 2)),
            2 * kHugePageBytes);
  EXPECT_EQ(MemoryInBytes("AnonHugePages"), before + 2 * kHugePageBytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], std::byte(i % 251));
  }
}

TEST(HugePagesTest, NewMemoryGetsThemWhenItIsWritten) {
  if (!SystemCan()) GTEST_SKIP() << "This kernel cannot, or may not.";
  const Mapping mapping(4 * kHugePageBytes);
  const std::span bytes = mapping.bytes();
  const size_t before = MemoryInBytes("AnonHugePages");
  // Not the first and the last one, of which a byte belongs to somebody else.
  AllowHugePages(bytes.subspan(1, bytes.size() - 2));
  AllowHugePages(bytes.first(1));
  std::ranges::fill(bytes, std::byte{1});
  EXPECT_EQ(MemoryInBytes("AnonHugePages"), before + 2 * kHugePageBytes);
}

TEST(HugePagesTest, MemoryThatIsNotThereStaysAway) {
  const bool can = SystemCan();
  const Mapping mapping(8 * kHugePageBytes);
  const std::span bytes = mapping.bytes();
  std::ranges::fill(bytes.first(3 * kHugePageBytes), std::byte{1});
  // All but one small page.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::ranges::fill(bytes.subspan(4 * kHugePageBytes, kHugePageBytes - page),
                    std::byte{1});
  std::ranges::fill(bytes.subspan(6 * kHugePageBytes, kHugePageBytes),
                    std::byte{1});
  mapping.Allow();
  const size_t before = MemoryInBytes("Anonymous");
  EXPECT_EQ(UseHugePages(bytes), can ? 4 * kHugePageBytes : 0);
  EXPECT_LT(MemoryInBytes("Anonymous"), before + kHugePageBytes / 2);
}

TEST(HugePagesTest, TellsWhatIsInHugePages) {
  if (!SystemCan()) GTEST_SKIP() << "This kernel cannot, or may not.";
  if (!SystemTells()) GTEST_SKIP() << "This kernel does not tell.";
  const Mapping mapping(2 * kHugePageBytes);
  const std::span bytes = mapping.bytes();
  EXPECT_FALSE(IsInHugePage(bytes.data()));  // nothing is there
  std::ranges::fill(bytes, std::byte{1});
  EXPECT_FALSE(IsInHugePage(bytes.data()));
  mapping.Allow();
  UseHugePages(bytes.first(kHugePageBytes));
  EXPECT_TRUE(IsInHugePage(bytes.data()));
  EXPECT_TRUE(IsInHugePage(&bytes[kHugePageBytes - 1]));
  EXPECT_FALSE(IsInHugePage(&bytes[kHugePageBytes]));
}

TEST(HugePagesTest, LittleMemoryHasNone) {
  const Mapping mapping(kHugePageBytes);
  EXPECT_EQ(UseHugePages({}), 0);
  EXPECT_EQ(UseHugePages(mapping.bytes().subspan(1)), 0);
}

}  // namespace
}  // namespace jte
