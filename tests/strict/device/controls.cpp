// What `torch.strict` calls, with the types of C so that it does not matter which Python loads it.
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "generators.h"
#include "streams.h"

#define CONTROL extern "C" __attribute__((visibility("default")))

using namespace strict;

CONTROL int strict_device_count() { return device_count(); }
CONTROL size_t strict_device_memory() { return device_memory(); }

CONTROL void strict_set_seed(uint64_t seed) { seed_delays(seed); }
CONTROL uint64_t strict_seed() { return seed_of_delays(); }
CONTROL void strict_set_delay(int64_t us, double share) {
  settings().delay_us = us;
  settings().delay_share = share;
}
CONTROL void strict_set_poison(bool on) { settings().poison = on; }
CONTROL void strict_set_serial(bool on) { settings().serial = on; }
CONTROL void strict_set_sync_debug_mode(int mode) { settings().sync_debug = mode; }
CONTROL int strict_sync_debug_mode() { return settings().sync_debug; }

CONTROL int64_t strict_launches() { return counts().launches; }
CONTROL int64_t strict_delay_us() { return counts().delay_us; }
CONTROL int64_t strict_host_waits() { return counts().host_waits; }

// One line for each operator that made the host wait since it could not be launched: its name and how often.
// Writes as much as there is room for, and returns how many bytes there are.
CONTROL size_t strict_blocking(char* text, size_t room) {
  std::string lines;
  for (const auto& [name, times] : blocking()) lines += name + " " + std::to_string(times) + "\n";
  std::memcpy(text, lines.data(), std::min(room, lines.size()));
  return lines.size();
}

// What the stream is given from now on waits for `strict_release`, which is to be called once.
CONTROL void* strict_hold(int device, int64_t stream) {
  auto moment = std::make_shared<Moment>();
  hold_back(queue(DeviceIndex(device), stream), moment);
  return new std::shared_ptr<Moment>(std::move(moment));
}
CONTROL void strict_release(void* held) {
  auto* moment = static_cast<std::shared_ptr<Moment>*>(held);
  (*moment)->happen();
  delete moment;
}

// The current stream of the current device does nothing for a while.
CONTROL void strict_sleep(int64_t us) {
  current_queue(current_device()).push([us] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
}

CONTROL void strict_manual_seed(int device, uint64_t seed) {
  auto& generator = default_generator(DeviceIndex(device));
  std::lock_guard<std::mutex> hold(generator.mutex());
  generator.set_current_seed(seed);
}
CONTROL uint64_t strict_initial_seed(int device) {
  return default_generator(DeviceIndex(device)).current_seed();
}

// State of a generator, as many bytes as one of the CPU has.
CONTROL void strict_get_rng_state(int device, void* bytes) {
  auto& generator = default_generator(DeviceIndex(device));
  std::lock_guard<std::mutex> hold(generator.mutex());
  auto state = generator.get_state();
  std::memcpy(bytes, state.const_data_ptr(), state.nbytes());
}
CONTROL void strict_set_rng_state(int device, const void* bytes) {
  auto& generator = default_generator(DeviceIndex(device));
  std::lock_guard<std::mutex> hold(generator.mutex());
  auto state = generator.get_state();
  std::memcpy(state.mutable_data_ptr(), bytes, state.nbytes());
  generator.set_state(state);
}
