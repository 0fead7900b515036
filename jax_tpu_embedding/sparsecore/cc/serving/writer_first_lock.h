// Copyright 2026 The jax_tpu_embedding Authors.
// SPDX-License-Identifier: Apache-2.0

// A lock of many readers or one writer, for which waiting readers make way: a
// server that is never idle would never see a new version otherwise.
//
// A thread that reads must not lock again: if a writer waits, both would wait
// for each other. Otherwise as std::shared_mutex.

#ifndef JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_WRITER_FIRST_LOCK_H_
#define JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_WRITER_FIRST_LOCK_H_

#include <pthread.h>

namespace jte::serving {

class WriterFirstLock {
 public:
  WriterFirstLock() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#if defined(__GLIBC__)
    // Of the two kinds that put writers first, the one that does.
    pthread_rwlockattr_setkind_np(&attributes,
                                  PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~WriterFirstLock() { pthread_rwlock_destroy(&lock_); }
  WriterFirstLock(const WriterFirstLock&) = delete;
  WriterFirstLock& operator=(const WriterFirstLock&) = delete;

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace jte::serving

#endif  // JAX_TPU_EMBEDDING_SPARSECORE_CC_SERVING_WRITER_FIRST_LOCK_H_
