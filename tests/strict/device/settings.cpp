#include "settings.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace strict {

// Everything global is never destroyed: threads of streams outlive `main`.

static double from_environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atof(text) : otherwise;
}

int device_count() {
  static const int count = int(from_environment("STRICT_DEVICES", 2));
  TORCH_CHECK(count > 0 && count <= MOST_DEVICES, "STRICT_DEVICES is to be from 1 to ", MOST_DEVICES);
  return count;
}

size_t device_memory() {
  static const size_t bytes = size_t(from_environment("STRICT_MEMORY", double(size_t(1) << 30)));
  return bytes;
}

Settings& settings() {
  static auto* made = new Settings{
      int64_t(from_environment("STRICT_DELAY_US", 0)),
      from_environment("STRICT_DELAY_SHARE", 0),
      from_environment("STRICT_POISON", 1) != 0,
      from_environment("STRICT_SERIAL", 0) != 0,
      0,
  };
  return *made;
}

Counts& counts() {
  static auto* made = new Counts();
  return *made;
}

namespace {
struct Notes {
  std::mutex mutex;
  std::map<std::string, int64_t> blocking;
  std::array<std::string, MOST_DEVICES> faults;
};
Notes& notes() {
  static auto* made = new Notes();
  return *made;
}
}  // namespace

void note_blocking(const std::string& name) {
  std::lock_guard<std::mutex> hold(notes().mutex);
  ++notes().blocking[name];
}

std::map<std::string, int64_t> blocking() {
  std::lock_guard<std::mutex> hold(notes().mutex);
  return notes().blocking;
}

std::string message(const std::exception& error) {
  const auto* torchs = dynamic_cast<const c10::Error*>(&error);
  return torchs ? torchs->what_without_backtrace() : error.what();
}

void set_fault(c10::DeviceIndex device, const std::string& text) {
  std::lock_guard<std::mutex> hold(notes().mutex);
  auto& fault = notes().faults.at(device);
  if (fault.empty()) fault = text;
}

void raise_fault(c10::DeviceIndex device) {
  std::string text;
  {
    std::lock_guard<std::mutex> hold(notes().mutex);
    std::swap(text, notes().faults.at(device));
  }
  TORCH_CHECK(text.empty(), "strict:", int(device), ": asynchronous error: ", text);
}

}  // namespace strict
