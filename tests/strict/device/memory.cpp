#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

namespace strict {

constexpr size_t SPAN =
    size_t(64) << 30;  // addresses of a device: more than its memory, since blocks are never joined
constexpr size_t ROUND = 512;
constexpr size_t PAGE = 4096;
constexpr auto ALL = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

namespace {
struct Arena {
  char* seen;      // what torch sees: no access
  char* used;      // what threads of streams use
  size_t top = 0;  // bytes that were ever handed out

  Arena() {
    const int file = memfd_create("strict", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, SPAN) == 0, "strict: no file in memory can be made");
    seen = map(file, PROT_NONE);
    used = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }
  static char* map(int file, int access) {
    void* made = mmap(nullptr, SPAN, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(made != MAP_FAILED, "strict: device memory cannot be mapped");
    return static_cast<char*>(made);
  }
};

std::vector<Arena>& arenas() {
  static auto* made = new std::vector<Arena>(device_count());
  return *made;
}

// The smallest address of at least `bytes` that wastes no more than a quarter, taken out of the list; null
// for none. `bytes` becomes its size.
char* take(std::multimap<size_t, char*>& addresses, size_t& bytes) {
  auto found = addresses.lower_bound(bytes);
  if (found == addresses.end() || found->first > bytes + bytes / 4) return nullptr;
  auto [size, address] = *found;
  addresses.erase(found);
  bytes = size;
  return address;
}

// Give whole pages back to the system; they are zero when they are next used.
void forget(char* address, size_t bytes) {
  const auto from = (uintptr_t(inside(address)) + PAGE - 1) / PAGE * PAGE;
  const auto to = (uintptr_t(inside(address)) + bytes) / PAGE * PAGE;
  if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_REMOVE);
}

void poison(Queue& queue, char* address, size_t bytes) {
  if (!settings().poison) return;
  char* to = inside(address);
  queue.push([to, bytes] { std::memset(to, 0xFF, bytes); });
}
}  // namespace

DeviceIndex device_of(const void* address) {
  const auto* at = static_cast<const char*>(address);
  for (size_t i = 0; i < arenas().size(); ++i)
    if (at >= arenas()[i].seen && at < arenas()[i].seen + SPAN) return DeviceIndex(i);
  return -1;
}

char* inside(const void* address) {
  if (!address) return nullptr;
  const auto device = device_of(address);
  TORCH_CHECK(device >= 0, "strict: not an address of a device");
  auto& arena = arenas()[device];
  return arena.used + (static_cast<const char*>(address) - arena.seen);
}

at::DataPtr Allocator::allocate(size_t bytes) {
  const auto device = current_device();
  auto& queue = current_queue(device);
  if (!bytes) return {nullptr, nullptr, &release, c10::Device(TYPE, device)};
  const Place place{device, queue.id};
  size_t size = (bytes + ROUND - 1) / ROUND * ROUND;
  std::unique_lock<std::mutex> hold(mutex_);
  char* address = take(cached_[place], size);
  const bool again = address;
  if (!again) {
    address = fresh(device, size, hold);
    stats_[device].reserved_bytes[ALL].increase(size);
    stats_[device].segment[ALL].increase(1);
  }
  auto& stats = stats_[device];
  stats.allocated_bytes[ALL].increase(size);
  stats.active_bytes[ALL].increase(size);
  stats.requested_bytes[ALL].increase(bytes);
  stats.allocation[ALL].increase(1);
  hold.unlock();
  if (!again) poison(queue, address, size);
  return {address, new Block{place, address, size, {}}, &release, c10::Device(TYPE, device)};
}

// Memory that is in nobody's cache. Frees all caches of the device, as CUDA's allocator does, before it gives
// up.
char* Allocator::fresh(DeviceIndex device, size_t bytes, std::unique_lock<std::mutex>& hold) {
  auto full = [&] { return size_t(stats_[device].reserved_bytes[ALL].current) + bytes > device_memory(); };
  if (full()) {
    hold.unlock();
    wait_for_device(device);
    hold.lock();
    give_back(device);
    if (full()) {
      stats_[device].num_ooms += 1;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "strict out of memory. Tried to allocate ", bytes,
                       " bytes on strict:", int(device), ", of whose ", device_memory(), " bytes ",
                       stats_[device].allocated_bytes[ALL].current, " are in use");
    }
  }
  size_t size = bytes;
  if (char* found = take(unused_[device], size)) {
    if (size > bytes) unused_[device].emplace(size - bytes, found + bytes);
    return found;
  }
  auto& arena = arenas()[device];
  TORCH_CHECK(arena.top + bytes <= SPAN, "strict: all addresses of the device have been handed out");
  char* found = arena.seen + arena.top;
  arena.top += bytes;
  return found;
}

// Called with the lock held, when the streams of the device are idle.
void Allocator::give_back(DeviceIndex device) {
  for (auto& [place, addresses] : cached_) {
    if (place.first != device) continue;
    for (auto& [size, address] : addresses) {
      stats_[device].reserved_bytes[ALL].decrease(size);
      stats_[device].segment[ALL].decrease(1);
      forget(address, size);
      unused_[device].emplace(size, address);
    }
    addresses.clear();
  }
}

void Allocator::release(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!block) return;
  auto& self = allocator();
  {
    std::lock_guard<std::mutex> hold(self.mutex_);
    auto& stats = self.stats_[block->place.first];
    stats.allocated_bytes[ALL].decrease(block->size);
    stats.allocation[ALL].decrease(1);
  }
  if (block->others.empty()) return self.finish(block);
  auto left = std::make_shared<std::atomic<size_t>>(block->others.size());
  for (auto [device, id] : std::set<Place>(block->others))
    queue(device, id).push([left, block, &self] {
      if (--*left == 0) self.finish(block);
    });
}

// The host, or the last of the streams that were recorded, is done with it.
void Allocator::finish(Block* block) {
  auto [device, id] = block->place;
  poison(queue(device, id), block->address, block->size);
  std::lock_guard<std::mutex> hold(mutex_);
  stats_[device].active_bytes[ALL].decrease(block->size);
  cached_[block->place].emplace(block->size, block->address);
  delete block;
}

at::DeleterFnPtr Allocator::raw_deleter() const { return &release; }

void Allocator::copy_data(void*, const void*, size_t) const {
  TORCH_CHECK(false, "strict: memory is copied by streams");
}

void Allocator::emptyCache(c10::MempoolId_t) {
  for (int device = 0; device < device_count(); ++device) {
    wait_for_device(DeviceIndex(device));
    std::lock_guard<std::mutex> hold(mutex_);
    give_back(DeviceIndex(device));
  }
}

void Allocator::recordStream(const c10::DataPtr& data, c10::Stream stream) {
  auto* block = static_cast<Block*>(data.get_context());
  if (!block) return;
  const Place place{stream.device_index(), stream.id()};
  std::lock_guard<std::mutex> hold(mutex_);
  if (place != block->place) block->others.insert(place);
}

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  std::lock_guard<std::mutex> hold(mutex_);
  return stats_[device];
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  std::lock_guard<std::mutex> hold(mutex_);
  for (auto* stat : {&stats_[device].allocated_bytes[ALL], &stats_[device].reserved_bytes[ALL]})
    stat->reset_accumulated();
}

void Allocator::resetPeakStats(DeviceIndex device) {
  std::lock_guard<std::mutex> hold(mutex_);
  for (auto* stat : {&stats_[device].allocated_bytes[ALL], &stats_[device].reserved_bytes[ALL]})
    stat->reset_peak();
}

std::pair<size_t, size_t> Allocator::getMemoryInfo(DeviceIndex device) {
  std::lock_guard<std::mutex> hold(mutex_);
  return {device_memory() - size_t(stats_[device].reserved_bytes[ALL].current), device_memory()};
}

Allocator& allocator() {
  static auto* made = new Allocator();
  return *made;
}

REGISTER_ALLOCATOR(TYPE, &allocator());

}  // namespace strict
