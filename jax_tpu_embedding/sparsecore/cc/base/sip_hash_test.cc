// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/base/sip_hash.h"

#include <cstddef>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace jte {
namespace {

// Appendix A of the paper: key 00 01 .. 0f, message 00 01 .. 0e.
TEST(SipHashTest, GivesTheExampleOfThePaper) {
  std::vector<std::byte> message;
  for (int i = 0; i < 15; ++i) message.push_back(std::byte(i));
  EXPECT_EQ(SipHash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, message),
            0xa129ca6149be45e5);
}

TEST(SipHashTest, KeysAreRandom) { EXPECT_NE(RandomSipKey(), RandomSipKey()); }

}  // namespace
}  // namespace jte
