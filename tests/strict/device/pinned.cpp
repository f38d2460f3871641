#include "pinned.h"

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace strict {

constexpr size_t LEAST = 4096;

static void poison(char* address, size_t bytes) {
  if (settings().poison) std::memset(address, 0xFF, bytes);
}

at::DataPtr PinnedAllocator::allocate(size_t bytes) {
  if (!bytes) return {nullptr, nullptr, &release, at::Device(at::kCPU)};
  const size_t size = std::bit_ceil(std::max(bytes, LEAST));
  std::lock_guard<std::mutex> hold(mutex_);
  auto& free = cached_[size];
  char* address;
  if (free.empty()) {
    address = static_cast<char*>(std::aligned_alloc(LEAST, size));
    TORCH_CHECK_WITH(OutOfMemoryError, address, "strict: no pinned memory of ", size, " bytes");
    poison(address, size);
  } else {
    address = free.back();
    free.pop_back();
  }
  auto* block = blocks_[address] = new Block{address, size, {}};
  return {address, block, &release, at::Device(at::kCPU)};
}

void PinnedAllocator::release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!block) return;
  auto& self = pinned_allocator();
  {
    std::lock_guard<std::mutex> hold(self.mutex_);
    self.blocks_.erase(block->address);
  }
  if (block->users.empty()) return self.finish(block);
  auto left = std::make_shared<std::atomic<size_t>>(block->users.size());
  for (auto [device, id] : std::set(block->users))
    queue(device, id).push([left, block, &self] {
      if (--*left == 0) self.finish(block);
    });
}

void PinnedAllocator::finish(Block* block) {
  poison(block->address, block->size);
  std::lock_guard<std::mutex> hold(mutex_);
  cached_[block->size].push_back(block->address);
  delete block;
}

PinnedAllocator::Block* PinnedAllocator::find(const void* address) {
  const auto* at = static_cast<const char*>(address);
  auto after = blocks_.upper_bound(at);
  if (after == blocks_.begin()) return nullptr;
  auto* block = std::prev(after)->second;
  return at < block->address + block->size ? block : nullptr;
}

bool PinnedAllocator::holds(const void* address) {
  std::lock_guard<std::mutex> hold(mutex_);
  return find(address);
}

bool PinnedAllocator::record_event(void* address, void*, c10::Stream stream) {
  std::lock_guard<std::mutex> hold(mutex_);
  auto* block = find(address);
  if (block) block->users.insert({stream.device_index(), stream.id()});
  return block;
}

void PinnedAllocator::empty_cache() {
  std::lock_guard<std::mutex> hold(mutex_);
  for (auto& [size, addresses] : cached_)
    for (auto* address : addresses) std::free(address);
  cached_.clear();
}

at::DeleterFnPtr PinnedAllocator::raw_deleter() const { return &release; }

void PinnedAllocator::copy_data(void* to, const void* from, size_t bytes) const {
  std::memcpy(to, from, bytes);
}

PinnedAllocator& pinned_allocator() {
  static auto* made = new PinnedAllocator();
  return *made;
}

}  // namespace strict

namespace at {
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &strict::pinned_allocator());
}
