// Pinned host memory.
//
// - Only copies from and to pinned memory run without the host waiting for them.
// - A copy reads and writes pinned memory when the stream gets there: the host that changes it before is too
// early.
// - Freed pinned memory is handed out again, the block freed last first, when the streams that copied from or
// to it are
//   done. It is filled with 0xFF when it is freed and when it is new.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "streams.h"

namespace strict {

class PinnedAllocator final : public at::HostAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override;
  at::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  bool record_event(void* address, void* context, c10::Stream stream) override;
  void empty_cache() override;
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool holds(const void* address);

 private:
  struct Block {
    char* address;
    size_t size;
    std::set<std::pair<DeviceIndex, StreamId>> users;
  };
  static void release(void* block);
  void finish(Block* block);
  Block* find(const void* address);  // called with the lock held

  std::mutex mutex_;
  std::map<const char*, Block*> blocks_;         // in use by the host, by address
  std::map<size_t, std::vector<char*>> cached_;  // free, by size
};

PinnedAllocator& pinned_allocator();

}  // namespace strict
