// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// Stands for another version of protobuf, for _native_planner_test.py: a
// library that calls this one by mistake does not get far.

#include <cstdlib>

extern "C" {
// google::protobuf::Message's type information.
char _ZTIN6google8protobuf7MessageE[16];

// google::protobuf::MessageLite::ParseFromArray
void _ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi() { std::abort(); }
}
