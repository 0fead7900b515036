# Copyright 2026 The jax_tpu_embedding Authors.
# SPDX-License-Identifier: Apache-2.0

"""Numbers that the buffer format fixes. C++: cc/layout/constants.h."""

# Embedding id and sample id of a cell that holds no entry: the largest int32.
# The gain of such a cell is NaN, so that code which reads one by mistake shows
# it.
PADDING_VALUE = 2**31 - 1

# Every partition starts at a multiple of this many cells. Vocabulary per shard
# and embedding dimension are padded to multiples of it too.
ALIGNMENT = 8

# A block of row pointers has at least this many entries.
MIN_ROW_POINTERS_PER_BLOCK = 8

# Samples of one device in a batch of a stack: the cells of the hardware have
# 26 bits for the sample.
MAX_SAMPLES_PER_DEVICE = 2**26 - 1

# The first row pointer of buffers whose conversion has failed. The others are 0.
# cc/ffi/failed_buffers.h: kFailedConversion.
FAILED_CONVERSION = -(2**31)

# Buckets that minibatching splits the columns of a step into, and so the
# largest number of minibatches.
MAX_MINIBATCHES = 64

# The only sharding strategy: row i is in shard i mod the number of shards.
MOD_SHARDING = 1
