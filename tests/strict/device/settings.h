// Settings of the device, taken from the environment and changed by `torch.strict`, and what it counts.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace strict {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int MOST_DEVICES = 16;

int device_count();      // STRICT_DEVICES, 2
size_t device_memory();  // bytes of each device: STRICT_MEMORY, 1 GiB

struct Settings {
  std::atomic<int64_t> delay_us;    // longest delay of a kernel or copy: STRICT_DELAY_US
  std::atomic<double> delay_share;  // share of kernels and copies that are delayed: STRICT_DELAY_SHARE
  std::atomic<bool> poison;         // fill fresh and freed memory with 0xFF: STRICT_POISON, 1
  std::atomic<bool> serial;         // the host waits for every task: STRICT_SERIAL, 0
  std::atomic<int> sync_debug;      // 2: an operator that makes the host wait is an error
};
Settings& settings();

struct Counts {
  std::atomic<int64_t> launches{0};    // kernels and copies given to a stream
  std::atomic<int64_t> delay_us{0};    // delays they were given, summed over all streams
  std::atomic<int64_t> host_waits{0};  // times an operator made the host wait for a stream
};
Counts& counts();

// Operators that could not be launched, since what they return is known only when they have run, and how
// often.
void note_blocking(const std::string& name);
std::map<std::string, int64_t> blocking();

// The first error of a task of a device. As on CUDA it surfaces at a synchronisation with the device; unlike
// there, it does so once, so that the process can go on.
void set_fault(c10::DeviceIndex device, const std::string& text);
std::string message(const std::exception& error);  // without torch's stack trace
void raise_fault(c10::DeviceIndex device);

}  // namespace strict
