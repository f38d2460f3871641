// Device memory and its allocator.
//
// - The memory of a device is one file in memory, mapped twice. The addresses that torch sees cannot be read
// or written:
//   a host that touches device memory dies. Threads of streams use the second mapping.
// - The allocator is stream-ordered, as CUDA's: a block that the host frees may be handed out again at once
// on the
//   stream it was allocated on, and on no other. Streams that use a block of another stream must be told by
//   `record_stream`: it is then handed out again when they have done what they had been given when it was
//   freed.
// - Fresh and freed memory is filled with 0xFF (NaN, -1) by a task of the allocating stream.
// - Tasks hold no references to tensors: what is freed too early gives wrong answers, as on a GPU.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <map>
#include <mutex>
#include <set>

#include "streams.h"

namespace strict {

// The device whose memory the address is in, -1 for none.
DeviceIndex device_of(const void* address);

// The address at which threads of streams find what torch sees at `address`; null stays null.
char* inside(const void* address);

class Allocator final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t bytes) override;  // on the current stream of the current device
  at::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t pool = {0, 0}) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override;

 private:
  using Place = std::pair<DeviceIndex, StreamId>;
  using Addresses = std::multimap<size_t, char*>;  // by size in bytes
  struct Block {
    Place place;
    char* address;
    size_t size;
    std::set<Place> others;  // told by record_stream
  };

  static void release(void* block);
  void finish(Block* block);
  char* fresh(DeviceIndex device, size_t bytes, std::unique_lock<std::mutex>& hold);
  void give_back(DeviceIndex device);

  std::mutex mutex_;
  std::map<DeviceIndex, c10::CachingDeviceAllocator::DeviceStats> stats_;
  std::map<Place, Addresses> cached_;        // freed, for the stream they were allocated on
  std::map<DeviceIndex, Addresses> unused_;  // given back by emptyCache
};

Allocator& allocator();

}  // namespace strict
