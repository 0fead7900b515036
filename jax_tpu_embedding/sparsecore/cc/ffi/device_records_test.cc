// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

#include "jax_tpu_embedding/sparsecore/cc/ffi/device_records.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "jax_tpu_embedding/sparsecore/cc/base/error.h"
#include "jax_tpu_embedding/sparsecore/cc/kernels/coo/partitions.h"
#include "xla/ffi/api/ffi.h"

namespace jte::ffi {
namespace {

using ::testing::HasSubstr;

// Two devices: one that is there, and its twin.
class DeviceRecordsTest : public testing::Test {
 protected:
  DeviceRecordsTest() { records_.fill(MakeRecord(published_)); }

  Result<std::vector<Published>> Read() { return ReadPublished(Words(), own_); }

  WordsByDevice Words() {
    buffer_ = {.struct_size = XLA_FFI_Buffer_STRUCT_SIZE,
               .extension_start = nullptr,
               .dtype = XLA_FFI_DataType_U32,
               .data = records_.data(),
               .rank = 2,
               .dims = shape_.data()};
    return WordsByDevice(&buffer_);
  }

  std::vector<int32_t> numbers_ = std::vector<int32_t>(40);
  std::vector<float> gains_ = std::vector<float>(16);
  Published published_ = {
      .buffers = {.row_pointers = std::span(numbers_).first(8),
                  .embedding_ids = std::span(numbers_).subspan(8, 16),
                  .sample_ids = std::span(numbers_).subspan(24, 16),
                  .gains = gains_},
      .rows = std::as_bytes(std::span(gains_)),
      .geometry = {.num_sc_per_device = 1,
                   .rows_per_shard = 4,
                   .batch_size_per_sc = 2,
                   .enable_minibatching = false,
                   .num_minibatches = 1,
                   .num_devices = 2}};
  Published own_ = published_;
  std::array<DeviceRecord, 2> records_;

 private:
  std::array<int64_t, 2> shape_ = {2, kRecordWords};
  XLA_FFI_Buffer buffer_;
};

TEST_F(DeviceRecordsTest, SayWhereEachDeviceHasWhat) {
  const auto devices = Read();
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 2);
  for (const Published& device : *devices) {
    EXPECT_EQ(device.rows.data(), published_.rows.data());
    EXPECT_EQ(device.rows.size(), published_.rows.size());
    EXPECT_EQ(device.buffers.gains.data(), gains_.data());
    EXPECT_EQ(device.buffers.embedding_ids.data(), numbers_.data() + 8);
    EXPECT_EQ(device.buffers.sample_ids.size(), 16);
  }
}

TEST_F(DeviceRecordsTest, AreReadOnlyAsTheyWerePublished) {
  const std::vector<std::function<void(DeviceRecord&)>> forgeries = {
      [](auto& record) { record = {}; },
      [](auto& record) { ++record.row_pointers; },
      [](auto& record) { ++record.embedding_ids; },
      [](auto& record) { ++record.sample_ids; },
      [](auto& record) { ++record.gains; },
      [](auto& record) { record.rows = &record; },
      [](auto& record) { ++record.seal; },
  };
  const DeviceRecord valid = records_[1];
  for (size_t i = 0; i < forgeries.size(); ++i) {
    records_[1] = valid;
    forgeries[i](records_[1]);
    const auto devices = Read();
    ASSERT_FALSE(devices) << i;
    EXPECT_THAT(devices.error().message,
                HasSubstr("The record of device 1 of the axis is none that "
                          "this process has published"));
  }
  records_[1] = valid;
  EXPECT_TRUE(Read());
}

// Who has larger buffers, or understands them otherwise, would read too far.
TEST_F(DeviceRecordsTest, AreReadOnlyForBuffersLikeTheReaders) {
  const std::vector<std::function<void(Published&)>> readers = {
      [](auto& own) { own.rows = {own.rows.data(), own.rows.size() + 1}; },
      [](auto& own) {
        own.buffers.row_pointers = {own.buffers.row_pointers.data(), 9};
      },
      [](auto& own) {
        own.buffers.embedding_ids = {own.buffers.embedding_ids.data(), 17};
      },
      [](auto& own) { own.geometry.num_sc_per_device = 2; },
      [](auto& own) { own.geometry.rows_per_shard = 3; },
      [](auto& own) { own.geometry.batch_size_per_sc = 1; },
      [](auto& own) { own.geometry.enable_minibatching = true; },
      [](auto& own) { own.geometry.num_minibatches = 2; },
  };
  for (size_t i = 0; i < readers.size(); ++i) {
    own_ = published_;
    readers[i](own_);
    EXPECT_FALSE(Read()) << i;
  }
}

TEST_F(DeviceRecordsTest, AreReadOnlyByTheProcessThatPublished) {
  ASSERT_TRUE(Read());
  // The child has the parent's key.
  EXPECT_EXIT(std::_Exit(Read() ? 1 : 0), testing::ExitedWithCode(0), "");
}

TEST_F(DeviceRecordsTest, GiveTheErrorOfTheFirstDeviceThatHasOne) {
  records_[1] = MakeErrorRecord(std::string(1000, 'x'));
  for (const auto& error : {Read().error(), ReadRecords(Words(), 2).error()}) {
    EXPECT_EQ(error.message, "Device 1 of the axis: " + std::string(207, 'x'));
  }
  // Of characters, whole ones: these have two bytes.
  std::string message;
  for (int i = 0; i < 200; ++i) message += "\u00e9";
  records_[1] = MakeErrorRecord(message);
  EXPECT_EQ(Read().error().message,
            "Device 1 of the axis: " + message.substr(0, 206));
  // A forger may leave out the zero at the end.
  std::ranges::fill(records_[0].error, 'y');
  EXPECT_EQ(Read().error().message,
            "Device 0 of the axis: " + std::string(208, 'y'));
}

TEST_F(DeviceRecordsTest, HaveTheNumberOfTheDevices) {
  const auto records = ReadRecords(Words(), 3);
  ASSERT_FALSE(records);
  EXPECT_EQ(records.error().message,
            "The records have shape [2, 64], expected [3, 64].");
}

}  // namespace
}  // namespace jte::ffi
